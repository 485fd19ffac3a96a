//! A live thread watched for addresses.
//!
//! It runs freely until it is about to execute one of at most four addresses. The CPU's debug registers stop
//! it, so no byte of the target changes. There it can be copied (see [`Twin`]).
//!
//! INVARIANT(disarmed): debug registers are armed only while whet waits for the thread. A thread that meets
//! an armed register while untraced dies. This can happen if whet is killed during the wait.
//!
//! The value belongs to the thread that created it, as the kernel's tracing does.

use crate::ptrace::{self, OPTIONS, Stop, Wait, request};
use crate::restart::cure;
use crate::step::{NAP, PATIENCE, os};
use crate::twin::double;
use crate::{Error, Process, Regs, Sig, Tid, Twin};
use addr::Avma;
use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::time::{Duration, Instant};

/// How many addresses can be watched at once.
pub const MAX_WATCHED: usize = 4;
/// SIGTRAP in a set of signals.
const TRAP: u64 = 1 << (libc::SIGTRAP - 1);

/// Writes debug register `i`.
fn set_debug_register(tid: Tid, i: usize, value: u64) -> Result<(), Error> {
    const PTRACE_POKEUSER: usize = 6;
    let at = offset_of!(libc::user, u_debugreg) + i * size_of::<u64>();
    let value = usize::try_from(value).unwrap_or(0);
    request(PTRACE_POKEUSER, tid, at, value).map_err(os("pokeuser", tid))
}

/// Returns whether the signal that stopped a thread comes from a debug register.
fn is_breakpoint(tid: Tid) -> bool {
    const TRAP_HWBKPT: i32 = 4;
    const PTRACE_GETSIGINFO: usize = 0x4202;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: GETSIGINFO writes one siginfo_t to `data`.
    let rc = unsafe { libc::syscall(libc::SYS_ptrace, PTRACE_GETSIGINFO, tid.0, 0, info.as_mut_ptr()) };
    // SAFETY: plain integers, zeroed and perhaps written.
    let info = unsafe { info.assume_init() };
    rc == 0 && info.si_signo == libc::SIGTRAP && info.si_code == TRAP_HWBKPT
}

/// The result of running a watched thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// The thread is stopped and about to execute a watched address.
    Hit,
    /// The thread did not reach an address in time. It is stopped wherever it was.
    Late,
    /// The thread has ended, or executed another program.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Running,
    /// In `PTRACE_EVENT_STOP`, with no signal or event pending for it.
    Rest,
    /// About to execute an instruction, outside any system call; it can be resumed with its registers alone.
    Hit,
    Ended,
}

/// One live thread of a process. When dropped, the thread continues untraced.
#[derive(Debug)]
pub struct Watched {
    process: Process,
    tid: Tid,
    at: Where,
    armed: bool,
    /// Whether the thread blocks SIGTRAP, which the kernel does not accept at a breakpoint.
    blocks_trap: bool,
    /// Keeps the value in the thread that traces.
    _here: PhantomData<*const ()>,
}

impl Watched {
    /// Seizes a thread and stops it.
    ///
    /// # Errors
    /// [`Error::ThreadGone`]; [`Error::Os`] if the thread cannot be traced.
    pub fn seize(process: &Process, tid: Tid) -> Result<Self, Error> {
        ptrace::seize(tid, OPTIONS).map_err(|e| match process.thread_status(tid) {
            // For an ending thread the kernel returns EPERM.
            Ok(s) if s.is_ending() => Error::ThreadGone(tid),
            Err(e) => e,
            Ok(_) => os("seize", tid)(e),
        })?;
        let process = process.clone();
        let at = Where::Running;
        let mut w = Self { process, tid, at, armed: false, blocks_trap: false, _here: PhantomData };
        w.halt()?;
        if w.at == Where::Ended { Err(Error::ThreadGone(tid)) } else { Ok(w) }
    }

    /// Returns the thread's id.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns the thread's current registers.
    ///
    /// # Errors
    /// [`Error::ThreadGone`].
    pub fn regs(&self) -> Result<Regs, Error> {
        ptrace::regs(self.tid).map_err(os("getregs", self.tid))
    }

    /// Runs the thread until it is about to execute one of `entries` (the first [`MAX_WATCHED`] count), for
    /// at most `limit`.
    ///
    /// # Errors
    /// [`Error::Os`] if no debug registers are available.
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

    /// Copies the thread at its address after [`Run::Hit`]. The thread itself does not change.
    ///
    /// # Errors
    /// [`Error::Remote`] if the system call fails; [`Error::NotStopped`] if the thread is not at a hit.
    pub fn twin(&mut self) -> Result<Twin, Error> {
        let tid = self.tid;
        if self.at != Where::Hit {
            return Err(Error::NotStopped(tid));
        }
        let mask = ptrace::sigmask(tid).map_err(os("getsigmask", tid))?;
        ptrace::set_sigmask(tid, u64::MAX).map_err(os("setsigmask", tid))?;
        let twin = double(&self.process, tid, OPTIONS);
        // The thread gets its own state back even if the copy failed.
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

    /// Waits for a breakpoint that the thread met during its stop: its report is still pending.
    fn take_pending(&mut self) -> Result<(), Error> {
        while self.at == Where::Rest && self.process.thread_status(self.tid)?.sig_pnd & TRAP != 0 {
            self.go_on()?;
            self.wait_until_stopped()?;
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

    /// Stops the thread.
    fn halt(&mut self) -> Result<(), Error> {
        if self.at == Where::Running {
            self.gone_is_ended(ptrace::interrupt(self.tid), "interrupt")?;
            self.wait_until_stopped()?;
        }
        Ok(())
    }

    fn wait_until_stopped(&mut self) -> Result<(), Error> {
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

    /// Looks at the thread once, and continues it from all stops that do not concern whet.
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
                // No earlier state is valid, and nothing is armed in a new program.
                self.armed = false;
                self.at = Where::Ended;
                return self.gone_is_ended(ptrace::detach(tid, None), "detach");
            }
            Stop::Signal(Sig(libc::SIGTRAP)) if is_breakpoint(tid) => self.at = Where::Hit,
            Stop::Signal(sig) => {
                self.cure();
                return self.gone_is_ended(ptrace::cont(tid, Some(sig)), "cont");
            }
            Stop::Syscall | Stop::Clone | Stop::Vfork | Stop::Other(_) => {
                return self.gone_is_ended(ptrace::cont(tid, None), "cont");
            }
        }
        Ok(())
    }

    fn gone_is_ended(&mut self, r: io::Result<()>, what: &'static str) -> Result<(), Error> {
        match r {
            // The thread was killed, which the next look would report as well.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {
                self.at = Where::Ended;
                Ok(())
            }
            r => r.map_err(os(what, self.tid)),
        }
    }

    /// Keeps an interrupted call from failing because of whet.
    fn cure(&self) {
        if let Ok(regs) = self.regs()
            && let Some(cured) = cure(&self.process, &regs)
        {
            // A thread that has ended needs no correction.
            let _ = ptrace::set_regs(self.tid, &cured);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The steps are independent: a step fails only because the thread has ended.
        let _ = self.halt();
        if self.at != Where::Ended {
            let _ = self.disarm();
            if self.at == Where::Rest {
                self.cure();
            }
            let _ = ptrace::detach(self.tid, None);
        }
    }
}
