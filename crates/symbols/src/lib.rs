//! Names and tables of clones for debuggers and profilers.
//!
//! The input is the ranges and names of code that no file describes, and the code's frame tables. The output
//! is the bytes of a symbol file for debuggers, of a perf map and of a jitdump. This crate touches no process
//! and no file.
#![forbid(unsafe_code)]

mod elf;
mod fragment;
mod jitdump;
mod perf_map;

pub use elf::symbol_file;
pub use fragment::{Fragment, Part};
pub use jitdump::{Loaded, jitdump};
pub use perf_map::perf_map;
