//! Captures: all that a rebuild read of a process, in a file; and the rebuild from such a file, without the
//! process.

pub(crate) mod capture;
mod captured_memory;
mod file;
mod inputs;
mod rebuild;
mod recorder;
mod report;
mod run;

pub use capture::{CaptureOptions, CaptureReport, capture};
pub use report::{CacheReport, FunctionLayout, ReplayReport};
pub use run::{Again, replay, replay_bytes};
