//! Moves memory of a process into huge pages from outside, without a stop.
//!
//! `MADV_COLLAPSE` (Linux 6.1) copies the small pages of each 2 MiB into one huge page. The caller waits for it; the
//! process's threads go on, except for those that touch these 2 MiB in that moment.

use crate::Process;
use addr::AvmaRange;
use std::io;
use std::os::fd::AsRawFd;

impl Process {
    /// Checks whether the kernel would move memory of this process for the caller.
    ///
    /// # Errors
    /// As [`Process::collapse`].
    pub fn can_collapse(&self) -> io::Result<()> {
        self.advise_collapse(&[])
    }

    /// Moves whole 2 MiB of a mapping into huge pages. What already is in huge pages stays there. After an error other
    /// parts of the range may have been moved all the same; [`Process::huge_pages`] shows them.
    ///
    /// # Errors
    /// `ENOSYS` or `EINVAL` in a kernel without the call (before Linux 6.1); `EINVAL` also for memory that cannot be in
    /// huge pages; `ENOMEM` if there is no huge page; `EAGAIN` or `EBUSY` if pages are in use for the moment; `EPERM`
    /// without the right to trace the process or without `CAP_SYS_NICE`; `ESRCH` if the process has ended.
    pub fn collapse(&self, range: AvmaRange) -> io::Result<()> {
        let base = usize::try_from(range.start.0).map_err(io::Error::other)?;
        let len = usize::try_from(range.len()).map_err(io::Error::other)?;
        self.advise_collapse(&[libc::iovec {
            iov_base: std::ptr::without_provenance_mut(base),
            iov_len: len,
        }])
    }

    fn advise_collapse(&self, ranges: &[libc::iovec]) -> io::Result<()> {
        loop {
            // SAFETY: the kernel reads `ranges.len()` vectors of this slice. The addresses in them are the other
            // process's, and only numbers here. The advice keeps the content of memory.
            let rc = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    self.pidfd().as_raw_fd(),
                    ranges.as_ptr(),
                    ranges.len(),
                    libc::MADV_COLLAPSE,
                    0,
                )
            };
            match io::Error::last_os_error() {
                _ if rc >= 0 => return Ok(()),
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use addr::Avma;
    use std::process::Command;

    const HUGE: usize = 2 << 20;

    /// Through this process itself; other processes take rights.
    #[test]
    fn shared_memory_keeps_its_content() {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // The kernel takes this address, a multiple of 2 MiB, if nothing else is there.
        let hint = std::ptr::without_provenance_mut(0x2f00_0000_0000);
        // SAFETY: without MAP_FIXED, a new mapping overlaps no memory in use.
        let at = unsafe { libc::mmap(hint, HUGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_eq!(at, hint);
        let range = AvmaRange::with_len(Avma(at.addr() as u64), HUGE as u64);
        // SAFETY: the slice is the mapping, which lives until the end and which nothing else refers to.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), HUGE) };
        for (i, page) in (0u16..).zip(bytes.chunks_mut(4096)) {
            page.fill(i.to_le_bytes()[0]);
        }
        let me = Process::open(Pid(std::process::id().cast_signed())).unwrap();
        match me.can_collapse().and_then(|()| me.collapse(range)) {
            Ok(()) => assert_eq!(me.huge_pages(range).unwrap(), [range]),
            Err(e) => println!("skipped: this host moves no memory: {e}"),
        }
        let is_kept = |(i, page): (u16, &[u8])| page.iter().all(|&b| b == i.to_le_bytes()[0]);
        assert!((0..).zip(bytes.chunks(4096)).all(is_kept));
        // SAFETY: the whole mapping made above; nothing refers to it any more.
        unsafe { libc::munmap(at, HUGE) };
    }

    #[test]
    fn a_process_that_has_ended() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(Pid(child.id().cast_signed())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let e = process.can_collapse().unwrap_err();
        assert!(matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOSYS)), "{e}");
    }
}
