//! A module's file: only for what the loader does not map (`.symtab`, `.gnu_debugdata`, the section table), and only
//! where it is the file that was mapped.

use crate::bytes::slice;
use crate::elf::{self, Header, PT_NOTE, Phdr, SHT_SYMTAB, Section};
use crate::symbols::Builder;
use crate::{Error, Mapping, debugdata};
use addr::Avma;

/// Gives the bytes of modules' files.
pub trait Files {
    /// The whole file that this mapping (the module's first) is of; `None` where it is not to be had. A wrong file does no
    /// harm: it is compared with what is in memory.
    fn open(&self, mapping: &Mapping) -> Option<Vec<u8>>;
}

/// No files: memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Files for NoFiles {
    fn open(&self, _: &Mapping) -> Option<Vec<u8>> {
        None
    }
}

/// A file that was found to be the one in memory.
#[derive(Debug)]
pub(crate) struct ModuleFile<'a> {
    sections: Vec<Section<'a>>,
}

impl<'a> ModuleFile<'a> {
    /// Takes a file whose build-id, or without one whose program headers, are those in memory.
    ///
    /// # Errors
    /// [`Error::FileDiffers`], or what is wrong with the file.
    pub fn verified(bytes: &'a [u8], build_id: Option<&[u8]>, in_memory: &[Phdr]) -> Result<Self, Error> {
        let bad = |what| Error::BadFile { what };
        let header: Header = elf::header(bytes, Avma(0)).map_err(|_| bad("no ELF file for x86-64"))?;
        let table = slice(bytes, header.phoff, header.phdrs_len())
            .ok_or_else(|| bad("program headers outside the file"))?;
        let phdrs = elf::phdrs(table);
        let same = match build_id {
            Some(id) => phdrs
                .iter()
                .filter(|p| p.kind == PT_NOTE)
                .filter_map(|p| elf::build_id(slice(bytes, p.offset, p.filesz)?))
                .any(|i| i == id),
            None => phdrs == in_memory,
        };
        if !same {
            return Err(Error::FileDiffers);
        }
        Ok(ModuleFile { sections: elf::sections(bytes, &header)? })
    }

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// Adds the symbols of `.symtab` and `.gnu_debugdata`.
    ///
    /// # Errors
    /// [`Error::BadDebugData`] or [`Error::BadFile`]; `.symtab` has been added by then.
    pub fn symbols(&self, out: &mut Builder) -> Result<(), Error> {
        symtab(&self.sections, out);
        let Some(packed) = self.section(".gnu_debugdata").filter(|s| !s.data.is_empty()) else {
            return Ok(());
        };
        let inner = debugdata::unpack(packed.data)?;
        let header = elf::header(&inner, Avma(0))
            .map_err(|_| Error::BadDebugData { what: "no ELF file for x86-64 inside".to_owned() })?;
        symtab(&elf::sections(&inner, &header)?, out);
        Ok(())
    }
}

fn symtab(sections: &[Section<'_>], out: &mut Builder) {
    for s in sections.iter().filter(|s| s.kind == SHT_SYMTAB) {
        let strings = usize::try_from(s.link).ok().and_then(|i| sections.get(i));
        if let Some(strings) = strings {
            out.table(s.data, strings.data);
        }
    }
}
