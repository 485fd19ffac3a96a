//! What identifies a build of a module: the linker's build-id, or for a module that has none an id derived from its
//! headers. (A linker writes a build-id only when asked; old builds of MariaDB and MySQL have none.)
//!
//! A derived id is for comparison only. No debuginfod server knows it. Builds that differ only in constants or in
//! instructions of the same length may share it; they have nearly all functions in common.

use crate::elf::{self, Header, PT_GNU_EH_FRAME, PT_LOAD, PT_NOTE, Phdr};
use crate::frames::MOST_TABLE;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most bytes that are read of one note segment.
const MOST_NOTES: u64 = 1 << 20;
/// The first bytes of a derived id, which tell it from a linker's.
const MARK: [u8; 4] = *b"whet";
/// The size of a derived id. Bytes.
const LEN: usize = 20;

/// Returns whether an id is a derived one, not a linker's.
#[must_use]
pub fn is_derived(id: &[u8]) -> bool {
    id.len() == LEN && id.starts_with(&MARK)
}

/// Returns the identity of an ELF file, equal to [`crate::Module::identity()`] of a process that has mapped it. Returns
/// `None` if it is not an x86-64 ELF file, or cannot be read.
#[must_use]
pub fn identity_of(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let part = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let header = elf::header(&part(0, elf::EHDR as u64)?, addr::Avma(0)).ok()?;
    let phdrs = elf::phdrs(&part(header.phoff, header.phdrs_len())?);
    let read = |p: &Phdr| part(p.offset, p.filesz);
    build_id(&phdrs, read).or_else(|| derived(&header, &phdrs, read))
}

/// Returns the linker's build-id. `read` returns the bytes that the file has for a segment.
pub(crate) fn build_id(phdrs: &[Phdr], read: impl Fn(&Phdr) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let notes = phdrs.iter().filter(|p| p.kind == PT_NOTE && p.filesz <= MOST_NOTES && is_loaded(p, phdrs));
    notes.filter_map(read).find_map(|bytes| elf::build_id(&bytes))
}

/// Returns an id derived from the entry point, the program headers and `.eh_frame_hdr`, which has the address at which
/// each function begins. Nothing in these bytes depends on the process, and neither stripping nor probes change them.
/// `read` returns the bytes that the file has for a segment. Returns `None` if they cannot be read.
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
    let is_table =
        |p: &&Phdr| p.kind == PT_GNU_EH_FRAME && (1..=MOST_TABLE).contains(&p.filesz) && is_loaded(p, phdrs);
    if let Some(table) = phdrs.iter().find(is_table) {
        hash.update(read(table)?);
    }
    Some([&MARK, &hash.finalize()[..LEN - MARK.len()]].concat())
}

/// Returns whether memory has the same bytes for a segment as the file. This holds inside a loaded segment that is not
/// writable.
fn is_loaded(p: &Phdr, phdrs: &[Phdr]) -> bool {
    let end = |p: &Phdr| p.vaddr.checked_add(p.filesz);
    let holds =
        |l: &Phdr| l.kind == PT_LOAD && l.flags & elf::PF_W == 0 && l.vaddr <= p.vaddr && end(l) >= end(p);
    end(p).is_some() && phdrs.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_files() {
        // By default the compiler gives every program a build-id, and the shell of this machine has one.
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        let id = identity_of(&shell).unwrap();
        assert!(id.len() == 20 && !is_derived(&id), "{id:?}");
        assert_eq!(identity_of(Path::new("/etc/passwd")), None);
        assert_eq!(identity_of(Path::new("/nowhere")), None);
        assert_eq!(identity_of(Path::new("/dev/null")), None);
    }

    #[test]
    fn what_a_derived_id_depends_on() {
        let header = Header { kind: 3, entry: 1, phoff: 64, phnum: 2, shoff: 9, shnum: 9, shstrndx: 9 };
        let load = Phdr { kind: PT_LOAD, flags: elf::PF_R, offset: 0, vaddr: 0, filesz: 64, memsz: 64 };
        let table = Phdr { kind: PT_GNU_EH_FRAME, flags: 4, offset: 8, vaddr: 8, filesz: 3, memsz: 3 };
        let id =
            |h: &Header, l: &Phdr, t: &Phdr, bytes: &[u8]| derived(h, &[*l, *t], |_| Some(bytes.to_vec()));
        let one = id(&header, &load, &table, b"abc");
        assert!(one.as_deref().is_some_and(is_derived), "{one:?}");
        for other in [
            id(&Header { entry: 2, ..header }, &load, &table, b"abc"),
            id(&header, &load, &Phdr { vaddr: 9, ..table }, b"abc"),
            id(&header, &load, &Phdr { flags: 5, ..table }, b"abc"),
            id(&header, &load, &Phdr { filesz: 4, ..table }, b"abc"),
            id(&header, &load, &Phdr { memsz: 4, ..table }, b"abc"),
            id(&header, &load, &table, b"abd"),
            id(&header, &load, &Phdr { kind: PT_LOAD, ..table }, b"abc"),
            id(&header, &Phdr { flags: elf::PF_R | elf::PF_W, ..load }, &table, b"abc"),
            derived(&header, &[load, table], |_| None),
        ] {
            assert_ne!(other, one);
        }
        // As a stripped copy has it.
        let stripped = (Header { shoff: 0, shnum: 0, shstrndx: 0, ..header }, Phdr { offset: 16, ..table });
        assert_eq!(id(&stripped.0, &load, &stripped.1, b"abc"), one);
    }

    /// Tables that are not read: an empty one, one outside all loaded segments, and one in data.
    #[test]
    fn tables_that_say_nothing() {
        let header = Header { kind: 3, entry: 1, phoff: 64, phnum: 2, shoff: 9, shnum: 9, shstrndx: 9 };
        let load = Phdr { kind: PT_LOAD, flags: elf::PF_R, offset: 0, vaddr: 0, filesz: 64, memsz: 64 };
        let table = Phdr { kind: PT_GNU_EH_FRAME, flags: 4, offset: 8, vaddr: 8, filesz: 3, memsz: 3 };
        let never = |_: &Phdr| -> Option<Vec<u8>> { panic!("it is read") };
        for (load, table) in [
            (load, Phdr { filesz: 0, memsz: 0, ..table }),
            (load, Phdr { filesz: 57, memsz: 57, ..table }),
            (load, Phdr { vaddr: u64::MAX, ..table }),
            (load, Phdr { filesz: MOST_TABLE + 1, ..table }),
            (Phdr { flags: elf::PF_R | elf::PF_W, ..load }, table),
        ] {
            assert!(derived(&header, &[load, table], never).is_some());
        }
    }
}
