//! Where does a process spend its user time, and how much of something does it do: the kernel's sampling and counting
//! events.
//!
//! You give a process; it gives sampled instruction addresses by thread and time, from the CPU's cycle counter where
//! there is one and from the kernel's CPU clock where there is not, without touching the process. The parser of the
//! kernel's records is apart and pure ([`record`]). What is only counted comes as one number ([`Counter`]).

mod capability;
mod clock;
mod counter;
mod error;
mod event;
mod limit;
pub mod record;
mod ring;
mod sampler;
mod tracefs;

pub use capability::{Capability, capability};
pub use clock::monotonic_ns;
pub use counter::{Count, Counted, Counter};
pub use error::Error;
pub use event::Source;
pub use sampler::{Options, Sample, Sampler};
