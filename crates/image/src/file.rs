//! A module's file: only for what the loader does not map (`.symtab`, `.gnu_debugdata`, the section table), and only
//! where it is the file that was mapped.

use crate::bytes::slice;
use crate::elf::{self, EHDR, Header, PT_NOTE, Phdr, SHT_SYMTAB, Section};
use crate::symbols::Builder;
use crate::{Error, Mapping, debugdata};
use addr::Avma;

/// A file that is read in parts: a server's is tens of megabytes, and little of it is needed.
pub trait FileParts {
    /// `len` bytes from an offset on; `None` where it has fewer or they cannot be read.
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>>;
}

impl FileParts for Vec<u8> {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        slice(self, from, len).map(<[u8]>::to_vec)
    }
}

/// Gives modules' files.
pub trait Files {
    /// The file that this mapping (the module's first) is of; `None` where it is not to be had. A wrong file does no
    /// harm: it is compared with what is in memory.
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>>;
}

/// No files: memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn open(&self, _: &Mapping) -> Option<Box<dyn FileParts>> {
        None
    }
}

/// A file that was found to be the one in memory.
pub(crate) struct ModuleFile {
    file: Box<dyn FileParts>,
    sections: Vec<Section>,
}

impl ModuleFile {
    /// Takes a file whose build-id, or without one whose program headers, are those in memory.
    ///
    /// # Errors
    /// [`Error::FileDiffers`], or what is wrong with the file.
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

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// The bytes of a section of this name; empty where there are none.
    pub fn data(&self, name: &str) -> Vec<u8> {
        self.section(name).map_or(Vec::new(), |s| s.data(&*self.file))
    }

    /// Adds the symbols of `.symtab` and `.gnu_debugdata`.
    ///
    /// # Errors
    /// [`Error::BadDebugData`] or [`Error::BadFile`]; `.symtab` has been added by then.
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
