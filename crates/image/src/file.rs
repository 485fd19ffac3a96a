//! A module's file. It is used only for data that the loader does not map (`.symtab`, `.gnu_debugdata`, the
//! section table), and only if it is the file that was mapped.

use crate::bytes::slice;
use crate::elf::{self, EHDR, Header, PT_NOTE, Phdr, SHT_SYMTAB, Section};
use crate::symbols::Builder;
use crate::{Error, Mapping, debugdata};
use addr::Avma;

/// A file that is read in parts: a server's file has tens of megabytes, and little of it is needed.
pub trait FileParts {
    /// Returns `len` bytes from offset `from`; `None` if the file has fewer bytes there or they cannot be
    /// read.
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>>;
}

impl FileParts for Vec<u8> {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        slice(self, from, len).map(<[u8]>::to_vec)
    }
}

/// A source of modules' files.
pub trait Files {
    /// Opens the file of a mapping, the module's first; returns `None` if the file is not available. A wrong
    /// file does no harm, because the file is compared with the module in memory.
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>>;
}

/// A source without files: modules are read from memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn open(&self, _: &Mapping) -> Option<Box<dyn FileParts>> {
        None
    }
}

/// A file that has been found to be the file in memory.
pub(crate) struct ModuleFile {
    file: Box<dyn FileParts>,
    sections: Vec<Section>,
}

impl ModuleFile {
    /// Accepts a file with the same build-id as the module in memory. For a module without a build-id, the
    /// program headers must be the same.
    ///
    /// # Errors
    /// Returns [`Error::FileDiffers`] for another file, and [`Error::BadFile`] for a damaged one.
    pub fn verified(
        file: Box<dyn FileParts>,
        build_id: Option<&[u8]>,
        in_memory: &[Phdr],
    ) -> Result<Self, Error> {
        let bad = |what| Error::BadFile { what };
        let header = header(&*file).ok_or_else(|| bad("no ELF file for x86-64"))?;
        let table = file
            .part(header.phoff, header.phdrs_len())
            .ok_or_else(|| bad("program headers outside the file"))?;
        let phdrs = elf::phdrs(&table);
        let same = match build_id {
            Some(id) => phdrs
                .iter()
                .filter(|p| p.kind == PT_NOTE)
                .filter_map(|p| elf::build_id(&file.part(p.offset, p.filesz)?))
                .any(|i| i == id),
            None => phdrs == in_memory,
        };
        if !same {
            return Err(Error::FileDiffers);
        }
        let sections = elf::sections(&*file, &header)?;
        Ok(ModuleFile { file, sections })
    }

    /// Returns the section with this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Returns the bytes of the section with this name; empty if there are none.
    pub fn data(&self, name: &str) -> Vec<u8> {
        self.section(name).map_or(Vec::new(), |s| s.data(&*self.file))
    }

    /// Adds the symbols of `.symtab` and `.gnu_debugdata`.
    ///
    /// # Errors
    /// Returns [`Error::BadDebugData`] or [`Error::BadFile`]. The symbols of `.symtab` have been added by
    /// then.
    pub fn symbols(&self, out: &mut Builder) -> Result<(), Error> {
        symtab(&*self.file, &self.sections, out);
        let packed = self.data(".gnu_debugdata");
        if packed.is_empty() {
            return Ok(());
        }
        let inner = debugdata::unpack(&packed)?;
        let header = header(&inner)
            .ok_or_else(|| Error::BadDebugData { what: "no ELF file for x86-64 inside".to_owned() })?;
        symtab(&inner, &elf::sections(&inner, &header)?, out);
        Ok(())
    }
}

fn header(file: &dyn FileParts) -> Option<Header> {
    elf::header(&file.part(0, EHDR as u64)?, Avma(0)).ok()
}

fn symtab(file: &dyn FileParts, sections: &[Section], out: &mut Builder) {
    for s in sections.iter().filter(|s| s.kind == SHT_SYMTAB) {
        let strings = usize::try_from(s.link).ok().and_then(|i| sections.get(i));
        if let Some(strings) = strings {
            out.table(&s.data(file), &strings.data(file));
        }
    }
}
