//! Tests of whet-lab as a program: its scenarios on a real server, and its report.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may fail, and reports")]

mod events;
mod interrupts;
mod other_host;
mod page;
mod pgbench;
mod runs;
mod services;
mod support;
