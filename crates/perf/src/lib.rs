//! Where does a process spend its user time: the kernel's sampling events.
//!
//! You give a process; it gives sampled instruction addresses by thread and time, from the CPU's cycle counter where
//! there is one and from the kernel's CPU clock where there is not, without touching the process. The parser of the
//! kernel's records is apart and pure ([`record`]).

mod capability;
mod clock;
mod error;
mod event;
mod limit;
pub mod record;
mod ring;
mod sampler;

pub use capability::{Capability, capability};
pub use clock::monotonic_ns;
pub use error::Error;
pub use event::Source;
pub use sampler::{Options, Sample, Sampler};
