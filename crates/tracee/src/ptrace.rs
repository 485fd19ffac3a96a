//! The kernel's tracing calls, each as one checked function. Stops are decoded here, so that real-time
//! signals survive.

use crate::seccomp::Insn;
use crate::{Regs, Sig, Tid};
use addr::Avma;
use rustix::io::Errno;
use rustix::process::{
    Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, getpid, kill_process, waitid, waitpid,
};
use std::io;
use std::mem::{MaybeUninit, size_of};

/// The options for every tracee. EXITKILL is not among them: a target outlives its tracer.
pub(crate) const OPTIONS: usize = 1 /* TRACESYSGOOD */ | 0x10 /* TRACEEXEC */;
/// New threads are seized from their start.
pub(crate) const TRACE_CLONE: usize = 0x8;
/// A thread that creates a child by vfork stops before it waits for the child. The child is seized from its start.
pub(crate) const TRACE_VFORK: usize = 0x4;
/// Suspends seccomp filters.
pub(crate) const SUSPEND_SECCOMP: usize = 1 << 21;

const PTRACE_CONT: usize = 7;
const PTRACE_POKEDATA: usize = 5;
const PTRACE_GETREGS: usize = 12;
const PTRACE_SETREGS: usize = 13;
const PTRACE_DETACH: usize = 17;
const PTRACE_SYSCALL: usize = 24;
const PTRACE_SETOPTIONS: usize = 0x4200;
const PTRACE_GETEVENTMSG: usize = 0x4201;
const PTRACE_SEIZE: usize = 0x4206;
const PTRACE_INTERRUPT: usize = 0x4207;
const PTRACE_GETSIGMASK: usize = 0x420a;
const PTRACE_SETSIGMASK: usize = 0x420b;
const PTRACE_SECCOMP_GET_FILTER: usize = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: usize = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: usize = 0x4210;

/// `__WALL`: also threads, and children that end with another signal than SIGCHLD.
const ALL_CHILDREN: u32 = 0x4000_0000;

/// Makes the raw call, for requests that neither read nor write memory of this program.
pub(crate) fn request(request: usize, tid: Tid, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests given here take `addr` and `data` as numbers or as addresses in the tracee.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, request, tid.0, addr, data) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a request that fills a `T`.
///
/// # Safety
/// The request must write at most one `T` through `data`, valid for any bytes, and all of it on success.
unsafe fn fetch<T: Copy + Default>(request: usize, tid: Tid, addr: usize) -> io::Result<T> {
    let mut out = T::default();
    // SAFETY: `out` is valid for writes of a `T`; the caller guarantees the rest for the request.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, request, tid.0, addr, &raw mut out) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(out) }
}

pub(crate) fn seize(tid: Tid, options: usize) -> io::Result<()> {
    request(PTRACE_SEIZE, tid, 0, options)
}

pub(crate) fn set_options(tid: Tid, options: usize) -> io::Result<()> {
    request(PTRACE_SETOPTIONS, tid, 0, options)
}

pub(crate) fn interrupt(tid: Tid) -> io::Result<()> {
    request(PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes a stopped thread, with a signal if one was about to be delivered.
pub(crate) fn cont(tid: Tid, sig: Option<Sig>) -> io::Result<()> {
    request(PTRACE_CONT, tid, 0, number(sig))
}

/// Resumes a stopped thread until its next entry to or return from a system call.
pub(crate) fn to_syscall(tid: Tid, sig: Option<Sig>) -> io::Result<()> {
    request(PTRACE_SYSCALL, tid, 0, number(sig))
}

/// Ends the tracing of a stopped thread. It is resumed, with a signal if one was about to be delivered (or
/// stays stopped by job control).
pub(crate) fn detach(tid: Tid, sig: Option<Sig>) -> io::Result<()> {
    request(PTRACE_DETACH, tid, 0, number(sig))
}

fn number(sig: Option<Sig>) -> usize {
    sig.and_then(|s| usize::try_from(s.0).ok()).unwrap_or(0)
}

/// Writes one word over any protection.
pub(crate) fn poke(tid: Tid, at: Avma, word: u64) -> io::Result<()> {
    let to = |v| usize::try_from(v).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT));
    request(PTRACE_POKEDATA, tid, to(at.0)?, to(word)?)
}

pub(crate) fn regs(tid: Tid) -> io::Result<Regs> {
    let mut out = MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: GETREGS writes one user_regs_struct to `data`.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_GETREGS, tid.0, 0, out.as_mut_ptr()) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain integers, zeroed and then written.
    Ok(Regs(unsafe { out.assume_init() }))
}

pub(crate) fn set_regs(tid: Tid, regs: &Regs) -> io::Result<()> {
    // SAFETY: SETREGS reads one user_regs_struct from `data`.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_SETREGS, tid.0, 0, &raw const regs.0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the signals that a thread blocks (the set to be restored if it waits with another set).
pub(crate) fn sigmask(tid: Tid) -> io::Result<u64> {
    // SAFETY: writes `addr` = 8 bytes of signal set.
    unsafe { fetch(PTRACE_GETSIGMASK, tid, 8) }
}

pub(crate) fn set_sigmask(tid: Tid, mask: u64) -> io::Result<()> {
    // SAFETY: reads `addr` = 8 bytes of signal set.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_SETSIGMASK, tid.0, 8, &raw const mask) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns a stopped thread's seccomp filter by its number; the last installed filter is the first. Fails
/// with `ENOENT` behind the last, and with other errors if the kernel does not show the filter.
pub(crate) fn seccomp_filter(tid: Tid, number: usize) -> io::Result<Vec<Insn>> {
    /// The kernel's limit for one program (`BPF_MAXINSNS`).
    const LONGEST: usize = 4096;
    let raw = |data: *mut [u8; 8]| {
        // SAFETY: with a null pointer, the call only returns the number of instructions. Else GET_FILTER
        // writes as many as it returned then, 8 bytes each, at most LONGEST.
        let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_SECCOMP_GET_FILTER, tid.0, number, data) };
        usize::try_from(rc).map_err(|_| io::Error::last_os_error())
    };
    let mut bytes = vec![[0u8; 8]; LONGEST];
    if raw(std::ptr::null_mut())? > LONGEST {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let len = raw(bytes.as_mut_ptr())?;
    bytes.truncate(len);
    let insn = |b: &[u8; 8]| Insn {
        code: u16::from_le_bytes([b[0], b[1]]),
        jt: b[2],
        jf: b[3],
        k: u32::from_le_bytes([b[4], b[5], b[6], b[7]]),
    };
    Ok(bytes.iter().map(insn).collect())
}

/// Returns the message of an event: for a clone the id of the new thread.
pub(crate) fn event_message(tid: Tid) -> io::Result<u64> {
    // SAFETY: writes one unsigned long.
    unsafe { fetch(PTRACE_GETEVENTMSG, tid, 0) }
}

/// `struct ptrace_rseq_configuration`: the address of the thread's rseq area, then size, signature and flags.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Rseq {
    area: u64,
    rest: [u32; 4],
}

/// Returns the thread's area for restartable sequences; `None` if it has none, or the kernel (before 5.13)
/// cannot say.
pub(crate) fn rseq_area(tid: Tid) -> Option<Avma> {
    // SAFETY: writes at most `addr` bytes of the structure.
    let r: Rseq = unsafe { fetch(PTRACE_GET_RSEQ_CONFIGURATION, tid, size_of::<Rseq>()) }.ok()?;
    Some(Avma(r.area)).filter(|a| a.0 != 0)
}

/// Returns whether system calls of the thread may be turned into signals (`PR_SET_SYSCALL_USER_DISPATCH`);
/// false if the kernel (before 6.4) cannot say.
pub(crate) fn dispatches_syscalls(tid: Tid) -> bool {
    // SAFETY: writes at most `addr` bytes: mode, selector, offset, length.
    let r: io::Result<[u64; 4]> = unsafe { fetch(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, 32) };
    r.is_ok_and(|[mode, ..]| mode != 0)
}

/// Reads as much of a register set as there is.
pub(crate) fn register_set(tid: Tid, set: usize, buf: &mut [u8]) -> io::Result<usize> {
    const PTRACE_GETREGSET: usize = 0x4204;
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to `buf`, and the length to `iov`.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_GETREGSET, tid.0, set, &raw mut iov) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(iov.iov_len.min(buf.len())) }
}

/// Returns the extended state (x87, SSE, AVX…) in the standard XSAVE format.
pub(crate) fn xsave(tid: Tid) -> io::Result<Vec<u8>> {
    const NT_X86_XSTATE: usize = 0x202;
    let mut buf = vec![0; 32 << 10];
    let n = register_set(tid, NT_X86_XSTATE, &mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

/// Returns whether returns are checked against a shadow stack.
pub(crate) fn has_shadow_stack(tid: Tid) -> bool {
    const NT_X86_SHSTK: usize = 0x204;
    register_set(tid, NT_X86_SHSTK, &mut [0; 8]).is_ok()
}

/// Sends a signal to one thread.
pub(crate) fn send(pid: crate::Pid, tid: Tid, sig: Sig) -> io::Result<()> {
    // SAFETY: takes three integers.
    let rc = unsafe { libc::syscall(libc::SYS_tgkill, pid.0, tid.0, sig.0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Ends this program at once, without cleanup, as any SIGKILL does. For fault injection.
pub fn kill_self() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Returns the calling thread's id.
pub(crate) fn own_tid() -> Tid {
    Tid(rustix::thread::gettid().as_raw_nonzero().get())
}

/// How a thread stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// By interruption, by job control, or at the start of a new thread. From this stop the thread can be
    /// resumed with nothing lost, and its registers are as user code sees them.
    Rest,
    /// At the entry to or return from a system call.
    Syscall,
    /// A new thread was created.
    Clone,
    /// A child was created, for which the thread is about to wait.
    Vfork,
    /// Another program was started.
    Exec,
    /// Some other event that was not requested.
    Other(i32),
    /// A signal is about to be delivered.
    Signal(Sig),
}

/// Decodes a stop code: the signal in the low byte, the event above.
pub(crate) fn decode(code: i32) -> Stop {
    let sig = code & 0xff;
    match code >> 8 {
        0 if sig == libc::SIGTRAP | 0x80 => Stop::Syscall,
        0 => Stop::Signal(Sig(sig)),
        128 => Stop::Rest,
        2 => Stop::Vfork,
        3 => Stop::Clone,
        4 => Stop::Exec,
        _ => Stop::Other(code),
    }
}

/// The state of a thread since it was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// No change yet.
    Running,
    /// The thread stopped.
    Stopped(Stop),
    /// The thread ended.
    Ended,
    /// The thread is not traced by this thread (any more).
    NotOurs,
}

/// Looks at a thread without waiting. The report stays with the kernel (`WNOWAIT`). If whet is killed now, a
/// signal that was about to be delivered still is; a consumed report would lose the signal.
pub(crate) fn look(tid: Tid) -> io::Result<Wait> {
    match report(tid, WaitIdOptions::NOHANG) {
        Ok(None) | Err(Errno::INTR) => Ok(Wait::Running),
        Ok(Some(report)) => {
            let status = report.trapping_signal().or(report.stopping_signal());
            Ok(status.map_or(Wait::Ended, |status| Wait::Stopped(decode(status))))
        }
        Err(Errno::CHILD) => Ok(Wait::NotOurs),
        Err(e) => Err(e.into()),
    }
}

/// Returns the report of a thread that stopped or ended, and leaves it to be returned again. Waits for it,
/// unless `more` is `NOHANG`: then the result is `None` if there is none.
pub(crate) fn report(tid: Tid, more: WaitIdOptions) -> Result<Option<WaitIdStatus>, Errno> {
    /// `__WNOTHREAD`: not the tracees of other threads.
    const OWN: u32 = 0x2000_0000;
    use WaitIdOptions as W;
    let pid = tid.raw().ok_or(Errno::SRCH)?;
    let own = W::from_bits_retain(ALL_CHILDREN | OWN);
    waitid(WaitId::Pid(pid), own | W::NOWAIT | W::STOPPED | W::EXITED | more)
}

/// Consumes the report of an ended thread, so that the kernel can free it.
pub(crate) fn reap(tid: Tid) {
    let options = WaitOptions::from_bits_retain(ALL_CHILDREN) | WaitOptions::NOHANG;
    let _ = waitpid(tid.raw(), options);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_by_code() {
        assert_eq!(decode(libc::SIGTRAP | 128 << 8), Stop::Rest);
        assert_eq!(decode(libc::SIGSTOP | 128 << 8), Stop::Rest);
        assert_eq!(decode(libc::SIGSTOP), Stop::Signal(Sig(libc::SIGSTOP)));
        assert_eq!(decode(libc::SIGTRAP | 0x80), Stop::Syscall);
        assert_eq!(decode(libc::SIGTRAP), Stop::Signal(Sig(libc::SIGTRAP)));
        assert_eq!(decode(libc::SIGTRAP | 2 << 8), Stop::Vfork);
        assert_eq!(decode(libc::SIGTRAP | 3 << 8), Stop::Clone);
        assert_eq!(decode(libc::SIGTRAP | 4 << 8), Stop::Exec);
        assert_eq!(decode(64), Stop::Signal(Sig(64)));
    }
}
