//! Clones of hand-made and of real functions: proven, unwound, walked and executed.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod common;
mod execute;
mod functions;
mod real;
