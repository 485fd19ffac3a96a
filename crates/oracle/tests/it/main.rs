//! Clones against originals, instruction by instruction, in programs that run.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise and says what it saw"
)]

mod bolt;
mod branch_stacks;
mod counts;
mod fetch_model;
mod guests;
mod seen;
mod server;
mod support;
mod wrong;
