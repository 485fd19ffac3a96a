//! What the tests share: small graphs from bytes, an oracle that walks original and clone in step, unwinding checks.
#![allow(dead_code, reason = "each test uses its own part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod graph;
pub mod program;
pub mod rng;
pub mod unwinding;
pub mod walk;

pub use rng::Rng;
