//! Checks whether each clone does what its original does.
//!
//! The input is the id of a process with clones. The output is what executions show about law 2 ("one to
//! one") and about unwinding. For tests only: the target is slowed down, but nothing in it is changed.
//!
//! # How
//! A thread is caught where it enters a clone, and two twins of it are made. One twin gets the originals'
//! bytes back and executes the original; the other executes the clone. Both execute one instruction at a
//! time. The address maps say which instructions form a pair. At each pair all registers must agree, and all
//! memory that was written. A return address, and whatever was computed from one, may differ. Such
//! differences are tracked: every other difference must follow from a difference that was there before (see
//! `differ`). A call that the clone inlines or guards is compared with everything that the original does for
//! it (see `inline`).
//!
//! At each clone instruction the stack is also unwound: by the clone's tables in the target, and by the
//! original's. Both must give the same frames.
//!
//! # What it does not see
//! A comparison ends where the twins cannot continue alike (see [`End`]). This is at a system call, at shared
//! memory, or at a decision that depends on a return address, as in the unwinder. The load decides which
//! functions are examined.
#![forbid(unsafe_code)]

mod atlas;
mod decoded;
mod differ;
mod error;
mod examine;
mod expression;
mod frame;
mod hunt;
mod inline;
mod lockstep;
mod report;
mod steps;
mod twin;
mod unwinding;

pub use error::Error;
pub use examine::{Options, Tamper, examine, examine_tampered};
pub use report::{Difference, End, Mismatch, Report};
pub use steps::count_steps;
