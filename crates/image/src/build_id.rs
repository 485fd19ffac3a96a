//! The build-id of a file, read from the few bytes that hold it.

use crate::elf;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most bytes that are read of one note segment, and of the program headers.
const MOST: u64 = 64 << 10;

/// Returns the linker's build-id of an ELF file. Returns `None` if the file has none, is not an x86-64 ELF
/// file, or cannot be read.
#[must_use]
pub fn build_id_of(path: &Path) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let part = |at: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len.min(MOST)).ok()?];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let header = elf::header(&part(0, elf::EHDR as u64)?, addr::Avma(0)).ok()?;
    let phdrs = elf::phdrs(&part(header.phoff, header.phdrs_len().min(MOST))?);
    let notes = phdrs.iter().filter(|p| p.kind == elf::PT_NOTE);
    notes.filter_map(|p| part(p.offset, p.filesz)).find_map(|bytes| elf::build_id(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_of_files() {
        // By default the compiler gives every program a build-id, and the shell of this machine has one.
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(build_id_of(&shell).map(|id| id.len()), Some(20));
        assert_eq!(build_id_of(Path::new("/etc/passwd")), None);
        assert_eq!(build_id_of(Path::new("/nowhere")), None);
        assert_eq!(build_id_of(Path::new("/dev/null")), None);
    }
}
