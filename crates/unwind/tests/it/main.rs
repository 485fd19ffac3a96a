//! Unwind tables compared with other readers: real, random and hand-made.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and reports counts"
)]

mod common;
mod exception_tables;
mod hand_made_frames;
mod libgcc;
mod random;
mod real;
