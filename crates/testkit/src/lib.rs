//! Parts that the tests of several crates share: programs compiled for a test, and random numbers that are
//! the same on every machine. No product code uses this crate.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::print_stdout, reason = "a test says what it skips")]

mod compile;
mod random;

pub use compile::{build, build_source};
pub use random::{Rng, permutations};
