//! Waiting calls that a stop would end with EINTR.
//!
//! An interruption wakes a thread out of its system call. Most waiting calls then return one of the kernel's
//! `-ERESTART*` codes, which the program never gets: the kernel restarts the call unless a signal handler is
//! to run. Some return plain `-EINTR`, which the program would get. Their result is changed to
//! `-ERESTARTNOHAND` while the thread is stopped. The kernel then treats them as the other calls; if a
//! handler is to run after all, the program gets its EINTR. The kernel decides that after the thread is
//! resumed, so no signal can fall between whet's check and the resumption.
//!
//! A relative timeout would begin with its whole time again, and a transfer that has moved a part returns its
//! size: [`crate::rest`] handles both.

use crate::{Process, Regs};
use addr::{Addr, ReadMemory};
use std::fs;

/// The kernel's own code for "restart unless a handler runs".
pub(crate) const ERESTARTNOHAND: i32 = 514;

/// `MSG_FASTOPEN`: a send that may have sent a SYN by the time it fails.
const MSG_FASTOPEN: u64 = 0x2000_0000;

/// Returns the registers with which a thread at rest must continue so that its call does not fail because of
/// whet; `None` if they are right as they are.
pub(crate) fn cure(process: &Process, regs: &Regs) -> Option<Regs> {
    let nr = regs.syscall()?;
    let ends = nr == libc::SYS_io_uring_enter && waits_for_several(regs);
    if regs.error() != Some(libc::EINTR) || !ends && !may_restart(process, nr, regs) {
        return None;
    }
    // A 32-bit entry has other call numbers, so only `syscall` is accepted.
    let mut insn = [0; 2];
    process.read(regs.ip().sub(2), &mut insn).ok()?;
    if insn != SYSCALL {
        return None;
    }
    let mut cured = *regs;
    cured.0.rax = if ends { 0 } else { i64::from(-ERESTARTNOHAND).cast_unsigned() };
    Some(cured)
}

/// The `syscall` instruction.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Returns whether the call, after EINTR, has had no effect and waits when it is restarted.
pub(crate) fn may_restart(process: &Process, nr: i64, regs: &Regs) -> bool {
    match nr {
        libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        // All of the operations are done or none.
        | libc::SYS_semop
        | libc::SYS_semtimedop
        // A signal received is a result, not EINTR.
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_io_getevents
        // Sockets with a timeout: bytes moved are a result, not EINTR. A second connect continues the first
        // (and returns EALREADY instead of EINPROGRESS if its time runs out).
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg => true,
        // A submission is a result, not EINTR.
        libc::SYS_io_uring_enter => !waits_for_several(regs),
        libc::SYS_sendto => regs.0.r10 & MSG_FASTOPEN == 0,
        libc::SYS_sendmsg => regs.0.rdx & MSG_FASTOPEN == 0,
        // Messages sent are a result, not EINTR.
        libc::SYS_sendmmsg => regs.0.r10 & MSG_FASTOPEN == 0,
        // Bytes moved are a result, not EINTR. Bytes read but not sent stay where they were: in a pipe, or in
        // a file whose offset does not move.
        libc::SYS_sendfile => is_socket(process, regs.0.rdi),
        libc::SYS_splice => is_socket(process, regs.0.rdi) || is_socket(process, regs.0.rdx),
        // A repetition has the same effect (except for the modes that move or share the contents).
        libc::SYS_fallocate => {
            let repeatable = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
            regs.0.rsi & 0xffff_ffff & !u64::from(repeatable.cast_unsigned()) == 0
        }
        // The meaning of EINTR from other files depends on their implementation (FUSE).
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_preadv2
        | libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwritev2 => is_socket(process, regs.0.rdi),
        _ => false,
    }
}

/// Returns whether an `io_uring_enter` waits for two or more completions. The end of a request with
/// `IORING_OP_TIMEOUT` also ends such a wait (Linux, `io_should_wake()`, `cq_timeouts`). If that request ends
/// during a stop, a wait that begins again would miss it, and might never end. So the call returns 0, as it
/// does after such a request.
pub(crate) fn waits_for_several(regs: &Regs) -> bool {
    regs.0.rdx & 0xffff_ffff > 1
}

fn is_socket(process: &Process, fd: u64) -> bool {
    let link = fs::read_link(process.memory_file(&format!("fd/{}", fd & 0xffff_ffff)));
    link.is_ok_and(|to| to.to_str().is_some_and(|to| to.starts_with("socket:")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use crate::regs::tests::regs;
    use std::os::fd::AsRawFd;

    #[test]
    fn calls_that_may_restart() {
        let me = Process::open(Pid(std::process::id().cast_signed())).unwrap();
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let file = fs::File::open("/dev/null").unwrap();
        let [socket, file] = [socket.as_raw_fd(), file.as_raw_fd()].map(|fd| i64::from(fd).cast_unsigned());
        let may = |nr, [rdi, rsi, rdx, r10]: [u64; 4]| {
            let mut regs = regs(nr, 0);
            (regs.0.rdi, regs.0.rsi, regs.0.rdx, regs.0.r10) = (rdi, rsi, rdx, r10);
            may_restart(&me, nr, &regs)
        };
        assert!(may(libc::SYS_sendmmsg, [0, 0, 0, 0]) && !may(libc::SYS_sendmmsg, [0, 0, 0, MSG_FASTOPEN]));
        assert!(
            may(libc::SYS_sendfile, [socket, file, 0, 0]) && !may(libc::SYS_sendfile, [file, socket, 0, 0])
        );
        assert!(may(libc::SYS_splice, [file, 0, socket, 0]) && may(libc::SYS_splice, [socket, 0, file, 0]));
        assert!(!may(libc::SYS_splice, [file, 0, file, 0]));
        for nr in [libc::SYS_read, libc::SYS_writev, libc::SYS_preadv2, libc::SYS_pwritev2] {
            assert!(may(nr, [socket, 0, 0, 0]) && !may(nr, [file, 0, 0, 0]));
        }
        let mode = |m: i32| may(libc::SYS_fallocate, [0, u64::from(m.cast_unsigned()), 0, 0]);
        assert!(mode(0) && mode(libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE));
        assert!(!mode(libc::FALLOC_FL_COLLAPSE_RANGE) && !mode(libc::FALLOC_FL_INSERT_RANGE));
        assert!(!may(libc::SYS_close, [socket, 0, 0, 0]));
    }
}
