//! Is there code in a process that unwinds by frame tables?
//!
//! An unwinder finds the tables of code that it was not told of by the type of a program header, `PT_GNU_EH_FRAME`: libgcc's,
//! LLVM's and the nongnu libunwind compare with that number, be it in a stripped program. A C program on musl has no
//! such code, and its C library neither. Code registered by hand (`__register_frame_info`) is looked up by libgcc's, which has
//! the number as well.

use addr::ReadMemory;
use image::{Image, Module, ModuleKind};
use memchr::memmem;

/// `PT_GNU_EH_FRAME` as it stands in an instruction.
pub(crate) const EH_FRAME_HEADER: [u8; 4] = 0x6474_e550u32.to_le_bytes();
/// The start of all names of the C++ ABI's unwinding interface.
const UNWIND: &str = "_Unwind_";

/// Whether code in some module may unwind. Of code that cannot be read it is assumed.
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
        // The program headers themselves have the number; linkers that put all in one segment have them before the code.
        let from = module
            .entry
            .filter(|_| range.start == module.extent.start)
            .map_or(range.start, |_| addr::Addr::add(range.start, HEADERS.min(range.len())));
        let code = memory.bytes(addr::AvmaRange::new(from, range.end));
        code.map_or(true, |bytes| memmem::find(&bytes, &EH_FRAME_HEADER).is_some())
    })
}

/// More than a file header and the program headers of any program take, and less than comes before code. Bytes.
const HEADERS: u64 = 64 + 14 * 56;
