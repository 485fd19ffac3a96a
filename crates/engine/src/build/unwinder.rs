//! Finds out whether a process contains code that unwinds by frame tables.
//!
//! An unwinder finds the tables of unregistered code by the type of a program header, `PT_GNU_EH_FRAME`.
//! libgcc's, LLVM's and the nongnu libunwind compare with that number, even in a stripped program. Neither a
//! C program on musl nor musl itself contains such code. Registered code (`__register_frame_info`) is found
//! by libgcc's unwinder, which contains the number as well.

use addr::ReadMemory;
use image::{Image, Module, ModuleKind};
use memchr::memmem;

/// `PT_GNU_EH_FRAME` as an immediate in an instruction.
pub(crate) const EH_FRAME_HEADER: [u8; 4] = 0x6474_e550u32.to_le_bytes();
/// The start of all names of the C++ ABI's unwinding interface.
const UNWIND: &str = "_Unwind_";

/// Returns whether code in some module may unwind; true if code cannot be read.
pub fn may_unwind(image: &Image, memory: &dyn ReadMemory) -> bool {
    let modules = image.modules().iter().filter(|m| m.kind != ModuleKind::Vdso);
    image.skipped().iter().any(|s| s.path.as_deref() != Some("[vdso]"))
        || modules.into_iter().any(|m| {
            m.symbols.with_prefix(UNWIND).is_some()
                || m.frames.fdes().iter().any(|f| f.personality.is_some())
                || has_number(image, m, memory)
        })
}

fn has_number(image: &Image, module: &Module, memory: &dyn ReadMemory) -> bool {
    image.exec_ranges(module).into_iter().any(|range| {
        // The program headers themselves contain the number; linkers that use one segment put them before the
        // code.
        let from = module
            .entry
            .filter(|_| range.start == module.extent.start)
            .map_or(range.start, |_| addr::Addr::add(range.start, HEADERS.min(range.len())));
        let code = memory.bytes(addr::AvmaRange::new(from, range.end));
        code.map_or(true, |bytes| memmem::find(&bytes, &EH_FRAME_HEADER).is_some())
    })
}

/// More bytes than a file header and any program's program headers take, and fewer than precede the code.
const HEADERS: u64 = 64 + 14 * 56;
