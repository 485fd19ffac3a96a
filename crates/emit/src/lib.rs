//! Emits clones from graphs and block orders.
//!
//! Input: the graphs of some functions, for each the blocks to clone in their new order, and the addresses
//! for the bytes. Output: the text, its data (jump tables, exception tables, unwind tables) and, for each
//! clone, the map between its instructions and the original's. The crate has no access to a process: the same
//! request gives the same bytes.
//!
//! # The problem
//! Law 2 of the design: each clone instruction stands for exactly one original instruction at which
//! registers, flags, memory and stack are the same. Everything here preserves this relation. The last step
//! proves it again from the finished bytes.
//!
//! # The rules
//! - Bytes are copied unchanged, unless the instruction is a direct branch, has a RIP-relative operand (its
//!   disp32 is changed in place) or reads a jump table that is cloned too.
//! - Warm blocks lie apart from hot ones. A clone has up to two fragments, whose blocks are joined by jumps
//!   only.
//! - An edge to a block that is not cloned, or to an unknown destination, goes to its *original* address.
//! - Direct calls and jumps to the entry of a cloned function go to its clone. Those to a stub of the
//!   procedure linkage table go through the stub's slot.
//! - A loop may be unrolled (`unroll`).
//! - A call may be inlined or guarded (`inline`, `inline_body`).
//! - All other instructions without a counterpart are jumps and, if requested, counters. Each stands for the
//!   instruction to which it leads. A counter changes only registers and flags that are not live, and whet's
//!   own memory.
//! - If anything does not fit, the whole function is refused and everything is laid out again without it. So
//!   nothing refers to a missing clone.
//!
//! # The steps
//! `plan` (the instructions, their fragments, the branch forms) → `relax` (branch sizes, positions) → `zones`
//! (fragment addresses) → `encode` (bytes and map, once addresses are known) → `verify` (the proof) →
//! `frames` (unwind rows and exception tables by the map). `driver` repeats these steps until nothing is
//! refused.
//!
//! # Invariants
//! Each is tagged `INVARIANT(name)` where it is kept and where it is checked.
//! - `entry`: the clone's first instruction stands for the original's first.
//! - `one-to-one`: each clone instruction has one original instruction. Each original instruction is carried
//!   to one place in the clone, whether or not there are further copies (`unroll`). Each clone byte is in one
//!   instruction.
//! - `simulation`: each successor of a clone instruction stands for the matching successor of its original.
//! - `reach`: each displacement is computed exactly and checked to fit; none is ever truncated.
//! - `movable`: between the read of a cloned table and its jump, a register differs from the original's; the
//!   map records this.
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

pub use driver::{Stage, emit, emit_while};
pub use fragments::Fragments;
pub use inline::table_call;
pub use inline_body::{Body, can_inline};
pub use map::{AddressMap, Entry, Link};
pub use map_format::MapError;
pub use redirect::{CALL_LEN, JUMP_LEN, JUMP_THROUGH, branch_displacement, jump, redirect};
pub use request::{
    CloneInfo, Counter, Error, Function, Guard, InlineSite, Output, Request, Stats, Stubs, Watch,
};
pub use unroll::{Unroll, loops};
