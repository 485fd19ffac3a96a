//! Kernel requests for watching and stepping, beyond stops: see `watched` and `twin`.
//!
//! Only tests that look at a live process use this; no command of the product steps a thread.

use crate::ptrace::{self, Stop, Wait};
use crate::remote::Gadgets;
use crate::watchdog::too_long;
use crate::{Error, Process, Tid};
use rustix::io::Errno;
use rustix::process::WaitIdOptions;
use std::io;
use std::time::{Duration, Instant};

pub(crate) fn os(what: &'static str, tid: Tid) -> impl Fn(io::Error) -> Error {
    move |source| match source.raw_os_error() {
        Some(libc::ESRCH) => Error::ThreadGone(tid),
        _ => Error::Os { what, tid, source },
    }
}

/// How long a tracee gets to stop or end. A tracee that takes longer is in an uninterruptible wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// Waits for a tracee that is certain to stop or end soon.
///
/// # Errors
/// `TimedOut` if it does not.
pub(crate) fn wait(tid: Tid) -> io::Result<Wait> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ptrace::look(tid)? {
            Wait::Running if Instant::now() < deadline => std::thread::sleep(NAP),
            Wait::Running => return Err(too_long()),
            report => return Ok(report),
        }
    }
}

/// Like [`wait`], but sleeps until the report: for steps that are repeated a million times. Has no timeout.
pub(crate) fn sleep_until_report(tid: Tid) -> io::Result<Wait> {
    while let Err(e) = ptrace::report(tid, WaitIdOptions::empty()) {
        if e != Errno::INTR {
            return Err(e.into());
        }
    }
    // Reads the same report again.
    ptrace::look(tid)
}

/// Runs one system call on a thread that is stopped outside any system call. Returns its result, and the new
/// process if it created one. The registers are then as before. Signals that are not blocked are lost. If
/// whet is killed meanwhile, the thread cannot return.
pub(crate) fn call(
    process: &Process,
    tid: Tid,
    nr: i64,
    args: [u64; 6],
) -> Result<(i64, Option<Tid>), Error> {
    let gadgets = Gadgets::of(process)?;
    let mut own = ptrace::regs(tid).map_err(os("getregs", tid))?;
    own.0.orig_rax = u64::MAX;
    let mut away = own;
    let r = &mut away.0;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
    r.rax = nr.cast_unsigned();
    r.rip = gadgets.syscall.0;
    let done = ptrace::set_regs(tid, &away).map_err(os("setregs", tid)).and_then(|()| run_call(tid));
    ptrace::set_regs(tid, &own).map_err(os("setregs", tid))?;
    done
}

/// Runs a call from its entry to its return.
fn run_call(tid: Tid) -> Result<(i64, Option<Tid>), Error> {
    let (mut child, mut entered) = (None, false);
    loop {
        ptrace::to_syscall(tid, None).map_err(os("syscall", tid))?;
        match wait(tid).map_err(os("waitid", tid))? {
            Wait::Stopped(Stop::Clone) => {
                let message = ptrace::event_message(tid).map_err(os("geteventmsg", tid))?;
                child = i32::try_from(message).ok().map(Tid);
            }
            Wait::Stopped(Stop::Syscall) if !entered => entered = true,
            Wait::Stopped(Stop::Syscall) => break,
            Wait::Stopped(_) | Wait::Running => {}
            Wait::Ended | Wait::NotOurs => return Err(Error::ThreadGone(tid)),
        }
    }
    Ok((ptrace::regs(tid).map_err(os("getregs", tid))?.result(), child))
}
