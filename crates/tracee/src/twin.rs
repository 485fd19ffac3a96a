//! Copies of a thread, made to be stepped and discarded.
//!
//! A [`Twin`] is a process with one thread and a private copy of the memory. It is made by a `clone` system
//! call without exit signal, so that the target's own waits do not report it. It never runs freely, and the
//! kernel kills it when its tracer ends.

use crate::ptrace::{self, OPTIONS, Stop, TRACE_CLONE, Wait, request};
use crate::regs::error_of;
use crate::step::{PATIENCE, call, os, sleep_until_report, wait};
use crate::watchdog::Watchdog;
use crate::{Error, Pid, Process, Regs, Remote, Sig, Tid};
use rustix::process::{Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::marker::PhantomData;

/// The kernel kills tracees when their tracer ends.
const EXIT_KILL: usize = 1 << 20;

/// Copies a thread that is stopped outside any system call. `options` are its tracing options.
pub(crate) fn double(process: &Process, tid: Tid, options: usize) -> Result<Twin, Error> {
    let regs = ptrace::regs(tid).map_err(os("getregs", tid))?;
    ptrace::set_options(tid, options | TRACE_CLONE).map_err(os("setoptions", tid))?;
    // No flags, no exit signal, the same stack.
    let (result, child) = call(process, tid, libc::SYS_clone, [0; 6])?;
    let errno = error_of(result).unwrap_or(libc::EAGAIN);
    let twin = Twin::begin(child.ok_or(Error::Remote { nr: libc::SYS_clone, errno })?, &regs);
    ptrace::set_options(tid, options).map_err(os("setoptions", tid))?;
    twin
}

/// The result of one step of a twin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// One instruction (one iteration of a repeated instruction) was executed.
    Done,
    /// No instruction was executed: a signal is about to be delivered.
    Signal(Sig),
    /// The twin has ended.
    Ended,
}

/// A copy of a thread with its own memory, at rest. When dropped, it is killed together with its own copies;
/// see [`bury`].
#[derive(Debug)]
pub struct Twin {
    process: Process,
    tid: Tid,
    copies: Vec<Tid>,
    watchdog: Watchdog,
    _here: PhantomData<*const ()>,
}

impl Twin {
    /// Initializes a new twin with the registers of the thread that it copies.
    fn begin(tid: Tid, regs: &Regs) -> Result<Self, Error> {
        let born = || -> Result<(Process, Watchdog), Error> {
            if !matches!(wait(tid).map_err(os("waitid", tid))?, Wait::Stopped(_)) {
                return Err(Error::ThreadGone(tid));
            }
            // This comes first: the twin must not outlive its tracer.
            ptrace::set_options(tid, OPTIONS | EXIT_KILL).map_err(os("setoptions", tid))?;
            let mut own = *regs;
            own.0.orig_rax = u64::MAX;
            ptrace::set_regs(tid, &own).map_err(os("setregs", tid))?;
            let process = Process::open(Pid(tid.0))?;
            let watchdog = Watchdog::over(&process, PATIENCE).map_err(os("watchdog", tid))?;
            Ok((process, watchdog))
        };
        born()
            .map(|(process, watchdog)| Self {
                process,
                tid,
                copies: Vec::new(),
                watchdog,
                _here: PhantomData,
            })
            .inspect_err(|_| kill(tid))
    }

    /// Copies the twin. Two copies of a live thread are from two moments, as other threads run on. A twin and
    /// its copy are equal.
    ///
    /// # Errors
    /// As [`crate::Watched::twin`].
    pub fn twin(&mut self) -> Result<Twin, Error> {
        let twin = double(&self.process, self.tid, OPTIONS | EXIT_KILL)?;
        self.copies.push(twin.tid);
        Ok(twin)
    }

    /// Returns the process of the twin, for access to its memory.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns its registers.
    ///
    /// # Errors
    /// [`Error::ThreadGone`].
    pub fn regs(&self) -> Result<Regs, Error> {
        ptrace::regs(self.tid).map_err(os("getregs", self.tid))
    }

    /// Changes its registers.
    ///
    /// # Errors
    /// [`Error::ThreadGone`].
    pub fn set_regs(&mut self, regs: &Regs) -> Result<(), Error> {
        ptrace::set_regs(self.tid, regs).map_err(os("setregs", self.tid))
    }

    /// Reads its extended state (x87, SSE, AVX…) in the standard XSAVE format, as much as fits in `buf`.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// [`Error::ThreadGone`].
    pub fn xsave(&self, buf: &mut [u8]) -> Result<usize, Error> {
        const NT_X86_XSTATE: usize = 0x202;
        ptrace::register_set(self.tid, NT_X86_XSTATE, buf).map_err(os("getregset", self.tid))
    }

    /// Keeps the twin on one CPU. Whatever it reads of its CPU is then the same for all twins on that CPU.
    ///
    /// # Errors
    /// [`Error::Os`] if the CPU is not available.
    pub fn pin(&mut self, cpu: usize) -> Result<(), Error> {
        let mut set = CpuSet::new();
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
        sched_setaffinity(self.tid.raw(), &set).map_err(|e| os("sched_setaffinity", self.tid)(e.into()))
    }

    /// Executes one instruction. The instruction must not wait.
    ///
    /// # Errors
    /// [`Error::Os`]; with `TimedOut` if the instruction did not finish within a minute or two and the twin
    /// was killed.
    pub fn step(&mut self) -> Result<Stepped, Error> {
        const PTRACE_SINGLESTEP: usize = 9;
        let ended = |e: &io::Error| e.raw_os_error() == Some(libc::ESRCH);
        match request(PTRACE_SINGLESTEP, self.tid, 0, 0) {
            Err(e) if ended(&e) => return Ok(Stepped::Ended),
            r => r.map_err(os("singlestep", self.tid))?,
        }
        let report = self.watchdog.during(|| sleep_until_report(self.tid));
        Ok(match report.map_err(os("singlestep", self.tid))? {
            Wait::Stopped(Stop::Signal(Sig(libc::SIGTRAP))) => Stepped::Done,
            Wait::Stopped(Stop::Signal(sig)) => Stepped::Signal(sig),
            // Without a system call no other stop is possible.
            Wait::Stopped(_) | Wait::Running => Stepped::Done,
            Wait::Ended | Wait::NotOurs => Stepped::Ended,
        })
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        for &copy in &self.copies {
            kill(copy);
            // Only its parent can reap it.
            let _ = call(&self.process, self.tid, libc::SYS_wait4, wait_args(Pid(copy.0)));
        }
        kill(self.tid);
    }
}

/// Kills a twin and reaps it as its tracer.
fn kill(tid: Tid) {
    // The id may mean another thread by now.
    if matches!(ptrace::look(tid), Ok(Wait::NotOurs) | Err(_)) {
        return;
    }
    if let Some(tid) = tid.raw() {
        let _ = kill_process(tid, Signal::KILL);
    }
    while matches!(wait(tid), Ok(Wait::Stopped(_) | Wait::Running)) {
        // The report of an earlier stop may come first.
        std::thread::yield_now();
    }
    ptrace::reap(tid);
}

/// Returns the CPU that this thread runs on.
#[must_use]
pub fn own_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// Makes the target reap dead twins: only it can, as their parent.
///
/// # Errors
/// As [`Remote::syscall`], except that twins already reaped are no error.
pub fn bury(remote: &mut Remote<'_>, twins: &[Pid]) -> Result<(), Error> {
    for twin in twins {
        match remote.syscall(libc::SYS_wait4, wait_args(*twin)) {
            Ok(_) | Err(Error::Remote { errno: libc::ECHILD, .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Returns the arguments of `wait4` for one child of any kind, without waiting.
fn wait_args(child: Pid) -> [u64; 6] {
    let flags = u64::from((libc::__WALL | libc::WNOHANG).cast_unsigned());
    [u64::from(child.0.cast_unsigned()), 0, flags, 0, 0, 0]
}
