//! The tracees of one tracing thread: which they are, and what their stops mean. `stopping` brings them to rest,
//! `resuming` lets them go.
//!
//! Invariant: a thread that is `resting` is in `PTRACE_EVENT_STOP`, and no signal or event is pending for it.
//! From any other stop (a signal, a clone) the thread is resumed at once, with the signal that belongs to the
//! stop. The pending interruption then brings it to rest on its way back to user code. There its registers
//! are user code's, it can run system calls for whet, and it can be resumed without any state to restore. The
//! thread itself finishes an interrupted call: see `finish`.
//!
//! INVARIANT(vfork): in the first stops of a process, a thread is not a tracee while a vfork of its own is under way:
//! see `vfork`. A tracee that enters vfork is detached before it waits. This escapes a thread that is seized while the
//! kernel makes its child, a child that takes long to end, and `stop_one`.

mod panics;
mod resuming;
mod stopping;

use crate::finish::Entering;
use crate::linger::make_way;
use crate::preflight::{held_by, is_tracer_ending};
use crate::ptrace::{self, OPTIONS, Stop, TRACE_CLONE, TRACE_VFORK, Wait};
use crate::rest::Rest;
use crate::restart::cure;
use crate::return_frame::Place;
use crate::slots::Slot;
use crate::vfork;
use crate::{Error, Process, Regs, Stuck, Tid};
#[cfg(test)]
pub(crate) use panics::Point;
use resuming::SOON;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) process: Process,
    /// Whether another process shared the memory before the stop.
    shared: bool,
    pub(crate) threads: BTreeMap<Tid, Thread>,
    /// Threads whose vfork is under way, and when this try of a stop first saw each not waiting. They are seized when it
    /// is over.
    forking: BTreeMap<Tid, Option<Instant>>,
    /// Set when the first thread is interrupted.
    since: Option<Instant>,
    pub(crate) cured: usize,
    exec: bool,
    /// Whether slots of ended threads have been searched for.
    pub(crate) reclaimed: bool,
    /// The place for the return frame of a thread at rest that has run a system call.
    pub(crate) place: Option<(Tid, Place)>,
    /// How many times a seize has begun or ended: odd during one.
    pub(crate) seizes: Arc<AtomicU64>,
    /// The thread that whet works on, and the threads at which it has panicked: see `panics`.
    at: Option<Tid>,
    faulty: BTreeSet<Tid>,
    /// Threads that were sent into a slot to continue their transfer, and may not have begun to.
    reentering: Vec<(Tid, Slot)>,
    #[cfg(test)]
    pub(crate) panics_at: panics::Spot,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    /// Its registers, once the thread is at rest.
    resting: Option<Regs>,
    /// The thread is only resumed when it comes to rest: it is not of the process, or it came too late.
    dismissed: bool,
    /// The thread is on its way into a slot and is resumed as soon as it is there.
    entering: Option<Entering>,
    /// The thread has not been interrupted yet, since that would end its transfer early.
    spared: bool,
    /// The thread that has created this one by vfork, and when this was seen. It waits for this one when this one is
    /// resumed.
    awaited_by: Option<(Tid, Instant)>,
}

const NEW: Thread =
    Thread { resting: None, dismissed: false, entering: None, spared: false, awaited_by: None };

impl Thread {
    fn is_late(&self) -> bool {
        self.resting.is_none() && !self.dismissed && !self.spared
    }

    /// A thread that is resumed as soon as it has come to rest.
    pub(crate) fn dismissed() -> Self {
        Self { dismissed: true, ..NEW }
    }

    /// A thread that enters a slot.
    pub(crate) fn entering(entering: Entering) -> Self {
        Self { dismissed: true, entering: Some(entering), ..NEW }
    }
}

/// The pause between two checks of threads that have not stopped yet. A thread is late only if it waits for a
/// CPU.
pub(crate) const NAP: Duration = Duration::from_micros(20);
/// How often the state letter of a late thread is read.
const LATE: Duration = Duration::from_millis(2);
/// How long a process that shares the memory gets to leave it while all threads are stopped, and an ending child of
/// vfork to send its signal. The kernel needs far less from a vfork parent's release to the child's end or new program.
const LEAVING: Duration = Duration::from_millis(5);
/// The pause between two checks of threads that are not waited for with all others stopped.
const LINGER_NAP: Duration = Duration::from_millis(1);
/// How long a background tracer, or a tracer that ends, gets to detach.
const MAKE_WAY: Duration = Duration::from_millis(500);

impl Group {
    /// `shared` is the result of [`survey`](crate::shared::survey). It may be `false` unless all threads are
    /// stopped.
    pub(crate) fn new(process: &Process, shared: bool) -> Self {
        let process = process.clone();
        Self {
            process,
            shared,
            threads: BTreeMap::new(),
            forking: BTreeMap::new(),
            since: None,
            cured: 0,
            exec: false,
            reclaimed: false,
            place: None,
            seizes: Arc::default(),
            at: None,
            faulty: BTreeSet::new(),
            reentering: Vec::new(),
            #[cfg(test)]
            panics_at: panics::Spot::default(),
        }
    }

    /// Seizes every thread, without stopping it, until no new thread appears.
    pub(crate) fn seize_all(&mut self) -> Result<(), Error> {
        while self.seize_new()? > 0 {
            self.pump()?;
        }
        match self.threads.is_empty() && self.forking.is_empty() {
            true => Err(Error::Gone(self.process.pid())),
            false => Ok(()),
        }
    }

    /// Seizes the threads that are not in the group yet, except threads in vfork. Returns their number.
    fn seize_new(&mut self) -> Result<usize, Error> {
        let mut new = 0;
        // Between two tries of a first stop, threads may enter vfork.
        let may_fork = self.shared || !self.process.can_finish();
        for tid in self.process.threads()? {
            // This order matters: a look at a thread's files costs as much as its stop.
            if self.threads.contains_key(&tid)
                || self.forking.contains_key(&tid)
                || self.process.is_worker(tid)
            {
                continue;
            }
            if may_fork && vfork::is_under_way(&self.process, tid) {
                self.forking.insert(tid, None);
                continue;
            }
            new += usize::from(self.add(tid)?);
        }
        Ok(new)
    }

    /// Seizes the threads whose vfork is over.
    fn seize_forked(&mut self) -> Result<(), Error> {
        for tid in self.forking.keys().copied().collect::<Vec<_>>() {
            if self.is_entering_vfork(tid) || vfork::is_waiting(&self.process, tid) {
                continue;
            }
            let child_ends = vfork::is_child_ending(&self.process, tid);
            let seen = *self.forking.entry(tid).or_default().get_or_insert_with(Instant::now);
            // A thread that makes one child after the other would never be seen without one that ends.
            if !child_ends || seen.elapsed() >= LEAVING {
                self.forking.remove(&tid);
                self.add(tid)?;
            }
        }
        Ok(())
    }

    /// Seizes a thread for a stop of all threads. Returns false if it has ended.
    fn add(&mut self, tid: Tid) -> Result<bool, Error> {
        if !self.seize(tid, OPTIONS | TRACE_CLONE | TRACE_VFORK)? {
            return Ok(false);
        }
        self.threads.insert(tid, NEW);
        if self.since.is_some() {
            self.interrupt(tid)?;
        }
        Ok(true)
    }

    /// Seizes one thread. Returns false if the thread has ended.
    fn seize(&self, tid: Tid, options: usize) -> Result<bool, Error> {
        let pid = self.process.pid();
        let since = Instant::now();
        // A tracer that ends releases its threads one by one, so a thread found traced may not be any more.
        let mut again = true;
        loop {
            self.seizes.fetch_add(1, Ordering::Relaxed);
            let seized = ptrace::seize(tid, options);
            self.seizes.fetch_add(1, Ordering::Relaxed);
            let source = match seized {
                // An id may mean a thread of another process since the list was read. The thread is only
                // seized, not stopped: the end of the tracing thread frees it.
                Ok(()) => return Ok(self.process.file(&format!("task/{tid}")).exists()),
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
                Err(e) => e,
            };
            let status = match self.process.thread_status(tid) {
                Ok(s) if s.is_ending() => return Ok(false),
                Ok(s) => s,
                Err(Error::ThreadGone(_)) => return Ok(false),
                Err(e) => return Err(e),
            };
            match status.tracer_pid {
                0 if again => again = false,
                0 => return Err(Error::NoPermission { pid, what: "trace", hint: String::new(), source }),
                // Created by a seized thread.
                by if Tid(by) == ptrace::own_tid() => return Ok(true),
                by if (make_way(by) || is_tracer_ending(by)) && since.elapsed() < MAKE_WAY => {
                    again = true;
                    std::thread::sleep(LINGER_NAP);
                }
                by => return Err(held_by(pid, tid, by)),
            }
        }
    }

    fn interrupt(&self, tid: Tid) -> Result<(), Error> {
        match ptrace::interrupt(tid) {
            // The thread has ended: the next look reports it.
            Err(source) if source.raw_os_error() != Some(libc::ESRCH) => {
                Err(Error::Os { what: "interrupt", tid, source })
            }
            _ => Ok(()),
        }
    }

    /// Looks once at every thread that is not at rest. Returns how many are still not at rest.
    pub(crate) fn pump(&mut self) -> Result<usize, Error> {
        let tids: Vec<Tid> =
            self.threads.iter().filter(|(_, t)| t.resting.is_none()).map(|(&tid, _)| tid).collect();
        for tid in tids {
            self.on(tid, |group| group.look(tid))?;
        }
        Ok(self.late().count())
    }

    fn look(&mut self, tid: Tid) -> Result<(), Error> {
        match ptrace::look(tid).map_err(|source| Error::Os { what: "waitid", tid, source })? {
            Wait::Running => {}
            Wait::Ended => self.forget(tid),
            Wait::NotOurs => {
                self.threads.remove(&tid);
            }
            Wait::Stopped(stop) => self.stopped(tid, stop)?,
        }
        Ok(())
    }

    fn stopped(&mut self, tid: Tid, stop: Stop) -> Result<(), Error> {
        if self.faulty.contains(&tid) {
            // While transfers are under way, no other thread may run and close their files. The report stays.
            if self.reentering.is_empty() {
                self.let_faulty_go(tid, stop);
            }
            return Ok(());
        }
        if matches!(stop, Stop::Clone | Stop::Vfork) {
            self.created(tid, stop)?;
        }
        if let Some(entering) = self.threads.get(&tid).and_then(|t| t.entering) {
            self.entered(tid, entering, stop);
            return Ok(());
        }
        let signal = match stop {
            Stop::Rest => {
                let thread = self.threads.get(&tid);
                let awaited_by = thread.and_then(|t| t.awaited_by);
                if awaited_by.is_some_and(|(parent, seen)| self.runs(parent) && seen.elapsed() < SOON) {
                    // Resumed when its parent waits: then a look at the parent shows where it is.
                } else if thread.is_some_and(|t| t.dismissed) {
                    self.let_go(tid);
                } else if let Some(regs) = self.alive(tid, "getregs", ptrace::regs(tid))? {
                    self.threads.insert(tid, Thread { resting: Some(regs), ..NEW });
                }
                return Ok(());
            }
            Stop::Vfork => {
                self.detach(tid, None);
                self.forking.insert(tid, None);
                return Ok(());
            }
            Stop::Exec => {
                self.exec = true;
                None
            }
            Stop::Signal(sig) => {
                // While traced, even ignored signals wake a thread out of its call; see `restart`. The rest
                // of a call is finished from rest.
                if let Some(regs) = self.alive(tid, "getregs", ptrace::regs(tid))? {
                    if self.since.is_none() && Rest::of(&self.process, tid, &regs).is_some() {
                        self.interrupt(tid)?;
                    }
                    self.cure(tid, &regs);
                }
                Some(sig)
            }
            Stop::Syscall | Stop::Clone | Stop::Other(_) => None,
        };
        // Any stop consumes a pending interruption.
        if self.since.is_some() {
            self.interrupt(tid)?;
            self.threads.entry(tid).and_modify(|t| t.spared = false);
        }
        self.alive(tid, "cont", ptrace::cont(tid, signal)).map(|_| ())
    }

    /// Adds the thread or process that a thread has created, which is a tracee from its start.
    fn created(&mut self, by: Tid, stop: Stop) -> Result<(), Error> {
        #[cfg(test)]
        self.panics_at.reach(Point::Created);
        let message = self.alive(by, "geteventmsg", ptrace::event_message(by))?;
        if let Some(new) = message.and_then(|m| i32::try_from(m).ok()).map(Tid) {
            let dismissed = !self.process.file(&format!("task/{new}")).exists();
            let awaited_by = (stop == Stop::Vfork).then(|| (by, Instant::now()));
            self.threads.entry(new).or_insert(Thread { dismissed, awaited_by, ..NEW });
        }
        Ok(())
    }

    /// Returns whether a thread was detached on its way into vfork and does not wait there yet: its child is still a
    /// tracee.
    fn is_entering_vfork(&self, tid: Tid) -> bool {
        self.threads.values().any(|t| t.awaited_by.is_some_and(|(parent, _)| parent == tid))
    }

    /// Returns whether a thread runs or waits for a CPU.
    fn runs(&self, tid: Tid) -> bool {
        self.process.thread_status(tid).is_ok_and(|s| s.state == 'R')
    }

    /// Returns the value, or `None` if the thread was killed meanwhile (the next look reports it).
    fn alive<T>(&self, tid: Tid, what: &'static str, r: io::Result<T>) -> Result<Option<T>, Error> {
        match r {
            Ok(v) => Ok(Some(v)),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(source) => Err(Error::Os { what, tid, source }),
        }
    }

    fn cure(&mut self, tid: Tid, regs: &Regs) {
        if let Some(cured) = cure(&self.process, regs)
            && ptrace::set_regs(tid, &cured).is_ok()
        {
            self.cured += 1;
        }
    }

    pub(crate) fn forget(&mut self, tid: Tid) {
        self.threads.remove(&tid);
        // The parent, which may be this process, reaps a process. The tracer reaps a thread, and an exec in
        // the target waits until that is done.
        if tid.0 != self.process.pid().0 {
            ptrace::reap(tid);
        }
    }

    /// Removes a first thread that has ended while others live: the kernel never reports it.
    fn drop_dead_leader(&mut self) {
        let leader = Tid(self.process.pid().0);
        if self.threads.get(&leader).is_some_and(|t| t.resting.is_none())
            && self.process.thread_status(leader).is_ok_and(|s| s.is_ending())
        {
            self.threads.remove(&leader);
        }
    }

    fn stuck(&self) -> Vec<Stuck> {
        let stuck = |tid| Stuck {
            tid,
            state: self.process.thread_status(tid).map_or('?', |s| s.state),
            wchan: self.process.text(&format!("task/{tid}/wchan")).unwrap_or_default(),
        };
        self.late().map(stuck).collect()
    }

    /// Returns the threads at rest.
    pub(crate) fn resting(&self) -> impl Iterator<Item = (Tid, Regs)> {
        self.threads.iter().filter_map(|(&tid, t)| Some((tid, t.resting?)))
    }

    pub(crate) fn regs(&self, tid: Tid) -> Result<Regs, Error> {
        self.threads.get(&tid).and_then(|t| t.resting).ok_or(Error::NotStopped(tid))
    }

    /// Changes the registers of a thread at rest.
    pub(crate) fn set_regs(&mut self, tid: Tid, regs: &Regs) -> Result<(), Error> {
        self.place = None;
        let t = self.threads.get_mut(&tid).filter(|t| t.resting.is_some()).ok_or(Error::NotStopped(tid))?;
        ptrace::set_regs(tid, regs).map_err(|source| match source.raw_os_error() {
            Some(libc::ESRCH) => Error::ThreadGone(tid),
            _ => Error::Os { what: "setregs", tid, source },
        })?;
        t.resting = Some(*regs);
        Ok(())
    }
}
