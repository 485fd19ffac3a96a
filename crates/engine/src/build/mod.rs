//! How clones get into a target: code caches, redirects, unwinders, limits of memory.

pub(crate) mod caches;
pub(crate) mod clones;
pub(crate) mod code_files;
pub(crate) mod direct;
pub(crate) mod file_text;
pub(crate) mod installer;
pub(crate) mod lookup;
pub(crate) mod map_store;
pub(crate) mod memory_limit;
pub(crate) mod places;
pub(crate) mod reach_group;
pub(crate) mod redirects;
pub(crate) mod round;
pub(crate) mod space;
mod stages;
pub(crate) mod unbound;
pub(crate) mod unloadable;
pub(crate) mod unwind_hooks;
pub(crate) mod unwinder;
