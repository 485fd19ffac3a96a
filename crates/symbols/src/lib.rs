//! What do debuggers and profilers have to know of clones?
//!
//! You give the ranges and names of code that no file describes, and its frame tables; it gives the bytes of a symbol file
//! for debuggers, of a perf map and of a jitdump. No process, no file.
#![forbid(unsafe_code)]

mod elf;
mod fragment;
mod jitdump;
mod perf_map;

pub use elf::symbol_file;
pub use fragment::{Fragment, Part};
pub use jitdump::{Loaded, jitdump};
pub use perf_map::perf_map;
