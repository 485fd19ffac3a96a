//! Instruction by instruction: a thread watched for an address, and copies of it that are stepped and thrown away.
//!
//! This is for tests that look at a live process; no command of the product steps anything. A [`Watched`] thread runs
//! freely until it is about to execute one of four addresses (the CPU's debug registers: no byte of the target is
//! changed). There it can be doubled: a [`Twin`] is a process with this one thread and a private copy of the memory,
//! made by a `clone` system call without exit signal, so that the target's own waiting does not see it. A twin never
//! runs freely: the kernel kills it when its tracer ends.
//!
//! INVARIANT(disarmed): debug registers are armed only while we wait for them. A thread that met one untraced would
//! die of it.
//!
//! The values belong to the thread that made them, as the kernel's tracing does.

use crate::ptrace::{self, OPTIONS, Stop, TRACE_CLONE, Wait};
use crate::remote::Gadgets;
use crate::restart::cure;
use crate::{Error, Pid, Process, Regs, Remote, Sig, Tid};
use addr::Avma;
use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::time::{Duration, Instant};

const PTRACE_POKEUSER: usize = 6;
const PTRACE_SINGLESTEP: usize = 9;
const PTRACE_GETSIGINFO: usize = 0x4202;
const PTRACE_GETREGSET: usize = 0x4204;
/// Tracees die with their tracer. For twins only.
const EXIT_KILL: usize = 1 << 20;
/// How many addresses can be watched at once.
pub const MAX_WATCHED: usize = 4;
/// How long a thread gets to stop. One that does not is in an uninterruptible wait.
const PATIENCE: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_micros(50);
/// In a set of signals.
const TRAP: u64 = 1 << (libc::SIGTRAP - 1);

/// Requests that neither read nor write our memory.
fn request(request: usize, tid: Tid, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests given here take `addr` and `data` as numbers.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, request, tid.0, addr, data) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn os(what: &'static str, tid: Tid) -> impl Fn(io::Error) -> Error {
    move |source| match source.raw_os_error() {
        Some(libc::ESRCH) => Error::ThreadGone(tid),
        _ => Error::Os { what, tid, source },
    }
}

/// Writes debug register `i`.
fn set_debug_register(tid: Tid, i: usize, value: u64) -> Result<(), Error> {
    let at = offset_of!(libc::user, u_debugreg) + i * size_of::<u64>();
    let value = usize::try_from(value).unwrap_or(0);
    request(PTRACE_POKEUSER, tid, at, value).map_err(os("pokeuser", tid))
}

/// Whether the signal a thread is stopped by comes from a debug register.
fn is_breakpoint(tid: Tid) -> bool {
    const TRAP_HWBKPT: i32 = 4;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: GETSIGINFO writes one siginfo_t to `data`.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_GETSIGINFO, tid.0, 0, info.as_mut_ptr()) };
    // SAFETY: plain integers, zeroed and perhaps written.
    let info = unsafe { info.assume_init() };
    rc == 0 && info.si_signo == libc::SIGTRAP && info.si_code == TRAP_HWBKPT
}

/// Waits for a tracee that is sure to stop or end soon.
fn wait(tid: Tid) -> io::Result<Wait> {
    const WNOTHREAD: libc::c_int = 0x2000_0000;
    let id = libc::id_t::try_from(tid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    loop {
        let flags = libc::WNOWAIT | libc::WSTOPPED | libc::WEXITED | libc::__WALL | WNOTHREAD;
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: `info` is valid for writes of a siginfo_t. It is not looked at: `look` tells the same again.
        let rc = unsafe { libc::waitid(libc::P_PID, id, info.as_mut_ptr(), flags) };
        match (rc, io::Error::last_os_error()) {
            (0, _) => return ptrace::look(tid),
            (_, e) if e.raw_os_error() == Some(libc::EINTR) => {}
            (_, e) => return Err(e),
        }
    }
}

/// Runs one system call on a thread that is stopped outside of any; its result, and the new process if it made one.
/// The registers are as before. Signals, if not blocked, are lost.
fn call(process: &Process, tid: Tid, nr: i64, args: [u64; 6]) -> Result<(i64, Option<Tid>), Error> {
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

/// From the entry of a call to its return.
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

/// Copies a thread that is stopped outside of any system call. `options` are those it is traced with.
fn double(process: &Process, tid: Tid, options: usize) -> Result<Twin, Error> {
    let regs = ptrace::regs(tid).map_err(os("getregs", tid))?;
    ptrace::set_options(tid, options | TRACE_CLONE).map_err(os("setoptions", tid))?;
    // No flags, no exit signal, the same stack.
    let (result, child) = call(process, tid, libc::SYS_clone, [0; 6])?;
    let errno = i32::try_from(-result).unwrap_or(libc::EAGAIN);
    let twin = Twin::begin(child.ok_or(Error::Remote { nr: libc::SYS_clone, errno })?, &regs);
    ptrace::set_options(tid, options).map_err(os("setoptions", tid))?;
    twin
}

/// What came of letting a watched thread run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It is about to execute a watched address and stands there.
    Hit,
    /// It did not get there in time. It stands wherever it was.
    Late,
    /// It has ended, or become another program.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Running,
    /// In the kernel's stop of that name: nothing is owed to it.
    Rest,
    /// About to execute an instruction, out of any system call; going on needs no more than its registers.
    Hit,
    Ended,
}

/// One live thread of a process. Dropped, it goes on untraced.
#[derive(Debug)]
pub struct Watched {
    process: Process,
    tid: Tid,
    at: Where,
    armed: bool,
    /// Whether it blocks SIGTRAP, which the kernel does not bear with at a breakpoint.
    blocks_trap: bool,
    /// Not to leave the thread that traces.
    _here: PhantomData<*const ()>,
}

impl Watched {
    /// Seizes a thread and stops it.
    ///
    /// # Errors
    /// [`Error::ThreadGone`]; [`Error::Os`] where it cannot be traced.
    pub fn seize(process: &Process, tid: Tid) -> Result<Self, Error> {
        ptrace::seize(tid, OPTIONS).map_err(os("seize", tid))?;
        let process = process.clone();
        let at = Where::Running;
        let mut w = Self { process, tid, at, armed: false, blocks_trap: false, _here: PhantomData };
        w.halt()?;
        if w.at == Where::Ended { Err(Error::ThreadGone(tid)) } else { Ok(w) }
    }

    /// The thread.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Its registers where it stands.
    ///
    /// # Errors
    /// [`Error::ThreadGone`].
    pub fn regs(&self) -> Result<Regs, Error> {
        ptrace::regs(self.tid).map_err(os("getregs", self.tid))
    }

    /// Lets it run until it is about to execute one of `entries` (at most [`MAX_WATCHED`] count), for at most `limit`.
    ///
    /// # Errors
    /// [`Error::Os`] where there are no debug registers to be had.
    pub fn run_to(&mut self, entries: &[Avma], limit: Duration) -> Result<Run, Error> {
        if self.at == Where::Ended {
            return Ok(Run::Ended);
        }
        self.arm(entries)?;
        self.go_on()?;
        let deadline = Instant::now() + limit;
        while self.at == Where::Running && Instant::now() < deadline {
            self.look()?;
            if self.at == Where::Running {
                std::thread::sleep(NAP);
            }
        }
        if self.at == Where::Running {
            self.halt()?;
        }
        if self.at != Where::Ended {
            self.disarm()?;
        }
        Ok(match self.at {
            Where::Hit => Run::Hit,
            Where::Ended => Run::Ended,
            _ => Run::Late,
        })
    }

    /// Copies the thread where it stands after [`Run::Hit`]. The thread itself stays as it was.
    ///
    /// # Errors
    /// [`Error::Remote`] where the system call fails; [`Error::NotStopped`] where the thread does not stand at a hit.
    pub fn twin(&mut self) -> Result<Twin, Error> {
        let tid = self.tid;
        if self.at != Where::Hit {
            return Err(Error::NotStopped(tid));
        }
        let mask = ptrace::sigmask(tid).map_err(os("getsigmask", tid))?;
        ptrace::set_sigmask(tid, u64::MAX).map_err(os("setsigmask", tid))?;
        let twin = double(&self.process, tid, OPTIONS);
        // Whatever went before: it gets its own state back.
        ptrace::set_sigmask(tid, mask).map_err(os("setsigmask", tid))?;
        twin
    }

    fn arm(&mut self, entries: &[Avma]) -> Result<(), Error> {
        let entries = entries.get(..MAX_WATCHED).unwrap_or(entries);
        let mask = ptrace::sigmask(self.tid).map_err(os("getsigmask", self.tid))?;
        self.blocks_trap = mask & TRAP != 0;
        self.armed = true;
        // DR7: bit 2i enables register i for this thread; type and length 0 mean execution.
        let mut control = 0;
        for (i, at) in entries.iter().enumerate() {
            set_debug_register(self.tid, i, at.0)?;
            control |= 1 << (2 * i);
        }
        set_debug_register(self.tid, 7, control)
    }

    /// INVARIANT(disarmed)
    fn disarm(&mut self) -> Result<(), Error> {
        if !self.armed {
            return Ok(());
        }
        set_debug_register(self.tid, 7, 0)?;
        self.armed = false;
        self.take_pending()?;
        if self.blocks_trap && self.at == Where::Hit {
            let mask = ptrace::sigmask(self.tid).map_err(os("getsigmask", self.tid))?;
            ptrace::set_sigmask(self.tid, mask | TRAP).map_err(os("setsigmask", self.tid))?;
        }
        Ok(())
    }

    /// A breakpoint that was met while the thread was being stopped is still to be reported.
    fn take_pending(&mut self) -> Result<(), Error> {
        while self.at == Where::Rest && self.process.thread_status(self.tid)?.sig_pnd & TRAP != 0 {
            self.go_on()?;
            self.settle()?;
        }
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Error> {
        if self.at == Where::Rest {
            self.cure();
        }
        self.at = Where::Running;
        self.gone_is_ended(ptrace::cont(self.tid, None), "cont")
    }

    /// Stops it.
    fn halt(&mut self) -> Result<(), Error> {
        if self.at == Where::Running {
            self.gone_is_ended(ptrace::interrupt(self.tid), "interrupt")?;
            self.settle()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        while self.at == Where::Running {
            if Instant::now() > deadline {
                return Err(Error::NoThread(self.process.pid()));
            }
            self.look()?;
            if self.at == Where::Running {
                std::thread::sleep(NAP);
            }
        }
        Ok(())
    }

    /// Looks once, and lets it go on from all stops that are none of ours.
    fn look(&mut self) -> Result<(), Error> {
        let tid = self.tid;
        let stop = match ptrace::look(tid).map_err(os("waitid", tid))? {
            Wait::Running => return Ok(()),
            Wait::Ended | Wait::NotOurs => {
                self.at = Where::Ended;
                if tid.0 != self.process.pid().0 {
                    ptrace::reap(tid);
                }
                return Ok(());
            }
            Wait::Stopped(stop) => stop,
        };
        match stop {
            Stop::Rest => self.at = Where::Rest,
            Stop::Exec => {
                // Nothing known holds any more, and nothing is armed in a new program.
                self.armed = false;
                self.at = Where::Ended;
                return self.gone_is_ended(ptrace::detach(tid), "detach");
            }
            Stop::Signal(Sig(libc::SIGTRAP)) if is_breakpoint(tid) => self.at = Where::Hit,
            Stop::Signal(sig) => {
                self.cure();
                return self.gone_is_ended(ptrace::cont(tid, Some(sig)), "cont");
            }
            Stop::Syscall | Stop::Clone | Stop::Other(_) => {
                return self.gone_is_ended(ptrace::cont(tid, None), "cont");
            }
        }
        Ok(())
    }

    fn gone_is_ended(&mut self, r: io::Result<()>, what: &'static str) -> Result<(), Error> {
        match r {
            // Killed, which the next look would tell too.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.at = Where::Ended;
                Ok(())
            }
            r => r.map_err(os(what, self.tid)),
        }
    }

    /// A call that was interrupted does not fail because of us.
    fn cure(&self) {
        if let Ok(regs) = self.regs()
            && let Some(cured) = cure(&self.process, &regs)
        {
            // Gone: nothing to cure.
            let _ = ptrace::set_regs(self.tid, &cured);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Each step on its own: what fails, fails as the thread has ended.
        let _ = self.halt();
        if self.at != Where::Ended {
            let _ = self.disarm();
            if self.at == Where::Rest {
                self.cure();
            }
            let _ = ptrace::detach(self.tid);
        }
    }
}

/// What one step of a twin came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// One instruction (of a repeated one: one round) was executed.
    Done,
    /// It was not: a signal is about to be delivered.
    Signal(Sig),
    /// The twin is gone.
    Ended,
}

/// A copy of a thread with a memory of its own, at rest. Dropped, it is killed, with its own copies; see [`bury`].
#[derive(Debug)]
pub struct Twin {
    process: Process,
    tid: Tid,
    copies: Vec<Tid>,
    _here: PhantomData<*const ()>,
}

impl Twin {
    /// Takes over a newborn twin and gives it the registers of the thread of which it is the copy.
    fn begin(tid: Tid, regs: &Regs) -> Result<Self, Error> {
        let born = || -> Result<Process, Error> {
            if !matches!(wait(tid).map_err(os("waitid", tid))?, Wait::Stopped(_)) {
                return Err(Error::ThreadGone(tid));
            }
            // Before anything else: it must not outlive us.
            ptrace::set_options(tid, OPTIONS | EXIT_KILL).map_err(os("setoptions", tid))?;
            let mut own = *regs;
            own.0.orig_rax = u64::MAX;
            ptrace::set_regs(tid, &own).map_err(os("setregs", tid))?;
            Process::open(Pid(tid.0))
        };
        born()
            .map(|process| Self { process, tid, copies: Vec::new(), _here: PhantomData })
            .inspect_err(|_| kill(tid))
    }

    /// Copies it. Unlike two copies of a live thread, which are of two moments as other threads run on, a twin and its copy
    /// are equal.
    ///
    /// # Errors
    /// As [`Watched::twin`].
    pub fn twin(&mut self) -> Result<Twin, Error> {
        let twin = double(&self.process, self.tid, OPTIONS | EXIT_KILL)?;
        self.copies.push(twin.tid);
        Ok(twin)
    }

    /// Its memory.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its registers.
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

    /// Its extended state (x87, SSE, AVX…) in the standard XSAVE format, as much as `buf` takes; the number of bytes.
    ///
    /// # Errors
    /// [`Error::ThreadGone`].
    pub fn xsave(&self, buf: &mut [u8]) -> Result<usize, Error> {
        const NT_X86_XSTATE: usize = 0x202;
        let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: the kernel writes at most `iov_len` bytes to `buf`, and the length to `iov`.
        let rc = unsafe {
            libc::syscall(libc::SYS_ptrace, PTRACE_GETREGSET, self.tid.0, NT_X86_XSTATE, &raw mut iov)
        };
        if rc < 0 {
            return Err(os("getregset", self.tid)(io::Error::last_os_error()));
        }
        Ok(iov.iov_len.min(buf.len()))
    }

    /// Keeps it on one CPU: what it reads of the CPU it runs on is then the same for all twins there.
    ///
    /// # Errors
    /// [`Error::Os`] where the CPU is not to be had.
    pub fn pin(&mut self, cpu: usize) -> Result<(), Error> {
        let mut set = [0u64; 16];
        if let Some(word) = set.get_mut(cpu / 64) {
            *word = 1 << (cpu % 64);
        }
        // SAFETY: reads as many bytes as stated.
        let rc = unsafe {
            libc::syscall(libc::SYS_sched_setaffinity, self.tid.0, size_of_val(&set), set.as_ptr())
        };
        if rc < 0 { Err(os("sched_setaffinity", self.tid)(io::Error::last_os_error())) } else { Ok(()) }
    }

    /// Executes one instruction. Give none that may wait.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn step(&mut self) -> Result<Stepped, Error> {
        let ended = |e: &io::Error| e.raw_os_error() == Some(libc::ESRCH);
        match request(PTRACE_SINGLESTEP, self.tid, 0, 0) {
            Err(e) if ended(&e) => return Ok(Stepped::Ended),
            r => r.map_err(os("singlestep", self.tid))?,
        }
        Ok(match wait(self.tid).map_err(os("waitid", self.tid))? {
            Wait::Stopped(Stop::Signal(Sig(libc::SIGTRAP))) => Stepped::Done,
            Wait::Stopped(Stop::Signal(sig)) => Stepped::Signal(sig),
            // Nothing else is possible without a system call.
            Wait::Stopped(_) | Wait::Running => Stepped::Done,
            Wait::Ended | Wait::NotOurs => Stepped::Ended,
        })
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        for &copy in &self.copies {
            kill(copy);
            // Only its parent can take its end.
            let _ = call(&self.process, self.tid, libc::SYS_wait4, wait_args(Pid(copy.0)));
        }
        kill(self.tid);
    }
}

/// Kills a twin and takes our part of its end.
fn kill(tid: Tid) {
    // Its number may be another's by now.
    if matches!(ptrace::look(tid), Ok(Wait::NotOurs) | Err(_)) {
        return;
    }
    // SAFETY: takes two integers.
    unsafe { libc::kill(tid.0, libc::SIGKILL) };
    while matches!(wait(tid), Ok(Wait::Stopped(_) | Wait::Running)) {
        // The report of an earlier stop may come first.
        std::thread::yield_now();
    }
    ptrace::reap(tid);
}

/// The CPU this thread runs on.
#[must_use]
pub fn own_cpu() -> usize {
    // SAFETY: takes nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Has the target take the ends of dead twins: as their parent, only it can.
///
/// # Errors
/// As [`Remote::syscall`], except that twins already taken are no error.
pub fn bury(remote: &mut Remote<'_>, twins: &[Pid]) -> Result<(), Error> {
    for twin in twins {
        match remote.syscall(libc::SYS_wait4, wait_args(*twin)) {
            Ok(_) | Err(Error::Remote { errno: libc::ECHILD, .. }) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// `wait4` for one child, of whatever kind, without waiting.
fn wait_args(child: Pid) -> [u64; 6] {
    let flags = u64::from((libc::__WALL | libc::WNOHANG).cast_unsigned());
    [u64::from(child.0.cast_unsigned()), 0, flags, 0, 0, 0]
}
