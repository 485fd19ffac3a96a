//! Stops of all threads at once: seized, stopped, released.

use crate::group::Group;
use crate::priority::Raised;
use crate::remote::Gadgets;
use crate::shared::survey;
use crate::tracer::Tracer;
use crate::{Error, Patience, Process, Regs, StopError, Tid};
use addr::Avma;
use std::collections::BTreeMap;
use std::time::Duration;

/// Every thread is seized and runs. Call [`Seized::stop`] at once; signals, new threads and new children of vfork
/// wait until then. When dropped, it releases all threads.
#[derive(Debug)]
#[must_use]
pub struct Seized<'p> {
    process: &'p Process,
    tracer: Tracer,
    raised: Raised,
}

/// Every thread is stopped, in user code or in a system call that will continue unharmed. When dropped, all
/// threads are resumed as by [`Stopped::release`].
///
/// The calling thread has real-time priority (or the highest it may have) as long as this value lives.
#[derive(Debug)]
#[must_use]
pub struct Stopped<'p> {
    process: &'p Process,
    threads: BTreeMap<Tid, Regs>,
    tracer: Tracer,
    _raised: Raised,
}

/// The figures of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopReport {
    /// From the first thread's interruption to the last thread's release.
    pub stopped: Duration,
    /// How many threads were stopped.
    pub threads: usize,
    /// How many waiting calls were prevented from failing with EINTR.
    pub cured: usize,
}

impl<'p> Seized<'p> {
    /// Seizes every thread of a process, without stopping any, until no new thread appears.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::AlreadyTraced`], [`Error::SharesMemory`], [`Error::NoPermission`]. All
    /// threads are released by then.
    pub fn seize(process: &'p Process) -> Result<Self, Error> {
        let shared = survey(process).map_err(|e| process.cause(e))?;
        let raised = Raised::own();
        let tracer = Tracer::start(Group::new(process, shared))?;
        tracer.run(Group::seize_all)?;
        Ok(Self { process, tracer, raised })
    }

    /// Stops every thread, including those created meanwhile.
    ///
    /// # Errors
    /// [`StopError::Busy`] if a thread does not stop in time (a vfork parent, a wait for a dead disk, no
    /// CPU), or if a child that shares the memory has not left it yet. While the process has no routines in which
    /// threads finish transfers, the stop is tried for 28 times as long if it has ended transfers early.
    /// [`StopError::Failed`] with [`Error::Gone`], [`Error::Exec`], or [`Error::SharesMemory`] if such a child
    /// stays. All threads are released by then. Exception: interrupted threads in an uninterruptible wait (not in
    /// vfork alone) stay traced until the wait ends, for at most a minute, unless this program ends before or is
    /// the target's parent.
    pub fn stop(self, patience: impl Into<Patience>) -> Result<Stopped<'p>, StopError> {
        let patience = patience.into();
        let Self { process, tracer, raised } = self;
        let error = match tracer.call(move |group| group.stop_all(patience))? {
            Ok(threads) => {
                let threads = threads.into_iter().collect();
                return Ok(Stopped { process, threads, tracer, _raised: raised });
            }
            Err(error) => error,
        };
        // The threads are resumed first.
        drop(tracer);
        Err(match error {
            StopError::Failed(e) => process.cause(e).into(),
            StopError::Busy { .. } if process.is_ending() => Error::Gone(process.pid()).into(),
            busy @ StopError::Busy { .. } => busy,
        })
    }
}

impl<'p> Stopped<'p> {
    /// Returns the stopped threads, in ascending order: all threads (except a first thread that has ended).
    #[must_use]
    pub fn threads(&self) -> Vec<Tid> {
        self.threads.keys().copied().collect()
    }

    /// Returns whether all threads waited in system calls: the stop takes no time from the process.
    #[must_use]
    pub fn all_waited(&self) -> bool {
        self.threads.values().all(Regs::waited)
    }

    /// Returns the process.
    #[must_use]
    pub fn process(&self) -> &'p Process {
        self.process
    }

    /// Returns a thread's registers.
    ///
    /// # Errors
    /// [`Error::NotStopped`].
    pub fn regs(&self, tid: Tid) -> Result<Regs, Error> {
        self.threads.get(&tid).copied().ok_or(Error::NotStopped(tid))
    }

    /// Changes a thread's registers. Do not change `rax`, `orig_rax` and `rip` of a thread inside a system
    /// call: they are the kernel's.
    ///
    /// # Errors
    /// [`Error::NotStopped`], [`Error::ThreadGone`].
    pub fn set_regs(&mut self, tid: Tid, regs: Regs) -> Result<(), Error> {
        self.tracer.run(move |group| group.set_regs(tid, &regs))?;
        self.threads.insert(tid, regs);
        Ok(())
    }

    /// Writes over any protection, even if the kernel forbids it through `/proc/PID/mem`.
    ///
    /// # Errors
    /// [`Error::Unwritable`].
    pub fn write_text(&mut self, at: Avma, bytes: &[u8]) -> Result<(), Error> {
        write_text(self.process, &self.tracer, at, bytes)
    }

    /// Runs one system call in the target, on one of its threads, whose state is restored completely. The
    /// call must not wait, nor create or end threads or programs.
    ///
    /// # Errors
    /// [`Error::Remote`] if the call fails; other errors if it could not be made.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<i64, Error> {
        let gadgets = Gadgets::of(self.process).map_err(|e| self.process.cause(e))?;
        self.tracer.run(move |group| group.syscall_anywhere(gadgets, nr, args))
    }

    /// Provides room for `threads` threads to finish calls that stops end early, as far as the target can map
    /// it.
    ///
    /// # Errors
    /// [`Error::TracerLost`].
    pub fn make_finishing_code(&mut self, threads: usize) -> Result<(), Error> {
        self.tracer.call(move |group| group.make_areas_for(threads))
    }

    /// Resumes every thread.
    ///
    /// # Errors
    /// [`Error::TracerLost`]; all threads are resumed even then.
    pub fn release(self) -> Result<StopReport, Error> {
        self.tracer.call(Group::release)
    }
}

pub(crate) fn write_text(process: &Process, tracer: &Tracer, at: Avma, bytes: &[u8]) -> Result<(), Error> {
    let Err(first) = process.write(at, bytes) else { return Ok(()) };
    let bytes = bytes.to_vec();
    if matches!(first, Error::Gone(_)) {
        return Err(first);
    }
    tracer
        .run(move |group| group.poke(at, &bytes))
        .map_err(|e| if matches!(e, Error::Gone(_)) { e } else { first })
}
