//! Samples where a process spends its user time, and counts its events, with the kernel's perf events.
//!
//! A [`Sampler`] returns instruction addresses by thread and time, without changing the process. It uses the
//! CPU's cycle counter if there is one, else the kernel's CPU clock. The parser of the kernel's records is
//! separate and pure ([`record`]). A [`Counter`] returns one number for an event that is only counted.
//!
//! System calls are those of `rustix`. Own `unsafe` calls remain for perf events, which it does not have, and
//! for their mapped buffers, where its calls are `unsafe` as well.

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
