//! Models the instruction fetch and branch prediction of a named CPU on a path through code.
//!
//! The input is the executed instructions in order ([`Step`]), recorded or drawn from counts ([`DrawnPath`]).
//! The output is the events of a model of instruction cache, instruction TLBs, branch target buffer,
//! direction predictor and return stack ([`Model`], [`Cpu`]). [`Follower`] translates a path through
//! originals into the path through their clones, so that both sides are compared on the same path. The model
//! uses no process and no clock: the same input always gives the same events.
//!
//! # What it is not
//! It is not a measurement. The model has no second-level cache, no prefetcher, no decoder and no micro-op
//! cache. It does not fetch what a CPU fetches by wrong speculation. It counts events, not cycles. Use it to
//! compare two layouts of the same code, not to compare with a CPU's own counters.
#![forbid(unsafe_code)]

mod cache;
mod cpu;
mod direction;
mod drawn_path;
mod follow;
mod model;
mod step;
#[cfg(test)]
mod test_code;

pub use cpu::{Cpu, Direction, Geometry, ICE_LAKE_SERVER};
pub use drawn_path::{DrawnPath, Leads, OUTSIDE, Routine, Surroundings};
pub use follow::{CloneCode, Follower, Redirects, Setting};
pub use model::{Events, Model};
pub use step::{Flow, Inst, Pointer, Step};
