//! What identifies a build of a module: the linker's build-id, or for a module that has none (a linker writes
//! it only when asked, and MariaDB's and MySQL's own builds did not ask for years) an id derived from its
//! content.
//!
//! A derived id is for comparison only. No debuginfod server knows it, and two builds that differ in
//! constants alone may share it.

use crate::elf::{self, Header, PT_GNU_EH_FRAME, Phdr};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most bytes that are read of one note segment, and of the program headers.
const MOST: u64 = 64 << 10;
/// The most bytes of a table of functions that are read. That of a program with two million functions is
/// smaller.
pub(crate) const MOST_TABLE: u64 = 16 << 20;
/// The first bytes of a derived id, which tell it from a linker's.
const MARK: [u8; 4] = *b"whet";

/// Returns the identity of an ELF file, equal to [`crate::Module::identity`] of a process that has mapped it.
/// Returns `None` if it is not an x86-64 ELF file, or cannot be read.
#[must_use]
pub fn identity_of(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let part = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let header = elf::header(&part(0, elf::EHDR as u64)?, addr::Avma(0)).ok()?;
    let phdrs = elf::phdrs(&part(header.phoff, header.phdrs_len().min(MOST))?);
    let mut notes = phdrs.iter().filter(|p| p.kind == elf::PT_NOTE);
    let build_id = notes.find_map(|p| elf::build_id(&part(p.offset, p.filesz.min(MOST))?));
    build_id.or_else(|| derived(&header, &phdrs, |table| part(table.offset, table.filesz)))
}

/// Returns an id derived from the entry point, the program headers and `.eh_frame_hdr`, which has the address
/// of every function: no instruction can become longer or shorter without a change there. Nothing in these
/// bytes depends on the process, and neither stripping nor probes change them. `read` returns the bytes of a
/// segment. Returns `None` if they cannot be read.
pub(crate) fn derived(
    header: &Header,
    phdrs: &[Phdr],
    read: impl FnOnce(&Phdr) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut hash = Sha256::new();
    hash.update(header.entry.to_le_bytes());
    for p in phdrs {
        // File offsets are left out: stripping may change them.
        for field in [p.kind.into(), p.flags.into(), p.vaddr, p.filesz, p.memsz] {
            hash.update(u64::to_le_bytes(field));
        }
    }
    if let Some(table) = phdrs.iter().find(|p| p.kind == PT_GNU_EH_FRAME && p.filesz <= MOST_TABLE) {
        hash.update(read(table)?);
    }
    Some([&MARK, &hash.finalize()[..16]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_files() {
        // By default the compiler gives every program a build-id, and the shell of this machine has one.
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(identity_of(&shell).map(|id| id.len()), Some(20));
        assert_eq!(identity_of(Path::new("/etc/passwd")), None);
        assert_eq!(identity_of(Path::new("/nowhere")), None);
        assert_eq!(identity_of(Path::new("/dev/null")), None);
    }

    #[test]
    fn what_a_derived_id_depends_on() {
        let header = Header { kind: 3, entry: 1, phoff: 64, phnum: 1, shoff: 9, shnum: 9, shstrndx: 9 };
        let table = Phdr { kind: PT_GNU_EH_FRAME, flags: 4, offset: 8, vaddr: 8, filesz: 3, memsz: 3 };
        let id = |h: &Header, p: &Phdr, bytes: &[u8]| derived(h, &[*p], |_| Some(bytes.to_vec()));
        let one = id(&header, &table, b"abc");
        assert!(one.as_ref().is_some_and(|id| id.starts_with(b"whet") && id.len() == 20), "{one:?}");
        for other in [
            id(&Header { entry: 2, ..header }, &table, b"abc"),
            id(&header, &Phdr { memsz: 4, ..table }, b"abc"),
            id(&header, &table, b"abd"),
            id(&header, &Phdr { kind: elf::PT_LOAD, ..table }, b"abc"),
            derived(&header, &[table], |_| None),
        ] {
            assert_ne!(other, one);
        }
        // As a stripped copy has it.
        let stripped = (Header { shoff: 0, shnum: 0, shstrndx: 0, ..header }, Phdr { offset: 16, ..table });
        assert_eq!(id(&stripped.0, &stripped.1, b"abc"), one);
    }
}
