//! The fixed parts of an ELF file (System V gABI, chapters 4 and 5): header, program headers, notes and
//! sections, from memory or from a file's bytes.
//!
//! Why not the crate `object`: its readers return references into data that is all there, from the first byte
//! on. Here each table is fetched from a process, where any page can be missing, or by [`FileParts`]. Of
//! `object`, only the layouts of structures would remain, and the limits below are needed in any case. The tests
//! compare symbols and sections with those of `object`.

use crate::bytes::{array, u16_at, u32_at, u64_at};
use crate::{Error, FileParts};
use addr::Avma;

pub(crate) const ET_EXEC: u16 = 2;
pub(crate) const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;

pub(crate) const PT_LOAD: u32 = 1;
pub(crate) const PT_DYNAMIC: u32 = 2;
pub(crate) const PT_INTERP: u32 = 3;
pub(crate) const PT_NOTE: u32 = 4;
pub(crate) const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
pub(crate) const PT_GNU_RELRO: u32 = 0x6474_e552;

pub(crate) const PF_X: u32 = 1;
pub(crate) const PF_W: u32 = 2;
pub(crate) const PF_R: u32 = 4;

/// The size of the ELF header. Bytes.
pub(crate) const EHDR: usize = 64;
/// The size of one program header. Bytes.
const PHDR: usize = 56;
/// The most program headers that are accepted: more than any linker writes.
const MAX_PHDRS: u16 = 4096;

/// The fields of the ELF header that are needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// `ET_EXEC` or `ET_DYN`.
    pub kind: u16,
    pub entry: u64,
    pub phoff: u64,
    pub phnum: u16,
    pub shoff: u64,
    pub shnum: u16,
    pub shstrndx: u16,
}

/// One program header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Phdr {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub vaddr: u64,
    pub filesz: u64,
    pub memsz: u64,
}

/// Returns whether these are the first bytes of an ELF file of any kind.
pub(crate) fn is_elf(b: &[u8]) -> bool {
    b.starts_with(b"\x7fELF")
}

/// Returns whether this is the ELF header of a code cache: whet's mark is in the bytes that the format leaves
/// unused (`symbols::CLONES_MARK`).
pub(crate) fn is_of_clones(b: &[u8]) -> bool {
    b.get(12..16) == Some(b"whet")
}

/// Parses the ELF header. `at` is only for the error.
pub(crate) fn header(b: &[u8], at: Avma) -> Result<Header, Error> {
    let bad = |what| Error::BadElf { at, what };
    if !is_elf(b) {
        return Err(bad("no ELF header"));
    }
    match b.get(4) {
        Some(2) => {}
        Some(1) => return Err(Error::Unsupported32Bit { at }),
        _ => return Err(bad("unknown ELF class")),
    }
    match b.get(5) {
        Some(1) => {}
        Some(2) => return Err(Error::UnsupportedByteOrder { at }),
        _ => return Err(bad("unknown byte order")),
    }
    let short = || bad("a cut-off ELF header");
    let machine = u16_at(b, 18).ok_or_else(short)?;
    if machine != EM_X86_64 {
        return Err(Error::UnsupportedMachine { at, machine });
    }
    let h = Header {
        kind: u16_at(b, 16).ok_or_else(short)?,
        entry: u64_at(b, 24).ok_or_else(short)?,
        phoff: u64_at(b, 32).ok_or_else(short)?,
        shoff: u64_at(b, 40).ok_or_else(short)?,
        phnum: u16_at(b, 56).ok_or_else(short)?,
        shnum: u16_at(b, 60).ok_or_else(short)?,
        shstrndx: u16_at(b, 62).ok_or_else(short)?,
    };
    if h.kind != ET_EXEC && h.kind != ET_DYN {
        return Err(bad("neither a program nor a shared object"));
    }
    let phentsize = u16_at(b, 54).ok_or_else(short)?;
    if h.phnum == 0 || h.phnum > MAX_PHDRS || usize::from(phentsize) != PHDR {
        return Err(bad("no sensible program headers"));
    }
    Ok(h)
}

impl Header {
    /// Returns the size of the program header table. Bytes.
    pub fn phdrs_len(&self) -> u64 {
        u64::from(self.phnum) * PHDR as u64
    }
}

/// Parses a table of program headers.
pub(crate) fn phdrs(table: &[u8]) -> Vec<Phdr> {
    table.chunks_exact(PHDR).filter_map(phdr).collect()
}

fn phdr(b: &[u8]) -> Option<Phdr> {
    Some(Phdr {
        kind: u32_at(b, 0)?,
        flags: u32_at(b, 4)?,
        offset: u64_at(b, 8)?,
        vaddr: u64_at(b, 16)?,
        filesz: u64_at(b, 32)?,
        memsz: u64_at(b, 40)?,
    })
}

/// Returns the build-id from the bytes of a note segment, if they contain one: note type 3 of owner `GNU`.
pub(crate) fn build_id(notes: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0usize;
    loop {
        let name_len = usize::try_from(u32_at(notes, at)?).ok()?;
        let desc_len = usize::try_from(u32_at(notes, at.checked_add(4)?)?).ok()?;
        let kind = u32_at(notes, at.checked_add(8)?)?;
        let name_at = at.checked_add(12)?;
        let desc_at = name_at.checked_add(name_len.checked_next_multiple_of(4)?)?;
        let desc = notes.get(desc_at..desc_at.checked_add(desc_len)?)?;
        if kind == 3 && name_len == 4 && array(notes, name_at) == Some(*b"GNU\0") && desc_len > 0 {
            return Some(desc.to_vec());
        }
        at = desc_at.checked_add(desc_len.checked_next_multiple_of(4)?)?;
    }
}

/// One section header, with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Section {
    pub name: String,
    pub kind: u32,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
}

impl Section {
    /// Returns the section's bytes. Returns no bytes if the section has none in the file, or if its header
    /// names bytes outside the file.
    pub fn data(&self, file: &dyn FileParts) -> Vec<u8> {
        let in_file = self.kind != SHT_NOBITS;
        in_file.then(|| file.part(self.offset, self.size)).flatten().unwrap_or_default()
    }
}

pub(crate) const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const SHDR: u64 = 64;
/// The longest section name that is kept, in bytes. No section that is searched for has a longer name.
const MAX_SECTION_NAME: usize = 64;

/// Returns the sections of a file; a file without a section table has none.
///
/// # Errors
/// Returns [`Error::BadFile`] if the section table lies outside the file.
pub(crate) fn sections(file: &dyn FileParts, h: &Header) -> Result<Vec<Section>, Error> {
    if h.shoff == 0 || h.shnum == 0 {
        return Ok(Vec::new());
    }
    let bad = || Error::BadFile { what: "a section table outside the file" };
    let table = file.part(h.shoff, u64::from(h.shnum) * SHDR).ok_or_else(bad)?;
    let section = |b: &[u8]| {
        Some(Section {
            name: String::new(),
            kind: u32_at(b, 4)?,
            addr: u64_at(b, 16)?,
            offset: u64_at(b, 24)?,
            size: u64_at(b, 32)?,
            link: u32_at(b, 40)?,
        })
    };
    let mut sections: Vec<Section> = table.chunks_exact(64).filter_map(section).collect();
    let names = sections.get(usize::from(h.shstrndx)).map_or(Vec::new(), |s| s.data(file));
    for (s, header) in sections.iter_mut().zip(table.chunks_exact(64)) {
        let at = u32_at(header, 0).and_then(|n| usize::try_from(n).ok());
        let name = at.and_then(|n| crate::bytes::c_str(&names, n)).filter(|n| n.len() <= MAX_SECTION_NAME);
        s.name = name.unwrap_or("").to_owned();
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut b = Vec::new();
        b.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
        b.extend(u32::try_from(desc.len()).unwrap().to_le_bytes());
        b.extend(kind.to_le_bytes());
        b.extend(name);
        b.resize(b.len().next_multiple_of(4), 0);
        b.extend(desc);
        b.resize(b.len().next_multiple_of(4), 0);
        b
    }

    #[test]
    fn build_id_among_other_notes() {
        let mut n = note(b"GNU\0", 5, &[1; 16]);
        n.extend(note(b"stapsdt\0", 3, &[2; 5]));
        assert_eq!(build_id(&n), None);
        n.extend(note(b"GNU\0", 3, &[7; 20]));
        assert_eq!(build_id(&n), Some(vec![7; 20]));
        n.pop();
        assert_eq!(build_id(&n), None);
        assert_eq!(build_id(&[0xff; 64]), None);
    }

    #[test]
    fn other_machines_have_their_own_errors() {
        let mut b = std::fs::read("/proc/self/exe").unwrap();
        assert!(header(&b, Avma(0)).is_ok());
        b[18] = 183;
        assert!(matches!(header(&b, Avma(0)), Err(Error::UnsupportedMachine { machine: 183, .. })));
        b[5] = 2;
        assert!(matches!(header(&b, Avma(0)), Err(Error::UnsupportedByteOrder { .. })));
        b[4] = 1;
        assert!(matches!(header(&b, Avma(0)), Err(Error::Unsupported32Bit { .. })));
        assert!(header(&b[..3], Avma(0)).is_err());
    }
}
