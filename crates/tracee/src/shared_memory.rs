//! Memory that processes share, as a file of the kernel's.

use crate::{Error, Process};
use addr::AvmaRange;
use rustix::fs::{SeekFrom, fstatfs, seek};
use std::fs::{self, File};
use std::io;
use std::ops::Range;

/// What holds the pages of a shared mapping.
#[derive(Debug)]
pub enum SharedMemory {
    /// A file of `tmpfs`: shared memory that is anonymous, of System V, of POSIX, or a memfd.
    Tmpfs(MemoryFile),
    /// Reserved huge pages (`hugetlbfs`).
    Hugetlb,
    /// A file of another file system, or a device.
    Other,
}

/// An opened file of `tmpfs`.
#[derive(Debug)]
pub struct MemoryFile(File);

impl Process {
    /// Finds out what holds the pages of a shared mapping: `range` is the whole mapping. [`SharedMemory::Other`] if there
    /// is no such mapping any more.
    ///
    /// # Errors
    /// [`Error::NoPermission`] without `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`; [`Error::Gone`],
    /// [`Error::ProcFile`].
    pub fn shared_memory(&self, range: AvmaRange) -> Result<SharedMemory, Error> {
        // Of the magic numbers in `include/uapi/linux/magic.h`.
        const TMPFS: u64 = 0x0102_1994;
        const HUGETLBFS: u64 = 0x9584_58f6;
        let name = format!("map_files/{:x}-{:x}", range.start.0, range.end.0);
        let path = self.file(&name);
        let failed = |e| self.file_error(&name, e);
        // The open of a device may have effects.
        let opened = fs::metadata(&path).and_then(|m| m.is_file().then(|| File::open(&path)).transpose());
        let file = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound && !self.is_ending() => None,
            opened => opened.map_err(failed)?,
        };
        let Some(file) = file else { return Ok(SharedMemory::Other) };
        let system = fstatfs(&file).map_err(|e| failed(e.into()))?;
        Ok(match u64::try_from(system.f_type).unwrap_or(0) {
            TMPFS => SharedMemory::Tmpfs(MemoryFile(file)),
            HUGETLBFS => SharedMemory::Hugetlb,
            _ => SharedMemory::Other,
        })
    }
}

impl MemoryFile {
    /// Returns the parts of a range of the file that have pages, in memory or in swap space. Offsets in bytes, in
    /// ascending order. The file may change meanwhile.
    ///
    /// # Errors
    /// Errors of `lseek`.
    pub fn pages(&self, within: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let mut from = within.start;
        while from < within.end {
            let start = match seek(&self.0, SeekFrom::Data(from)) {
                // Nothing behind this place.
                Err(rustix::io::Errno::NXIO) => break,
                start => start?,
            };
            if start >= within.end {
                break;
            }
            let end = seek(&self.0, SeekFrom::Hole(start))?.min(within.end);
            found.push(start..end);
            from = end.max(start + 1);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::unix::fs::FileExt;

    #[test]
    fn pages_of_a_file_with_holes() {
        let file = File::from(memfd_create("holes", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(100 << 12).unwrap();
        for page in [3u64, 4, 50, 99] {
            file.write_all_at(&[1], page << 12).unwrap();
        }
        let file = MemoryFile(file);
        let pages = |of: Range<u64>| {
            let found = file.pages(of.start << 12..of.end << 12).unwrap();
            found.into_iter().map(|r| (r.start >> 12, r.end >> 12)).collect::<Vec<_>>()
        };
        assert_eq!(pages(0..100), [(3, 5), (50, 51), (99, 100)]);
        assert_eq!(pages(4..50), [(4, 5)]);
        assert_eq!(pages(5..50), []);
        assert_eq!(pages(100..200), []);
    }

    #[test]
    fn a_mapping_of_a_file_is_told_from_memory() {
        let me = Process::open(Pid(std::process::id().cast_signed())).unwrap();
        let maps = me.maps_text().unwrap();
        let exe = me.exe().unwrap();
        let line = maps.lines().find(|l| l.ends_with(exe.to_str().unwrap())).unwrap();
        match me.shared_memory(crate::process::mapping_range(line).unwrap()) {
            Err(Error::NoPermission { .. }) => println!("skipped: takes root"),
            found => assert!(matches!(found.unwrap(), SharedMemory::Other)),
        }
    }
}
