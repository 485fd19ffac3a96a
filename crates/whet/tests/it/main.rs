//! whet as a program, run on programs that are built and started here.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may fail, and reports")]

mod cli;
mod daemon;
mod daemon_families;
mod debuggers;
mod family;
mod faults;
mod felt;
mod fleet;
mod gs;
mod hooks;
mod huge_pages;
mod measure;
mod odd;
mod plugins;
mod probes;
mod profile;
mod rebuilds;
mod refusals;
mod replay;
mod report;
mod sandboxes;
mod seen;
mod shares;
mod starved;
mod stays;
mod support;
mod traced;
mod unwinders;
mod versions;
