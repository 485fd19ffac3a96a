//! Memory that processes share, as a file of the kernel's.

use crate::{Error, Process};
use addr::AvmaRange;
use rustix::fs::{FileType, Mode, OFlags, StatFs, fstat, fstatfs, open};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

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

/// An opened file of `tmpfs`. While it is open, its memory stays, whoever ends.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    system: StatFs,
}

/// How much of a part of a file has pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// In memory. Bytes.
    pub resident: u64,
    /// In swap space. Bytes.
    pub swapped: u64,
}

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
        // Only a reference: the open of a device, or of a file of a network's, may have effects.
        let reference = match open(self.file(&name), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) if !self.is_ending() => return Ok(SharedMemory::Other),
            opened => opened.map_err(|e| self.file_error(&name, e.into()))?,
        };
        let is_file =
            fstat(&reference).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        let Some(system) = fstatfs(&reference).ok().filter(|_| is_file) else {
            return Ok(SharedMemory::Other);
        };
        match u64::try_from(system.f_type).unwrap_or(0) {
            TMPFS => {
                let path = format!("/proc/self/fd/{}", reference.as_fd().as_raw_fd());
                let file = File::open(path).map_err(|e| self.file_error(&name, e))?;
                Ok(SharedMemory::Tmpfs(MemoryFile { file, system }))
            }
            HUGETLBFS => Ok(SharedMemory::Hugetlb),
            _ => Ok(SharedMemory::Other),
        }
    }
}

impl MemoryFile {
    /// Returns how many bytes its file system may still take; `None` if it has no limit.
    #[must_use]
    pub fn free(&self) -> Option<u64> {
        let unit = u64::try_from(self.system.f_bsize).unwrap_or(0);
        (self.system.f_blocks != 0).then(|| self.system.f_bavail.saturating_mul(unit))
    }

    /// Counts the pages of a part of the file. The kernel looks at each page of it: some ten microseconds for 2 MiB.
    ///
    /// # Errors
    /// `ENOSYS` before Linux 6.5.
    pub fn in_use(&self, from: u64, len: u64) -> io::Result<InUse> {
        /// `cachestat`, on all machines.
        const CACHESTAT: libc::c_long = 451;
        const PAGE: u64 = 4096;
        let range = CachestatRange { from, len };
        let mut found = Cachestat::default();
        // SAFETY: the kernel reads one range and writes one `struct cachestat`, both of which live on this stack.
        let rc =
            unsafe { libc::syscall(CACHESTAT, self.file.as_raw_fd(), &raw const range, &raw mut found, 0) };
        match rc {
            // In a file of `tmpfs`, pages that were evicted are in swap space (`filemap_cachestat()`).
            0 => Ok(InUse { resident: found.cached * PAGE, swapped: found.evicted * PAGE }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// `struct cachestat_range`. Bytes.
#[repr(C)]
struct CachestatRange {
    from: u64,
    len: u64,
}

/// `struct cachestat`. Pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
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
        let system = fstatfs(&file).unwrap();
        let file = MemoryFile { file, system };
        if let Err(e) = file.in_use(0, 4096) {
            return println!("skipped: no cachestat here: {e}");
        }
        let pages = |from: u64, to: u64| {
            let found = file.in_use(from << 12, (to - from) << 12).unwrap();
            (found.resident + found.swapped) >> 12
        };
        assert_eq!(
            [pages(0, 100), pages(4, 50), pages(5, 50), pages(50, 51), pages(100, 200)],
            [4, 1, 0, 1, 0]
        );
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
