//! Files about clones for debuggers and profilers.

pub(crate) mod clone_symbols;
pub(crate) mod core_file;
pub(crate) mod gdb;
pub(crate) mod jitdump;
pub(crate) mod perf_map;
pub(crate) mod perf_place;
