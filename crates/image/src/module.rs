//! One mapped ELF file.

use crate::dynamic::DynSyms;
use crate::{Error, JumpSlot, Perms, PltStub, Reloc, RelocKind, Symbols};
use addr::{Avma, AvmaRange, Bias, Svma};
use unwind::FrameTable;

/// A module's role.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ModuleKind {
    /// The program itself.
    Main,
    /// The dynamic loader (`PT_INTERP` of the program).
    Interpreter,
    /// A shared library.
    Library,
    /// The kernel's code in the process.
    Vdso,
}

/// One `PT_LOAD`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// Its memory, to the byte (mappings are whole pages).
    pub range: AvmaRange,
    /// Its part that comes from the file; the rest is zero at first.
    pub file_backed: AvmaRange,
    /// The rights its program header asks for; the live mapping's may differ.
    pub perms: Perms,
}

/// One ELF file as it is in memory. Whatever has an address has the process's.
#[derive(Debug)]
#[non_exhaustive]
pub struct Module {
    /// Its path by the memory map; `[vdso]` for the vDSO.
    pub path: Option<String>,
    /// Its file is gone or was replaced.
    pub deleted: bool,
    /// Its role.
    pub kind: ModuleKind,
    /// Position independent (`ET_DYN`), not linked to fixed addresses (`ET_EXEC`).
    pub pie: bool,
    /// A main program without an interpreter.
    pub static_exe: bool,
    /// What the loader added to stated addresses.
    pub bias: Bias,
    /// From the first to the last byte of its segments, whole pages. Gaps between segments belong to it: loaders reserve
    /// them.
    pub extent: AvmaRange,
    /// Its segments by rising address.
    pub segments: Vec<Segment>,
    /// What the loader makes read-only after relocation, whole pages as the loader counts them.
    pub relro: Option<AvmaRange>,
    /// Where the program is entered; `None` where the header states none.
    pub entry: Option<Avma>,
    /// The linker's build-id.
    pub build_id: Option<Vec<u8>>,
    /// `PT_INTERP`: the path of the dynamic loader.
    pub interpreter: Option<String>,
    /// `.eh_frame`, up to the end of the last entry that unwinders use.
    pub eh_frame: Option<AvmaRange>,
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<AvmaRange>,
    /// The functions by `.eh_frame`; empty where it could not be found or read.
    pub frames: FrameTable,
    /// Names.
    pub symbols: Symbols,
    /// Relocated words by rising address.
    pub relocations: Vec<Reloc>,
    /// Slots of the procedure linkage table.
    pub slots: Vec<JumpSlot>,
    /// Stubs of the procedure linkage table by rising address.
    pub plt: Vec<PltStub>,
    /// `DT_PLTGOT`: the table of the slots.
    pub plt_got: Option<Avma>,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// `DT_NEEDED`, in the order of the file.
    pub needed: Vec<String>,
    /// All slots are filled before the program starts (`-z now`).
    pub bind_now: bool,
    /// Never unloaded: marked `DF_1_NODELETE`, or the program, its loader, the vDSO, or a library that the program needs
    /// (directly or through others), which glibc keeps for ever. Preloaded libraries stay too, but nothing in memory
    /// tells them from opened ones, so they count as unloadable.
    pub nodelete: bool,
    /// Parts that could not be read; those parts are empty.
    pub faults: Vec<Error>,
    pub(crate) dynsyms: DynSyms,
}

impl Module {
    /// The file name of its path.
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.path.as_deref().and_then(|p| p.rsplit('/').next())
    }

    /// Whether `DT_NEEDED` or `PT_INTERP` of another module, `name`, means this one: by soname or by file name.
    #[must_use]
    pub fn answers_to(&self, name: &str) -> bool {
        let base = name.rsplit('/').next();
        self.soname.as_deref() == Some(name)
            || (base.is_some() && (base == self.file_name() || base == self.soname.as_deref()))
    }

    /// The segment that holds an address.
    #[must_use]
    pub fn segment_of(&self, at: Avma) -> Option<&Segment> {
        self.segments.iter().find(|s| s.range.contains(at))
    }

    /// The name of the symbol that a relocation binds to.
    #[must_use]
    pub fn symbol_of(&self, reloc: &Reloc) -> Option<&str> {
        (reloc.symbol != 0).then(|| self.dynsyms.name(reloc.symbol)).flatten()
    }

    /// The word of the dynamic symbol table that holds the stated address of an exported name, by which other modules bind
    /// to it.
    #[must_use]
    pub fn export_word(&self, name: &str) -> Option<Avma> {
        let exported = self.symbols.exported(name)?;
        let mut all = self.dynsyms.iter().filter(|(i, s)| {
            s.shndx != 0 && self.bias.avma(Svma(s.value)) == exported && self.dynsyms.name(*i) == Some(name)
        });
        all.next().map(|(i, _)| self.dynsyms.value_at(i))
    }

    /// The relocation of the word at `at`.
    #[must_use]
    pub fn relocation_at(&self, at: Avma) -> Option<&Reloc> {
        let i = self.relocations.partition_point(|r| r.at < at);
        self.relocations.get(i).filter(|r| r.at == at)
    }

    /// The resolver functions of this module's ifuncs, with the words they fill.
    pub fn ifuncs(&self) -> impl Iterator<Item = (Avma, Avma)> {
        self.relocations.iter().filter_map(|r| match r.kind {
            RelocKind::Irelative(resolver) => Some((r.at, resolver)),
            _ => None,
        })
    }

    /// The stub that holds an address.
    #[must_use]
    pub fn stub_at(&self, at: Avma) -> Option<&PltStub> {
        let i = self.plt.partition_point(|s| s.range.end <= at);
        self.plt.get(i).filter(|s| s.range.contains(at))
    }
}
