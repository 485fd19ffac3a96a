//! The modules of a process, read from its memory.
//!
//! The input is the text of `/proc/PID/maps`, the process's memory and, if available, the bytes of its files.
//! The output is each mapped ELF file with its segments, functions by `.eh_frame`, names, relocations, and
//! slots and stubs of the procedure linkage table. All addresses are addresses of the process. Code and
//! tables are read from memory, because only these run. A file on disk adds only names, and only if it is the
//! file that was mapped.
//!
//! All bytes are untrusted. No input causes a panic or an endless loop, and every size is checked before it
//! is used.
#![forbid(unsafe_code)]

pub mod auxv;
mod bytes;
mod debugdata;
mod dynamic;
mod elf;
mod error;
mod file;
mod frames;
mod identity;
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
pub use error::Error;
pub use file::{FileParts, Files, NoFiles};
pub use identity::{identity_of, is_derived};
pub use image::{Image, ModuleId, Skipped};
pub use maps::{Mapping, Perms};
pub use module::{Module, ModuleKind, Segment};
pub use plt::PltStub;
pub use relocs::{JumpSlot, Reloc, RelocKind};
pub use runtime::Runtime;
pub use symbols::{Symbol, SymbolKind, Symbols};
pub use vtables::{VtableSlot, vtable_slots};
