//! Gives the target descriptors of whet's files for the time of one stop.
//!
//! No path is used, because it would have to lead to the file in the target's view of the file systems.
//! Instead the target makes a pair of sockets. whet gets one of them by `pidfd_getfd` and sends the
//! descriptors through it. All threads are stopped, so that none of them can close a descriptor or get its
//! number. If whet dies meanwhile, the target keeps a page of memory and descriptors that it does not use;
//! they close on `exec`.

use crate::{Error, Process, SealedFile, Stopped};
use addr::{Addr, Avma, ReadMemory};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The most files that one stop gives. The kernel passes 253 at a time.
const MOST_FILES: usize = 64;
const PAGE: u64 = 4096;
/// The layout of the message in a page of the target: the header, the vector with its one byte, and the
/// descriptors behind a head of 16 bytes.
const MESSAGE: u64 = 64;
const VECTOR: u64 = 128;
const BYTE: u64 = 160;
const CONTROL: u64 = 256;
const CONTROL_HEAD: u64 = 16;
const CONTROL_LEN: u64 = 1024;
/// `KCMP_FILES`: compares the tables of descriptors of two threads.
const KCMP_FILES: libc::c_int = 2;

impl Stopped<'_> {
    /// Runs `f` while the target has descriptors of `files`, which `f` gets in their order. `hint` is where the
    /// target may map a page meanwhile; if it is not free, the kernel chooses another place.
    ///
    /// # Errors
    /// Errors of `f`; [`Error::NotGiven`] if the target cannot take descriptors, for example by a rule of its
    /// security module or by its limit of open files. Nothing is changed then.
    pub fn with_files<R, E: From<Error>>(
        &mut self,
        files: &[Arc<SealedFile>],
        hint: Avma,
        f: impl FnOnce(&mut Self, &[u64]) -> Result<R, E>,
    ) -> Result<R, E> {
        self.can_take(files.len())?;
        let arg = |i: i32| i64::from(i).cast_unsigned();
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = self.call(libc::SYS_mmap, [hint.0, PAGE, arg(prot), arg(flags), arg(-1), 0])?;
        let page = Avma(page);
        let given = self.give(page, files);
        let result = given.map_err(E::from).and_then(|fds| {
            let result = f(self, &fds);
            let closed = fds.iter().try_for_each(|fd| self.close(*fd));
            result.and_then(|r| closed.map(|()| r).map_err(E::from))
        });
        let unmapped = self.call(libc::SYS_munmap, [page.0, PAGE, 0, 0, 0, 0]);
        result.and_then(|r| unmapped.map(|_| r).map_err(E::from))
    }

    /// Sends the files through a pair of sockets. Returns the descriptors that the target got.
    fn give(&mut self, page: Avma, files: &[Arc<SealedFile>]) -> Result<Vec<u64>, Error> {
        let kind = i64::from(libc::SOCK_DGRAM | libc::SOCK_CLOEXEC).cast_unsigned();
        self.call(libc::SYS_socketpair, [libc::AF_UNIX.cast_unsigned().into(), kind, 0, page.0, 0, 0])?;
        let process = self.process();
        let word = |at: u64| process.u32(page.add(at)).map(u64::from);
        let pair = (word(0)?, word(4)?);
        let sent = send(process, pair.0, files);
        let got = sent.and_then(|()| self.receive(page, pair.1, files.len()));
        let closed = self.close(pair.0).and_then(|()| self.close(pair.1));
        match (got, closed) {
            (Ok(fds), Err(e)) => {
                for fd in fds {
                    self.close(fd)?;
                }
                Err(e)
            }
            (got, _) => got,
        }
    }

    fn receive(&mut self, page: Avma, socket: u64, wanted: usize) -> Result<Vec<u64>, Error> {
        let mut message = [0; 56];
        let mut put = |at: usize, word: u64| message[at..at + 8].copy_from_slice(&word.to_le_bytes());
        // struct msghdr: no name; one vector; the control data.
        put(16, page.add(VECTOR).0);
        put(24, 1);
        put(32, page.add(CONTROL).0);
        put(40, CONTROL_LEN);
        let process = self.process();
        process.write(page.add(MESSAGE), &message)?;
        process.write(page.add(VECTOR), &page.add(BYTE).0.to_le_bytes())?;
        process.write(page.add(VECTOR + 8), &1u64.to_le_bytes())?;
        let flags = i64::from(libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT).cast_unsigned();
        self.call(libc::SYS_recvmsg, [socket, page.add(MESSAGE).0, flags, 0, 0, 0])?;
        let process = self.process();
        // Behind the head of the control data: as many descriptors as its length states.
        let len = process.u64(page.add(CONTROL))?.min(CONTROL_LEN);
        let kept = process.u64(page.add(MESSAGE + 40))?;
        let count = if kept < CONTROL_HEAD { 0 } else { len.saturating_sub(CONTROL_HEAD) / 4 };
        let fds = (0..count).map(|i| process.u32(page.add(CONTROL + CONTROL_HEAD + 4 * i)).map(u64::from));
        let fds: Vec<u64> = fds.collect::<Result<_, _>>()?;
        if fds.len() != wanted {
            for fd in fds {
                self.close(fd)?;
            }
            return Err(not_given(io::Error::from_raw_os_error(libc::EACCES)));
        }
        Ok(fds)
    }

    fn close(&mut self, fd: u64) -> Result<(), Error> {
        self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]).map(|_| ())
    }

    fn call(&mut self, nr: libc::c_long, args: [u64; 6]) -> Result<u64, Error> {
        match self.syscall(nr, args) {
            Err(Error::Remote { errno, .. }) => Err(not_given(io::Error::from_raw_os_error(errno))),
            other => Ok(other?.cast_unsigned()),
        }
    }

    /// Checks that all threads use one table of descriptors, that of the process, and that one message can
    /// hold so many files.
    fn can_take(&self, files: usize) -> Result<(), Error> {
        let no = |why: &str| Err(not_given(io::Error::new(io::ErrorKind::Unsupported, why)));
        if files > MOST_FILES {
            return no("there are more files than one stop can give");
        }
        let pid = self.process().pid().0;
        for tid in self.threads().iter().filter(|t| t.0 != pid) {
            // SAFETY: the call compares two objects of the kernel, and accesses no memory.
            match unsafe { libc::syscall(libc::SYS_kcmp, pid, tid.0, KCMP_FILES, 0, 0) } {
                0 => {}
                1.. => {
                    return no("a thread has a table of descriptors of its own (unshare with CLONE_FILES)");
                }
                _ => return Err(not_given(io::Error::last_os_error())),
            }
        }
        Ok(())
    }
}

fn not_given(source: io::Error) -> Error {
    Error::NotGiven { source }
}

/// Sends descriptors through a socket of the process.
fn send(process: &Process, socket: u64, files: &[Arc<SealedFile>]) -> Result<(), Error> {
    let socket = get(process, socket).map_err(not_given)?;
    let files: Vec<BorrowedFd<'_>> = files.iter().map(|f| f.file().as_fd()).collect();
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(&files).size()];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(not_given(io::ErrorKind::InvalidInput.into()));
    }
    let byte = [IoSlice::new(&[0])];
    match sendmsg(socket, &byte, &mut rights, SendFlags::DONTWAIT) {
        Ok(1) => Ok(()),
        Ok(_) => Err(not_given(io::ErrorKind::WriteZero.into())),
        Err(e) => Err(not_given(e.into())),
    }
}

/// Returns a descriptor for what a descriptor of the process stands for.
fn get(process: &Process, fd: u64) -> io::Result<OwnedFd> {
    let pidfd = process.pidfd().as_raw_fd();
    // SAFETY: the call accesses no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, fd, 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just returned this descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
