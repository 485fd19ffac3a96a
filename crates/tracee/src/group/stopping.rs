//! Stopping: brings all threads to rest, or one that is fit to run system calls.

use super::{Group, LATE, LEAVING, LINGER_NAP, NAP, NEW};
use crate::patience::{Patience, Starvation};
use crate::ptrace::OPTIONS;
use crate::rest::{self, Rest};
use crate::return_frame::Place;
use crate::shared::find_sharer;
use crate::{Error, Process, Regs, StopError, Tid};
use crate::{lend, ptrace, reaper};
use addr::ReadMemory;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// From this many late threads on, fewer checks make them stop sooner. A thread needs some microseconds of
/// CPU time to stop; each check uses CPU time as well.
const MANY: usize = 64;
const FOR_EACH: Duration = Duration::from_micros(2);
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// The first pause between two rounds of attempts on all threads; it doubles.
const ROUND_PAUSE: Duration = Duration::from_millis(2);
/// How long the first stop of a process is tried again while threads with half-done transfers stay at rest, as a
/// multiple of the patience for blocked threads, and how long the other threads run between two tries.
const HOLD: u32 = 28;
const LOOSE: Duration = Duration::from_millis(20);
/// How long to wait for another thread before stopping a thread whose call may end early.
const RELUCTANCE: Duration = Duration::from_millis(100);

impl Group {
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
    pub(super) fn late(&self) -> impl Iterator<Item = Tid> {
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
}

/// Returns whether a thread sleeps in a call that may have moved a part of its data.
fn is_in_transfer(process: &Process, tid: Tid) -> bool {
    process.sleeps_in(tid).is_some_and(rest::is_transfer)
}
