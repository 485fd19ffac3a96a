//! The tracees of one tracing thread.
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

use crate::finish::Entering;
use crate::lend;
use crate::linger::make_way;
use crate::patience::{Patience, Starvation};
use crate::preflight::{held_by, is_tracer_ending};
use crate::ptrace::{self, OPTIONS, Stop, TRACE_CLONE, TRACE_VFORK, Wait};
use crate::reaper;
use crate::rest::{self, Rest};
use crate::restart::cure;
use crate::return_frame::Place;
use crate::shared::find_sharer;
use crate::slots::Slot;
use crate::tally;
use crate::vfork;
use crate::{Error, Process, Regs, Sig, StopError, StopReport, Stuck, Tid};
use addr::ReadMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
/// From this many late threads on, fewer checks make them stop sooner. A thread needs some microseconds of
/// CPU time to stop; each check uses CPU time as well.
const MANY: usize = 64;
const FOR_EACH: Duration = Duration::from_micros(2);
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// How often the state letter of a late thread is read.
const LATE: Duration = Duration::from_millis(2);
/// How long a process that shares the memory gets to leave it while all threads are stopped, and an ending child of
/// vfork to send its signal. The kernel needs far less from a vfork parent's release to the child's end or new program.
const LEAVING: Duration = Duration::from_millis(5);
/// How long the end of a stop waits for interrupted threads that have not come to rest. The first limit is for threads
/// that wait for a CPU, and for a child of vfork whose parent does not wait yet. The second is for threads in an
/// uninterruptible wait, most often for a page of memory.
const SOON: Duration = Duration::from_secs(1);
const SOON_STUCK: Duration = Duration::from_millis(10);
/// How long, and how often, the background thread checks threads that were interrupted and did not come to
/// rest.
const LINGER: Duration = Duration::from_secs(60);
const LINGER_NAP: Duration = Duration::from_millis(1);
/// How long a background tracer, or a tracer that ends, gets to detach.
const MAKE_WAY: Duration = Duration::from_millis(500);
/// The first pause between two rounds of attempts on all threads; it doubles.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// How long all other threads wait at most until threads in the middle of a transfer are in the kernel again.
/// Most often these are few, and each takes some tens of microseconds. It takes longer only if they get no
/// CPU.
const REENTRY: Duration = Duration::from_millis(20);
/// How long the first stop of a process is tried again while threads with half-done transfers stay at rest, as a
/// multiple of the patience for blocked threads, and how long the other threads run between two tries.
const HOLD: u32 = 28;
const LOOSE: Duration = Duration::from_millis(20);
/// How long to wait for another thread before stopping a thread whose call may end early.
const RELUCTANCE: Duration = Duration::from_millis(100);

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

    /// Stops every thread. On failure the caller drops the group, which resumes all threads.
    ///
    /// INVARIANT(transfers): a thread whose transfer was ended early is resumed in a routine that finishes the
    /// transfer. While the process has no routines, such a thread stays at rest until there are some. So if a thread
    /// does not stop in time, all others are resumed and stopped again. Most transfers are not even ended: threads that
    /// sleep in one are interrupted after all others are at rest.
    pub(crate) fn stop_all(&mut self, patience: Patience) -> Result<Vec<(Tid, Regs)>, StopError> {
        let since = Instant::now();
        let mut starved = patience.starved;
        loop {
            let outcome = self.stop_once(Patience { starved, ..patience });
            let Err(StopError::Busy { stuck, waited, .. }) = outcome else { return outcome };
            let held = match self.process.can_finish() {
                true => 0,
                false => {
                    self.wait_for_runnable(patience)?;
                    self.half_done().count()
                }
            };
            if held == 0 || since.elapsed() >= HOLD * patience.blocked {
                return Err(StopError::Busy { stuck, waited, cut: held });
            }
            starved += patience.starved;
            self.loosen()?;
        }
    }

    /// Waits until all interrupted threads that wait for a CPU are at rest: they may have half-done transfers.
    fn wait_for_runnable(&mut self, patience: Patience) -> Result<(), Error> {
        let since = Instant::now();
        let mut watch = Starvation::default();
        loop {
            self.pump()?;
            self.drop_dead_leader();
            let runnable: Vec<Tid> = self.interrupted().filter(|&tid| self.runs(tid)).collect();
            let waited = since.elapsed();
            let blocked = watch.blocked_for(&self.process, runnable.iter().copied(), waited);
            if runnable.is_empty() || blocked >= patience.blocked || waited >= patience.starved {
                return Ok(());
            }
            self.nap(true);
        }
    }

    /// Returns the threads at rest whose transfers have moved a part.
    fn half_done(&self) -> impl Iterator<Item = Tid> {
        let is_half_done = |(tid, regs): &(Tid, Regs)| {
            regs.result() > 0 && Rest::of(&self.process, *tid, regs).is_some_and(|rest| rest.moves())
        };
        self.resting().filter(is_half_done).map(|(tid, _)| tid)
    }

    /// Resumes all threads for a moment, except those with half-done transfers; threads that come to rest late as well.
    fn loosen(&mut self) -> Result<(), Error> {
        self.since = None;
        self.threads.values_mut().for_each(|t| t.spared = false);
        let begun = Instant::now();
        while begun.elapsed() < LOOSE {
            self.pump()?;
            let held: BTreeSet<Tid> = self.half_done().collect();
            let resting: Vec<Tid> = self.resting().map(|(tid, _)| tid).collect();
            resting.into_iter().filter(|tid| !held.contains(tid)).for_each(|tid| self.let_go(tid));
            std::thread::sleep(LINGER_NAP);
        }
        self.seize_all()
    }

    fn stop_once(&mut self, patience: Patience) -> Result<Vec<(Tid, Regs)>, StopError> {
        if !self.process.can_finish() {
            self.spare_transfers();
        }
        let since = Instant::now();
        self.since = Some(since);
        self.forking.values_mut().for_each(|seen| *seen = None);
        for (&tid, t) in &self.threads {
            if t.resting.is_none() && !t.spared {
                self.interrupt(tid)?;
            }
        }
        let mut late = LATE;
        let mut leaving = None;
        let mut watch = Starvation::default();
        let mut before = usize::MAX;
        loop {
            self.seize_forked()?;
            let running = self.pump()?;
            let pid = self.process.pid();
            if self.exec {
                return Err(Error::Exec(pid).into());
            }
            if running == 0 {
                if self.interrupt_spared()? {
                    continue;
                }
                if !self.is_complete() && (self.seize_new()? > 0 || !self.forking.is_empty()) {
                    continue;
                }
                let Some((tid, regs)) = self.resting().next() else {
                    return Err(Error::Gone(pid).into());
                };
                self.check_program(&regs)?;
                let Some(sharer) = find_sharer(&self.process, tid)? else {
                    return Ok(self.resting().collect());
                };
                if let Some(refusal) = sharer.refusal(pid) {
                    return Err(refusal.into());
                }
                let waited = since.elapsed();
                if leaving.get_or_insert_with(Instant::now).elapsed() >= LEAVING || waited >= patience.blocked
                {
                    return Err(StopError::Busy { stuck: vec![sharer.stuck()], waited, cut: 0 });
                }
            }
            let waited = since.elapsed();
            if waited >= late {
                late = waited + LATE;
                self.drop_dead_leader();
                reaper::reap(&self.process, self.resting().map(|(tid, _)| tid));
            }
            if running > 0
                && (watch.blocked_for(&self.process, self.late(), waited) >= patience.blocked
                    || waited >= patience.starved.max(patience.blocked))
            {
                return Err(StopError::Busy { stuck: self.stuck(), waited, cut: 0 });
            }
            // If many threads are late, loans would only use CPU time that the threads need.
            let lends = waited >= LATE / 4 && running > before / 4 * 3;
            before = running;
            self.nap(lends);
        }
    }

    /// Checks that a thread at rest runs the program that was opened: a thread that is seized after an exec reports
    /// none. Its instruction and its stack are in memory, and the memory of a former program cannot be read any more.
    fn check_program(&self, regs: &Regs) -> Result<(), Error> {
        let is_there = |at| self.process.read(at, &mut [0]).is_ok();
        match is_there(regs.ip()) || is_there(regs.sp()) {
            true => Ok(()),
            false => Err(Error::Exec(self.process.pid())),
        }
    }

    /// Marks the threads in transfers.
    fn spare_transfers(&mut self) {
        let process = &self.process;
        for (&tid, t) in &mut self.threads {
            t.spared = t.resting.is_none() && is_in_transfer(process, tid);
        }
    }

    /// Interrupts spared threads, once all others are at rest. Returns whether there were any.
    fn interrupt_spared(&mut self) -> Result<bool, Error> {
        let spared: Vec<Tid> = self.threads.iter().filter(|(_, t)| t.spared).map(|(&tid, _)| tid).collect();
        self.threads.values_mut().for_each(|t| t.spared = false);
        spared.iter().try_for_each(|&tid| self.interrupt(tid))?;
        Ok(!spared.is_empty())
    }

    /// Returns whether the process has as many threads as are at rest here. Then there are no others, as
    /// threads at rest cannot end one by one. Counting a thousand threads costs nothing; listing them costs a
    /// tenth of their stop.
    fn is_complete(&self) -> bool {
        self.process
            .status()
            .is_ok_and(|s| usize::try_from(s.threads).is_ok_and(|n| n == self.resting().count()))
    }

    /// Returns the threads that were interrupted and have not come to rest yet.
    fn interrupted(&self) -> impl Iterator<Item = Tid> {
        self.threads.iter().filter(|(_, t)| t.is_late()).map(|(&tid, _)| tid)
    }

    /// Returns the threads for which a stop waits: those that were interrupted, and those in vfork.
    fn late(&self) -> impl Iterator<Item = Tid> {
        self.interrupted().chain(self.forking.keys().copied())
    }

    /// Waits a moment for threads to come to rest. The wait grows with their number, as each look at all uses
    /// CPU time that they need. If few are late and `lends` is set, each in turn gets this thread's priority.
    fn nap(&self, lends: bool) {
        match u32::try_from(self.late().count()).unwrap_or(u32::MAX) {
            n if lends && (n as usize) < MANY => self.late().for_each(|tid| lend::wait(tid, NAP)),
            n => std::thread::sleep((FOR_EACH * n).clamp(NAP, LONGEST_NAP)),
        }
    }

    /// Returns the threads to try to stop, the last first. The flag is true if some other threads cannot be
    /// stopped for now, such as a thread that waits in the kernel for a vfork child. Threads in waits that
    /// the kernel itself restarts come first: a stop of such a thread delays no work. Threads whose call a
    /// stop may end early come last.
    fn candidates(&self) -> Result<(Vec<(u8, Tid)>, bool), Error> {
        let (mut candidates, mut others) = (Vec::new(), false);
        for tid in self.process.user_threads()? {
            match self.process.thread_status(tid).map(|s| s.state) {
                _ if self.threads.contains_key(&tid) => {}
                Ok('R' | 'T') => candidates.push((1, tid)),
                Ok('S') => candidates.push((if self.waits_patiently(tid) { 2 } else { 0 }, tid)),
                Ok('D') => others = true,
                _ => {}
            }
        }
        candidates.sort_unstable();
        Ok((candidates, others))
    }

    /// Returns whether a thread is in a wait that loses nothing by a stop: `pause`, `nanosleep`, `wait4`,
    /// `futex`, `clock_nanosleep`.
    fn waits_patiently(&self, tid: Tid) -> bool {
        matches!(self.process.sleeps_in(tid), Some(34 | 35 | 61 | 202 | 230))
    }

    /// Seizes and stops any one thread that is fit to run system calls. The threads are tried one after the
    /// other; the first that stops is used.
    pub(crate) fn stop_one(&mut self, each: Duration, deadline: Duration) -> Result<Tid, Error> {
        let pid = self.process.pid();
        let (mut candidates, mut wait) = self.candidates()?;
        let since = Instant::now();
        self.since = Some(since);
        let mut next = Duration::ZERO;
        let mut dispatching = false;
        // If no thread is on its own stack, one may be later: all are tried again after a pause that grows.
        // If they merely cannot be stopped, they are checked often, which disturbs nothing.
        let (mut unfit, mut pause, mut round) = (false, ROUND_PAUSE, Duration::ZERO);
        loop {
            if (since.elapsed() >= next || self.threads.is_empty())
                && let Some((_, tid)) = candidates.pop()
                && self.seize(tid, OPTIONS)?
            {
                // A thread whose call a stop may end early is tried only if no other stops for long.
                let harmless = candidates.last().is_none_or(|(rank, _)| *rank > 0);
                next = since.elapsed() + if harmless { each } else { each.max(RELUCTANCE) };
                // The stop counts from the chosen thread, not from the time in which others could not be
                // stopped.
                if self.threads.is_empty() {
                    self.since = Some(Instant::now());
                }
                self.threads.insert(tid, NEW);
                self.interrupt(tid)?;
            }
            self.pump()?;
            let rested: Vec<(Tid, Regs)> = self.resting().collect();
            for (tid, regs) in rested {
                let dispatches = ptrace::dispatches_syscalls(tid);
                if !dispatches && Place::of(&self.process, tid, &regs).is_some() {
                    self.check_program(&regs)?;
                    self.dismiss_all_but(tid);
                    return Ok(tid);
                }
                dispatching |= dispatches;
                unfit |= !dispatches;
                self.let_go(tid);
            }
            if since.elapsed() >= deadline {
                break;
            }
            if candidates.is_empty() && self.threads.is_empty() && !unfit && !wait {
                break;
            }
            if candidates.is_empty() && (unfit || wait) {
                if unfit {
                    round = since.elapsed() + pause;
                    pause *= 2;
                    unfit = false;
                    wait = true;
                }
                if since.elapsed() >= round {
                    (candidates, wait) = self.candidates()?;
                }
                std::thread::sleep(NAP * 10);
            }
            self.drop_dead_leader();
            self.nap(since.elapsed() >= LATE / 4);
        }
        Err(if dispatching { Error::SyscallDispatch(pid) } else { Error::NoThread(pid) })
    }

    fn dismiss_all_but(&mut self, chosen: Tid) {
        for (&tid, t) in &mut self.threads {
            t.dismissed |= tid != chosen;
        }
        let rested: Vec<Tid> = self.resting().map(|(tid, _)| tid).filter(|&tid| tid != chosen).collect();
        for tid in rested {
            self.let_go(tid);
        }
    }

    /// Looks once at every thread that is not at rest. Returns how many are still not at rest.
    pub(crate) fn pump(&mut self) -> Result<usize, Error> {
        let tids: Vec<Tid> =
            self.threads.iter().filter(|(_, t)| t.resting.is_none()).map(|(&tid, _)| tid).collect();
        for tid in tids {
            match ptrace::look(tid).map_err(|source| Error::Os { what: "waitid", tid, source })? {
                Wait::Running => {}
                Wait::Ended => self.forget(tid),
                Wait::NotOurs => {
                    self.threads.remove(&tid);
                }
                Wait::Stopped(stop) => self.stopped(tid, stop)?,
            }
        }
        Ok(self.late().count())
    }

    fn stopped(&mut self, tid: Tid, stop: Stop) -> Result<(), Error> {
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

    fn let_go(&mut self, tid: Tid) {
        self.place = None;
        match self.rest(tid) {
            Some(rest) => {
                self.finish(tid, &rest);
            }
            None => self.let_go_as_is(tid),
        }
    }

    /// Returns the rest of the call that a thread at rest is in.
    fn rest(&self, tid: Tid) -> Option<Rest> {
        Rest::of(
            &self.process,
            tid,
            &self.regs(tid).or_else(|_| ptrace::regs(tid).map_err(|_| Error::ThreadGone(tid))).ok()?,
        )
    }

    /// Resumes a thread in a call that the kernel restarts from the beginning, or not at all.
    pub(crate) fn let_go_as_is(&mut self, tid: Tid) {
        if let Ok(regs) = self.regs(tid).or_else(|_| ptrace::regs(tid)) {
            self.cure(tid, &regs);
        }
        self.detach(tid, None);
    }

    /// Ends the tracing of a stopped thread.
    pub(crate) fn detach(&mut self, tid: Tid, sig: Option<Sig>) {
        // ESRCH: killed meanwhile. The end of the tracing thread repairs any other failure.
        let _ = ptrace::detach(tid, sig);
        self.threads.remove(&tid);
    }

    /// Resumes every thread. An interrupted thread is resumed as it comes to rest, so that none of its calls
    /// fails because of whet. Returns false if some threads still have to come to rest.
    pub(crate) fn wind_down(&mut self) -> bool {
        self.release();
        let since = Instant::now();
        let mut late = LATE;
        // Threads that were not interrupted need only the end of the tracing thread.
        while self.since.is_some() && !self.are_all_gone() {
            if !self.see_off() {
                break;
            }
            let waited = since.elapsed();
            if waited >= late {
                late = waited + LATE;
                self.drop_dead_leader();
                reaper::reap_all(&self.process);
                let limit = if self.stuck_for_long() { SOON_STUCK } else { SOON };
                if waited >= limit {
                    return false;
                }
            }
            std::thread::sleep(NAP);
        }
        true
    }

    /// Returns whether all threads need only the end of the tracing thread. Among these are threads that were not
    /// interrupted, and threads in vfork, which no interruption ends early.
    fn are_all_gone(&self) -> bool {
        let is_gone = |(&tid, t): (&Tid, &Thread)| {
            t.spared
                || t.entering.is_some_and(|e| e.there)
                || t.entering.is_none() && vfork::is_waiting(&self.process, tid)
        };
        self.threads.iter().all(is_gone)
    }

    /// Returns whether all threads that have not come to rest are in uninterruptible waits.
    fn stuck_for_long(&self) -> bool {
        let is_stuck = |tid| self.process.thread_status(tid).is_ok_and(|s| s.state == 'D');
        self.threads.iter().all(|(&tid, t)| t.spared || is_stuck(tid))
    }

    /// Returns whether the process is a child of this process.
    pub(crate) fn is_child(&self) -> bool {
        self.process.status().is_ok_and(|s| u32::try_from(s.ppid) == Ok(std::process::id()))
    }

    /// Continues [`Group::wind_down`] until all threads are resumed, `end` is set or a minute has passed.
    pub(crate) fn linger(&mut self, end: &AtomicBool) {
        let since = Instant::now();
        let mut late = LATE;
        while !self.are_all_gone() && !end.load(Ordering::Relaxed) && since.elapsed() < LINGER {
            self.drop_dead_leader();
            if since.elapsed() >= late {
                late = since.elapsed() + LATE;
                reaper::reap_all(&self.process);
            }
            if !self.see_off() {
                break;
            }
            std::thread::sleep(LINGER_NAP);
        }
    }

    /// Resumes threads that have come to rest, new threads as well. Returns false if the kernel should do the
    /// rest.
    fn see_off(&mut self) -> bool {
        for t in self.threads.values_mut() {
            t.dismissed = true;
        }
        self.pump().is_ok()
    }

    /// Resumes first the threads in the middle of a transfer. The others follow when these are in their calls
    /// again, so that the kernel holds their files. A thread that ran before them could close a file and open
    /// another by the same number.
    fn finish_transfers(&mut self) {
        let in_transfer = |regs: &Regs| {
            regs.syscall().is_some() && (regs.result() > 0 || Slot::of(&self.process, regs.ip()).is_some())
        };
        let transfers: Vec<Tid> =
            self.resting().filter(|(_, r)| in_transfer(r)).map(|(tid, _)| tid).collect();
        let since = Instant::now();
        let mut under_way = Vec::new();
        for tid in transfers {
            if since.elapsed() >= REENTRY {
                break;
            }
            if let Some(rest) = self.rest(tid).filter(Rest::moves) {
                under_way.extend(self.finish(tid, &rest).map(|slot| (tid, slot)));
            }
        }
        while !under_way.is_empty() && since.elapsed() < REENTRY {
            under_way.iter().for_each(|&(tid, _)| lend::wait(tid, NAP));
            // Some threads are followed to the entry of their call.
            if self.pump().is_err() {
                break;
            }
            under_way.retain(|&(tid, slot)| self.is_on_its_way(tid, slot));
        }
    }

    /// Returns whether a thread that was sent into a slot has not begun its call yet.
    fn is_on_its_way(&self, tid: Tid, slot: Slot) -> bool {
        let followed = self.threads.get(&tid).and_then(|t| t.entering).is_some_and(|e| !e.there);
        let runs =
            || self.process.text(&format!("task/{tid}/syscall")).is_ok_and(|s| s.starts_with("running"));
        followed || (!slot.is_free(&self.process) && runs())
    }

    /// Resumes every thread at rest.
    pub(crate) fn release(&mut self) -> StopReport {
        let resting: Vec<Tid> = self.resting().map(|(tid, _)| tid).collect();
        self.finish_transfers();
        // Next come threads in no unfinished call: room for the rest of a call takes a thread at rest some
        // time.
        let mut rests = Vec::new();
        for tid in self.resting().map(|(tid, _)| tid).collect::<Vec<_>>() {
            match self.rest(tid) {
                Some(rest) => rests.push((tid, rest)),
                None => self.let_go_as_is(tid),
            }
        }
        for (tid, rest) in rests {
            self.finish(tid, &rest);
        }
        let stopped = self.since.map_or(Duration::ZERO, |s| s.elapsed());
        if !resting.is_empty() {
            tally::count(stopped);
        }
        StopReport { stopped, threads: resting.len(), cured: self.cured }
    }
}

/// Returns whether a thread sleeps in a call that may have moved a part of its data.
fn is_in_transfer(process: &Process, tid: Tid) -> bool {
    process.sleeps_in(tid).is_some_and(rest::is_transfer)
}

impl Drop for Group {
    fn drop(&mut self) {
        self.release();
    }
}
