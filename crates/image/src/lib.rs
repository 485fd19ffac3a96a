//! What is loaded: the modules of a process, read from its memory.
//!
//! You give the text of `/proc/PID/maps`, the process's memory and (if to be had) its files' bytes; it gives each mapped ELF
//! file with its segments, functions by `.eh_frame`, names, relocations, slots and stubs of the procedure linkage table.
//! Everything has process addresses. Code and tables are taken from memory, where they are what really runs; a file on disk
//! adds only names, and only if it is the very file that was mapped.
//!
//! All bytes are foreign: nothing here panics on them, loops on them or believes a size before checking it.
#![forbid(unsafe_code)]

pub mod auxv;
mod build_id;
mod bytes;
mod debugdata;
mod dynamic;
mod elf;
mod error;
mod file;
mod frames;
mod image;
mod load;
pub mod maps;
mod module;
mod plt;
mod relocs;
pub mod runtime;
mod symbols;
mod vtables;

pub use auxv::MainHint;
pub use build_id::build_id_of;
pub use error::Error;
pub use file::{FileParts, Files, NoFiles};
pub use image::{Image, Skipped};
pub use maps::{Mapping, Perms};
pub use module::{Module, ModuleKind, Segment};
pub use plt::PltStub;
pub use relocs::{JumpSlot, Reloc, RelocKind};
pub use runtime::Runtime;
pub use symbols::{Symbol, SymbolKind, Symbols};
pub use vtables::{VtableSlot, vtable_slots};
