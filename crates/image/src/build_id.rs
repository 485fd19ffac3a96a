//! The build-id of a file, by the few bytes that hold it.

use crate::elf;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The most bytes of one note segment that are read.
const MOST: u64 = 64 << 10;

/// The linker's build-id of an ELF file; `None` for one without, for other files, and for what cannot be read.
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
    fn of_files_and_of_what_is_none() {
        // The C compiler's default is to have one, and so has this machine's libc.
        let shell = std::fs::canonicalize("/bin/sh").unwrap();
        assert_eq!(build_id_of(&shell).map(|id| id.len()), Some(20));
        assert_eq!(build_id_of(Path::new("/etc/passwd")), None);
        assert_eq!(build_id_of(Path::new("/nowhere")), None);
        assert_eq!(build_id_of(Path::new("/dev/null")), None);
    }
}
