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
    /// The code that the kernel maps into each process.
    Vdso,
}

/// One `PT_LOAD`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// Its memory, exact to the byte (mappings are whole pages).
    pub range: AvmaRange,
    /// The part that comes from the file; the rest is zero at first.
    pub file_backed: AvmaRange,
    /// The rights in its program header. The rights of the live mapping may differ.
    pub perms: Perms,
}

/// One ELF file as it is in memory. All addresses are addresses of the process.
#[derive(Debug)]
#[non_exhaustive]
pub struct Module {
    /// Its path in the memory map; `[vdso]` for the vDSO.
    pub path: Option<String>,
    /// Whether its file was deleted or replaced.
    pub deleted: bool,
    /// Its role.
    pub kind: ModuleKind,
    /// Whether it is position independent (`ET_DYN`) rather than linked to fixed addresses (`ET_EXEC`).
    pub pie: bool,
    /// Whether it is a main program without an interpreter.
    pub static_exe: bool,
    /// The value that the loader added to stated addresses.
    pub bias: Bias,
    /// The range from the first to the last byte of its segments, in whole pages. Gaps between segments
    /// belong to it, because loaders reserve them.
    pub extent: AvmaRange,
    /// Its segments by rising address.
    pub segments: Vec<Segment>,
    /// The range that the loader makes read-only after relocation, in whole pages, rounded as the loader
    /// does.
    pub relro: Option<AvmaRange>,
    /// The program's entry point; `None` if the header states none.
    pub entry: Option<Avma>,
    /// The linker's build-id.
    pub build_id: Option<Vec<u8>>,
    /// For a module without a build-id: an id derived from its headers and its functions' addresses. `None` if
    /// these cannot be read.
    pub derived_id: Option<Vec<u8>>,
    /// `PT_INTERP`: the path of the dynamic loader.
    pub interpreter: Option<String>,
    /// The range of `.eh_frame`, up to the end of the last entry that unwinders use.
    pub eh_frame: Option<AvmaRange>,
    /// The range of `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<AvmaRange>,
    /// The functions according to `.eh_frame`; empty if it could not be found or read.
    pub frames: FrameTable,
    /// Its symbols.
    pub symbols: Symbols,
    /// Relocated words by rising address.
    pub relocations: Vec<Reloc>,
    /// Slots of the procedure linkage table.
    pub slots: Vec<JumpSlot>,
    /// Stubs of the procedure linkage table by rising address.
    pub plt: Vec<PltStub>,
    /// `DT_PLTGOT`: the address of the slots' table.
    pub plt_got: Option<Avma>,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// `DT_NEEDED`, in the order of the file.
    pub needed: Vec<String>,
    /// Whether all slots are filled before the program starts (`-z now`).
    pub bind_now: bool,
    /// Whether it is never unloaded. This holds for modules marked `DF_1_NODELETE`, the program, its loader,
    /// the vDSO, and libraries that the program needs (directly or through others), which glibc always keeps.
    /// Preloaded libraries stay as well, but nothing in memory distinguishes them from libraries opened
    /// later, so they count as unloadable.
    pub nodelete: bool,
    /// The errors of parts that could not be read. These parts are empty.
    pub faults: Vec<Error>,
    pub(crate) dynsyms: DynSyms,
}

impl Module {
    /// Returns what identifies the build: the build-id, or the derived id.
    #[must_use]
    pub fn identity(&self) -> Option<&[u8]> {
        self.build_id.as_deref().or(self.derived_id.as_deref())
    }

    /// Returns the file name of its path.
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        self.path.as_deref().and_then(|p| p.rsplit('/').next())
    }

    /// Returns whether `name`, from `DT_NEEDED` or `PT_INTERP` of another module, means this module. Compares
    /// it with the soname and the file name.
    #[must_use]
    pub fn answers_to(&self, name: &str) -> bool {
        let base = name.rsplit('/').next();
        self.soname.as_deref() == Some(name)
            || (base.is_some() && (base == self.file_name() || base == self.soname.as_deref()))
    }

    /// Returns the segment at an address.
    #[must_use]
    pub fn segment_of(&self, at: Avma) -> Option<&Segment> {
        self.segments.iter().find(|s| s.range.contains(at))
    }

    /// Returns the name of the symbol to which a relocation binds.
    #[must_use]
    pub fn symbol_of(&self, reloc: &Reloc) -> Option<&str> {
        (reloc.symbol != 0).then(|| self.dynsyms.name(reloc.symbol)).flatten()
    }

    /// Returns the address of the word of the dynamic symbol table that holds the stated address of an
    /// exported name. Other modules bind to the name by this word.
    #[must_use]
    pub fn export_word(&self, name: &str) -> Option<Avma> {
        let exported = self.symbols.exported(name)?;
        let mut all = self.dynsyms.iter().filter(|(i, s)| {
            s.shndx != 0 && self.bias.avma(Svma(s.value)) == exported && self.dynsyms.name(*i) == Some(name)
        });
        all.next().map(|(i, _)| self.dynsyms.value_at(i))
    }

    /// Returns the relocation of the word at `at`.
    #[must_use]
    pub fn relocation_at(&self, at: Avma) -> Option<&Reloc> {
        let i = self.relocations.partition_point(|r| r.at < at);
        self.relocations.get(i).filter(|r| r.at == at)
    }

    /// Returns the ifuncs of this module: for each, the word that is filled and the resolver function.
    pub fn ifuncs(&self) -> impl Iterator<Item = (Avma, Avma)> {
        self.relocations.iter().filter_map(|r| match r.kind {
            RelocKind::Irelative(resolver) => Some((r.at, resolver)),
            _ => None,
        })
    }

    /// Returns the stub at an address.
    #[must_use]
    pub fn stub_at(&self, at: Avma) -> Option<&PltStub> {
        let i = self.plt.partition_point(|s| s.range.end <= at);
        self.plt.get(i).filter(|s| s.range.contains(at))
    }
}
