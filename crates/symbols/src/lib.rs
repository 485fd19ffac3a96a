//! Names and tables of clones for debuggers and profilers.
//!
//! The input is the ranges and names of code that no file describes, and the code's frame tables. The output
//! is the bytes of a symbol file for debuggers, of a perf map and of a jitdump. For a code cache it is also
//! the ELF header, symbols and sections that make the cache a file. This crate touches no process and no
//! file.
#![forbid(unsafe_code)]

mod code_file;
mod elf;
mod fragment;
mod jitdump;
mod perf_map;

pub use code_file::{CLONES_MARK, CodeFile, HEAD, file_ends};
pub use elf::symbol_file;
pub use fragment::{Fragment, Part};
pub use jitdump::{Loaded, jitdump};
pub use perf_map::perf_map;
