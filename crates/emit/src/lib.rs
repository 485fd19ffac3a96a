//! The new bytes: from graphs and block orders to clones.
//!
//! You give the graphs of some functions, for each the blocks to clone in their new order, and the addresses where
//! the bytes will lie; it gives the text, the data that goes with it (jump tables, exception tables, unwind tables)
//! and, for each clone, the map between its instructions and the original's. It knows no process: the same request
//! gives the same bytes.
//!
//! # The problem
//! Law 2 of the design: each clone instruction stands for exactly one original instruction at which registers,
//! flags, memory and stack are the same. Everything here serves that relation, and the last step proves it anew from
//! the finished bytes.
//!
//! # The rules
//! - Bytes are copied as they are, unless the instruction is a direct branch, has a RIP-relative operand (its disp32
//!   is changed in place) or reads a jump table that is cloned too.
//! - Blocks that run rarely lie apart from the others: a clone has up to two fragments, whose blocks are joined by jumps alone.
//! - An edge to a block that is not cloned, and whatever is not known, goes to its *original* address.
//! - Direct calls and jumps to the entry of a cloned function go to its clone; those to a stub of the procedure linkage
//!   table go where the stub goes.
//! - A loop may lie there several times, one copy behind the other (`unroll`).
//! - A call may be answered more directly, by a way through its callee or by asking where it leads (`inline`, `inline_body`).
//! - Else the only instructions without a counterpart are jumps, nops and, where asked for, counters; each stands for the
//!   instruction that it leads to. A counter changes only what nobody may still read, and memory of our own.
//! - Where anything does not fit, the function is refused as a whole and everything is laid out without it, so that
//!   nothing refers to a clone that is not there.
//!
//! # The steps
//! `plan` (what instructions, in which fragments, which branch forms) → `relax` (branch sizes, positions) → `zones` (where
//! fragments lie) → `encode` (bytes and map, once addresses are known) → `verify` (the proof) → `frames` (unwind rows and
//! exception tables by the map). `driver` repeats them until nothing is refused.
//!
//! # Invariants
//! Each is tagged `INVARIANT(name)` where it is kept and where it is checked.
//! - `entry`: the clone's first instruction stands for the original's first.
//! - `one-to-one`: each clone instruction has one original instruction, and each of these one place in the clone that it is carried
//!   to, whether or not there are further copies (`unroll`); each clone byte is in one instruction.
//! - `simulation`: wherever control goes on from a clone instruction stands for where it goes on from its original.
//! - `reach`: each displacement is computed exactly and checked to fit; none is ever cut off.
//! - `movable`: between the read of a cloned table and its jump a register differs from the original's; the map says so.
#![forbid(unsafe_code)]

mod count;
mod driver;
mod encode;
mod fragments;
mod frames;
mod inline;
mod inline_body;
mod items;
mod map;
mod map_format;
mod nops;
mod plan;
mod reach;
mod redirect;
mod relax;
mod request;
mod steps;
mod table;
mod unroll;
mod verify;
mod verify_inline;
mod zones;

pub use driver::{emit, emit_while};
pub use fragments::Fragments;
pub use inline::table_call;
pub use inline_body::{Body, can_inline};
pub use map::{AddressMap, Entry, Link};
pub use map_format::MapError;
pub use redirect::{CALL_LEN, JUMP_LEN, JUMP_THROUGH, branch_displacement, jump, redirect};
pub use request::{
    CloneInfo, Counter, Error, Function, Guard, InlineSite, Output, Request, Stats, Stub, Stubs, Watch,
};
pub use unroll::{Unroll, loops};
