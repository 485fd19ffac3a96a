//! Does each clone do what its original does?
//!
//! You give the id of a process that carries clones; it gives what executions say about law 2 ("one to one") and
//! about unwinding. For tests: it slows the target down and changes nothing in it.
//!
//! # How
//! A thread is caught where it enters a clone, and doubled twice. One twin gets the originals' bytes back and
//! executes the original, the other the clone, one instruction at a time. The address maps say which pairs of
//! instructions belong together; at each pair all registers must agree, and all memory that was written. Where the two
//! may differ (a return address, and whatever was computed from one) the difference is followed: every other one must
//! be the consequence of a difference that was there before. See `differ`. A call that gets where it goes more directly in the
//! clone is compared with all that the original does for it. See `inline`.
//!
//! At each clone instruction the stack is unwound too: by the clone's tables as they lie in the target, and by the
//! original's; both must give the same frames.
//!
//! # What it does not see
//! A comparison ends where the twins cannot go on alike (see [`End`]): at a system call, at shared memory, where a
//! program decides something by a return address (the unwinder does). Which functions are met depends on the load.
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
