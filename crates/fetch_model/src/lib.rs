//! What would the front end of a named CPU make of a path through code?
//!
//! You give instructions in the order in which they are executed ([`Step`]), recorded or drawn from counts ([`DrawnPath`]); it
//! gives the events of a model of instruction cache, instruction TLBs, branch target buffer, direction predictor and return
//! stack ([`Model`], [`Cpu`]). A path through originals is led through their clones by [`Follower`], so that both sides are of the
//! same path. No process, no clock; the same input always gives the same events.
//!
//! # What it is not
//! A measurement. There is no second-level cache, no prefetcher, no decoder and no micro-op cache in it, nor what speculation fetches and
//! throws away; events are counted, cycles are not. Good for comparing two layouts of the same code, not for comparing with
//! a CPU's own counters.
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
