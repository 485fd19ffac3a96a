//! Files that a process has mapped, read in parts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One opened file.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    size: u64,
}

impl MappedFile {
    /// Opens a regular file. The path comes from the target: it may name a device or a pipe.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let file = File::open(path).ok()?;
        let size = file.metadata().ok().filter(fs::Metadata::is_file)?.len();
        Some(Self { file, size })
    }

    /// Returns its size when it was opened, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns `len` bytes from an offset on; `None` if there are fewer, they cannot be read, or there is no
    /// memory for them.
    #[must_use]
    pub fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        from.checked_add(len).filter(|end| *end <= self.size)?;
        let len = usize::try_from(len).ok()?;
        let mut bytes = Vec::new();
        // The size comes from the target as well.
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        self.file.read_exact_at(&mut bytes, from).ok()?;
        Some(bytes)
    }
}
