//! Waiting calls that a stop would end with EINTR.
//!
//! An interruption wakes a thread out of its system call. Most waiting calls then give one of the kernel's
//! `-ERESTART*` codes, which the program never sees: the kernel issues the call anew unless a signal handler is to
//! run. Some give plain `-EINTR`, and the program would see that. Their result is changed to `-ERESTARTNOHAND`
//! while the thread is stopped: the kernel then does for them what it does for the others, and if a handler is to
//! run after all, the program gets its EINTR. That decision is the kernel's, made after the thread goes on: no
//! signal can fall between our looking and its going.
//!
//! All that the program can notice is that a relative timeout begins anew.

use crate::{Process, Regs};
use addr::{Addr, ReadMemory};
use std::fs;

/// The kernel's own code for "restart unless a handler runs".
pub(crate) const ERESTARTNOHAND: i64 = 514;

/// `MSG_FASTOPEN`: a send that may have sent a SYN by the time it fails.
const MSG_FASTOPEN: u64 = 0x2000_0000;

/// The registers a thread at rest must go on with so that its call does not fail because of us; `None` where they
/// are right as they are.
pub(crate) fn cure(process: &Process, regs: &Regs) -> Option<Regs> {
    let nr = regs.syscall()?;
    if regs.result() != -i64::from(libc::EINTR) || !may_restart(process, nr, regs) {
        return None;
    }
    // A 32-bit entry has other call numbers.
    let mut insn = [0; 2];
    process.read(regs.ip().sub(2), &mut insn).ok()?;
    if insn != SYSCALL {
        return None;
    }
    let mut cured = *regs;
    cured.0.rax = (-ERESTARTNOHAND).cast_unsigned();
    Some(cured)
}

/// The `syscall` instruction.
pub(crate) const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Whether the call, having given EINTR, has had no effect and waits when issued again.
fn may_restart(process: &Process, nr: i64, regs: &Regs) -> bool {
    match nr {
        libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        // None of the operations is done unless all are.
        | libc::SYS_semop
        | libc::SYS_semtimedop
        // A signal taken is a result, not EINTR.
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_io_getevents
        // A submission is a result, not EINTR.
        | libc::SYS_io_uring_enter
        // Sockets with a timeout: bytes moved are a result, not EINTR. A second connect goes on with
        // the first (and gives EALREADY instead of EINPROGRESS if the time runs out on it).
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg => true,
        libc::SYS_sendto => regs.0.r10 & MSG_FASTOPEN == 0,
        libc::SYS_sendmsg => regs.0.rdx & MSG_FASTOPEN == 0,
        // What an EINTR of other files means is up to their makers (FUSE).
        libc::SYS_read | libc::SYS_readv | libc::SYS_write | libc::SYS_writev => is_socket(process, regs.0.rdi),
        _ => false,
    }
}

fn is_socket(process: &Process, fd: u64) -> bool {
    let link = fs::read_link(process.memory_file(&format!("fd/{}", fd & 0xffff_ffff)));
    link.is_ok_and(|to| to.to_str().is_some_and(|to| to.starts_with("socket:")))
}
