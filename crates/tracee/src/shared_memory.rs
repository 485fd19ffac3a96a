//! Memory that processes share, as a file of the kernel's.

use crate::process::map_file;
use crate::{Error, Process};
use addr::AvmaRange;
use rustix::fs::{FileType, Mode, OFlags, StatFs, fstat, fstatfs, open};
use std::fs::{self, File};
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
    size: u64,
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
    /// Finds out what holds the pages of a shared mapping: `range` is the whole mapping, `device` that of its file in
    /// `/proc/PID/maps`. [`SharedMemory::Other`] if there is no such mapping any more, or if another program has a lease
    /// on the file, which an open would break.
    ///
    /// # Errors
    /// [`Error::NoPermission`] without `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`; [`Error::Gone`],
    /// [`Error::ProcFile`].
    pub fn shared_memory(&self, range: AvmaRange, device: (u32, u32)) -> Result<SharedMemory, Error> {
        // Of the magic numbers in `include/uapi/linux/magic.h`.
        const TMPFS: u64 = 0x0102_1994;
        const HUGETLBFS: u64 = 0x9584_58f6;
        // Other file systems are not touched: the server of a network's, or the program of a FUSE one, may not answer. The
        // kernel's own mounts are not in the list.
        let mounts = self.memory_text("mountinfo").unwrap_or_default();
        if mounted_as(&mounts, device).is_some_and(|kind| !matches!(kind, "tmpfs" | "hugetlbfs")) {
            return Ok(SharedMemory::Other);
        }
        let name = map_file(range);
        // Only a reference: the open of a device may have effects.
        let reference = match open(self.file(&name), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) if !self.is_ending() => return Ok(SharedMemory::Other),
            opened => opened.map_err(|e| self.file_error(&name, e.into()))?,
        };
        let (Ok(stat), Ok(system)) = (fstat(&reference), fstatfs(&reference)) else {
            return Ok(SharedMemory::Other);
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || is_leased(stat.st_ino) {
            return Ok(SharedMemory::Other);
        }
        match u64::try_from(system.f_type).unwrap_or(0) {
            TMPFS => {
                let path = format!("/proc/self/fd/{}", reference.as_fd().as_raw_fd());
                let file = File::open(path).map_err(|e| self.file_error(&name, e))?;
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                Ok(SharedMemory::Tmpfs(MemoryFile { file, size, system }))
            }
            HUGETLBFS => Ok(SharedMemory::Hugetlb),
            _ => Ok(SharedMemory::Other),
        }
    }
}

/// Returns the kind of a mounted file system, by a text of `mountinfo`.
fn mounted_as(mounts: &str, device: (u32, u32)) -> Option<&str> {
    let device = format!("{}:{}", device.0, device.1);
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    line.split_once(" - ")?.1.split(' ').next()
}

/// Returns whether a program has a lease on a file of this number. (The device is not looked at.)
fn is_leased(inode: u64) -> bool {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let of = format!(":{inode}");
    let mut leases = locks.lines().filter(|line| line.contains(" LEASE "));
    leases.any(|line| line.split_whitespace().any(|word| word.ends_with(&of)))
}

impl MemoryFile {
    /// Returns its size when it was opened, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

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
        let file = MemoryFile { file, size: 100 << 12, system };
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
    fn kinds_of_file_systems() {
        let mounts = "24 1 0:21 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw\n\
            25 1 254:1 / / rw - ext4 /dev/root rw\n26 1 0:40 / /mnt/a rw - fuse.sshfs x rw\nx";
        let kinds = [(0, 21), (254, 1), (0, 1), (0, 40)].map(|device| mounted_as(mounts, device));
        assert_eq!(kinds, [Some("tmpfs"), Some("ext4"), None, Some("fuse.sshfs")]);
    }

    #[test]
    fn a_lease_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let inode = fstat(file.as_file()).unwrap().st_ino;
        assert!(!is_leased(inode));
        // SAFETY: the call concerns this descriptor alone.
        let rc = unsafe { libc::fcntl(file.as_file().as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        match rc {
            0 => assert!(is_leased(inode)),
            _ => println!("skipped: no leases here: {}", io::Error::last_os_error()),
        }
    }

    #[test]
    fn a_mapping_of_a_file_is_told_from_memory() {
        let me = Process::open(Pid(std::process::id().cast_signed())).unwrap();
        let maps = me.maps_text().unwrap();
        let exe = me.exe().unwrap();
        let line = maps.lines().find(|l| l.ends_with(exe.to_str().unwrap())).unwrap();
        // No file system is mounted from this device.
        match me.shared_memory(crate::process::mapping_range(line).unwrap(), (0, 0)) {
            Err(Error::NoPermission { .. }) => println!("skipped: takes root"),
            found => assert!(matches!(found.unwrap(), SharedMemory::Other)),
        }
    }
}
