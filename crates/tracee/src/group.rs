//! The tracees of one tracing thread.
//!
//! Invariant: a thread that is `resting` is in the kernel's stop of that name and nothing is owed to it. Any other
//! stop (a signal, a clone) is left at once, with what belongs to it, and the interruption that is pending brings the
//! thread to rest on its way back to user code: there its registers are user code's, it can run system calls for us,
//! and be let go without anything to remember. What is left of its call it finishes by itself: see `finish`.

use crate::finish::Entering;
use crate::home::Place;
use crate::lend;
use crate::linger::{is_there, make_way};
use crate::patience::{Patience, Starvation};
use crate::ptrace::{self, OPTIONS, Stop, TRACE_CLONE, Wait};
use crate::rest::Rest;
use crate::restart::cure;
use crate::shared::Survey;
use crate::slots::Slot;
use crate::{Error, Process, Regs, Sig, StopError, StopReport, Stuck, Tid};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) process: Process,
    survey: Survey,
    pub(crate) threads: BTreeMap<Tid, Thread>,
    /// Set when the first thread is interrupted.
    since: Option<Instant>,
    pub(crate) cured: usize,
    exec: bool,
    /// Whether slots of threads that have ended were looked for.
    pub(crate) reclaimed: bool,
    /// The place of the way home of a thread at rest that has run a system call.
    pub(crate) place: Option<(Tid, Place)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    /// Its registers, once it is at rest.
    resting: Option<Regs>,
    /// Only to be let go when it comes to rest: not of the process, or too late.
    dismissed: bool,
    /// On its way into a slot; let go as soon as it is there.
    entering: Option<Entering>,
}

const NEW: Thread = Thread { resting: None, dismissed: false, entering: None };

impl Thread {
    /// One that is to be let go as soon as it has come to rest.
    pub(crate) fn dismissed() -> Self {
        Self { dismissed: true, ..NEW }
    }

    /// One that enters a slot.
    pub(crate) fn entering(entering: Entering) -> Self {
        Self { resting: None, dismissed: true, entering: Some(entering) }
    }
}

/// Between two looks at threads that have not stopped yet. A thread is late only if it waits for a CPU.
pub(crate) const NAP: Duration = Duration::from_micros(20);
/// From so many late threads on they stop sooner if left alone. A thread takes some microseconds of CPU to stop; each look takes
/// CPU time as well.
const MANY: usize = 64;
const FOR_EACH: Duration = Duration::from_micros(2);
const LONGEST_NAP: Duration = Duration::from_millis(2);
/// How often the state letter of a late thread is looked at.
const LATE: Duration = Duration::from_millis(2);
/// How long a process that shares the memory gets to leave it while all stand still: far more than the kernel needs
/// from a vfork parent's release to the child's end or new program.
const LEAVING: Duration = Duration::from_millis(5);
/// How long a thread that was interrupted in vain gets to be let go before anything else happens: one that waits for
/// its CPU, and one in an uninterruptible wait, which most often is for a page of memory.
const SOON: Duration = Duration::from_secs(1);
const SOON_STUCK: Duration = Duration::from_millis(10);
/// How long such threads are looked after in the background, and how often.
const LINGER: Duration = Duration::from_secs(60);
const LINGER_NAP: Duration = Duration::from_millis(1);
/// How long one that looks after them gets to make way.
const MAKE_WAY: Duration = Duration::from_millis(500);
/// The first pause between two rounds of trying all threads; it doubles.
const ROUND_PAUSE: Duration = Duration::from_millis(2);

/// How long all others wait at most until threads that were half way through a transfer are in the kernel again. Most often
/// there are few, and each takes some tens of microseconds; only where they get no CPU does it take longer.
const REENTRY: Duration = Duration::from_millis(20);
/// How long another thread is waited for before one is stopped whose call that may end early.
const RELUCTANCE: Duration = Duration::from_millis(100);

impl Group {
    /// `survey` is what is known about processes that share the memory; nothing needs to be unless all are stopped.
    pub(crate) fn new(process: &Process, survey: Survey) -> Self {
        let process = process.clone();
        let threads = BTreeMap::new();
        Self { process, survey, threads, since: None, cured: 0, exec: false, reclaimed: false, place: None }
    }

    /// Seizes every thread, without stopping it, until no new one turns up.
    pub(crate) fn seize_all(&mut self) -> Result<(), Error> {
        while self.seize_new()? > 0 {
            self.pump()?;
        }
        if self.threads.is_empty() { Err(Error::Gone(self.process.pid())) } else { Ok(()) }
    }

    /// Seizes the threads not yet known; how many there were.
    fn seize_new(&mut self) -> Result<usize, Error> {
        let mut new = 0;
        for tid in self.process.threads()? {
            // In this order: a look at a thread's files costs as much as its stop.
            if self.threads.contains_key(&tid)
                || self.process.is_worker(tid)
                || !self.seize(tid, OPTIONS | TRACE_CLONE)?
            {
                continue;
            }
            new += 1;
            self.threads.insert(tid, NEW);
            if self.since.is_some() {
                self.interrupt(tid)?;
            }
        }
        Ok(new)
    }

    /// Seizes one thread; false where there is nothing to seize any more.
    fn seize(&self, tid: Tid, options: usize) -> Result<bool, Error> {
        let pid = self.process.pid();
        let since = Instant::now();
        // A tracer that ends lets its threads go one by one: what was found to be traced may not be any more.
        let mut again = true;
        loop {
            let source = match ptrace::seize(tid, options) {
                // An id can have come to mean a thread of another process since the list was read. It is only seized,
                // not stopped: the end of the tracing thread frees it.
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
                // Born of a thread that was seized.
                by if Tid(by) == ptrace::own_tid() => return Ok(true),
                by if (make_way(by) || !is_there(by)) && since.elapsed() < MAKE_WAY => {
                    again = true;
                    std::thread::sleep(LINGER_NAP);
                }
                by => return Err(crate::preflight::already_traced(pid, by)),
            }
        }
    }

    fn interrupt(&self, tid: Tid) -> Result<(), Error> {
        match ptrace::interrupt(tid) {
            // Ended: the next look tells.
            Err(source) if source.raw_os_error() != Some(libc::ESRCH) => {
                Err(Error::Os { what: "interrupt", tid, source })
            }
            _ => Ok(()),
        }
    }

    /// Stops every thread. On failure the caller drops the group, which lets all go.
    pub(crate) fn stop_all(&mut self, patience: Patience) -> Result<Vec<(Tid, Regs)>, StopError> {
        let since = Instant::now();
        self.since = Some(since);
        for (&tid, t) in &self.threads {
            if t.resting.is_none() {
                self.interrupt(tid)?;
            }
        }
        let mut late = LATE;
        let mut leaving = None;
        let mut watch = Starvation::default();
        loop {
            let running = self.pump()?;
            let pid = self.process.pid();
            if self.exec {
                return Err(Error::Exec(pid).into());
            }
            if running == 0 {
                if !self.is_complete() && self.seize_new()? > 0 {
                    continue;
                }
                let Some((tid, _)) = self.resting().next() else {
                    return Err(Error::Gone(pid).into());
                };
                let Some(sharer) = self.survey.sharer(&self.process, tid)? else {
                    return Ok(self.resting().collect());
                };
                if let Some(refusal) = sharer.refusal(pid) {
                    return Err(refusal.into());
                }
                let waited = since.elapsed();
                if leaving.get_or_insert_with(Instant::now).elapsed() >= LEAVING || waited >= patience.blocked
                {
                    return Err(StopError::Busy { stuck: vec![sharer.stuck()], waited });
                }
            }
            let waited = since.elapsed();
            if waited >= late {
                late = waited + LATE;
                self.drop_dead_leader();
            }
            if running > 0
                && (watch.blocked_for(&self.process, self.late(), waited) >= patience.blocked
                    || waited >= patience.starved.max(patience.blocked))
            {
                return Err(StopError::Busy { stuck: self.stuck(), waited });
            }
            self.nap(waited);
        }
    }

    /// Whether there are as many threads as rest here: then there are no others, as those that rest cannot end one by one. To
    /// count a thousand threads takes nothing, to list them a tenth of their stop.
    fn is_complete(&self) -> bool {
        self.process
            .status()
            .is_ok_and(|s| usize::try_from(s.threads).is_ok_and(|n| n == self.resting().count()))
    }

    /// Threads that have not come to rest yet.
    fn late(&self) -> impl Iterator<Item = Tid> {
        self.threads.iter().filter(|(_, t)| t.resting.is_none() && !t.dismissed).map(|(&tid, _)| tid)
    }

    /// Waits for a moment for threads to come to rest. The more there are the longer, as each look at all takes CPU time that
    /// they need. Where few are late, each in turn gets this thread's priority.
    fn nap(&self, waited: Duration) {
        match u32::try_from(self.late().count()).unwrap_or(u32::MAX) {
            n if n as usize >= MANY => std::thread::sleep((FOR_EACH * n).min(LONGEST_NAP)),
            n if n == 0 || waited < LATE / 4 => std::thread::sleep(NAP),
            _ => self.late().for_each(|tid| lend::wait(tid, NAP)),
        }
    }

    /// The threads to try to stop, the last first, and whether there are others that nothing stops for now: they wait in the
    /// kernel, for a child by vfork, say. Threads in waits that the kernel itself takes up again come first: whatever is done to
    /// them, nobody waits for it. Those come last whose call a stop may end early.
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

    /// Whether a thread is in a wait of which nothing is lost by a stop: `pause`, `nanosleep`, `wait4`, `futex`,
    /// `clock_nanosleep`.
    fn waits_patiently(&self, tid: Tid) -> bool {
        let call = self.process.text(&format!("task/{tid}/syscall")).unwrap_or_default();
        matches!(call.split(' ').next(), Some("34" | "35" | "61" | "202" | "230"))
    }

    /// Seizes and stops one thread that is fit to run system calls, whichever can be had: one after the other is tried,
    /// and the first to stop is it.
    pub(crate) fn stop_one(&mut self, each: Duration, deadline: Duration) -> Result<Tid, Error> {
        let pid = self.process.pid();
        let (mut candidates, mut wait) = self.candidates()?;
        let since = Instant::now();
        self.since = Some(since);
        let mut next = Duration::ZERO;
        let mut dispatching = false;
        // Where none is on a stack of its own one may be so later: all are tried again after a pause that grows. Where they only
        // cannot be stopped, they are looked at often: that disturbs nobody.
        let (mut unfit, mut pause, mut round) = (false, ROUND_PAUSE, Duration::ZERO);
        loop {
            if (since.elapsed() >= next || self.threads.is_empty())
                && let Some((_, tid)) = candidates.pop()
                && self.seize(tid, OPTIONS)?
            {
                // A thread whose call a stop may end early is tried where no other stops for long.
                let harmless = candidates.last().is_none_or(|(rank, _)| *rank > 0);
                next = since.elapsed() + if harmless { each } else { each.max(RELUCTANCE) };
                // The stop is that of the thread that is chosen, not the time for which others could not be stopped.
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
            self.nap(since.elapsed());
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

    /// Looks once at every thread that is not at rest; how many are left that are not.
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
        Ok(self.threads.values().filter(|t| t.resting.is_none() && !t.dismissed).count())
    }

    fn stopped(&mut self, tid: Tid, stop: Stop) -> Result<(), Error> {
        if let Some(entering) = self.threads.get(&tid).and_then(|t| t.entering) {
            self.entered(tid, entering, stop);
            return Ok(());
        }
        let signal = match stop {
            Stop::Rest => {
                if self.threads.get(&tid).is_some_and(|t| t.dismissed) {
                    self.let_go(tid);
                } else if let Some(regs) = self.alive(tid, "getregs", ptrace::regs(tid))? {
                    self.threads.insert(tid, Thread { resting: Some(regs), ..NEW });
                }
                return Ok(());
            }
            Stop::Clone => {
                let message = self.alive(tid, "geteventmsg", ptrace::event_message(tid))?;
                if let Some(new) = message.and_then(|m| i32::try_from(m).ok()).map(Tid) {
                    // A clone that is no thread of the process is none of our business.
                    let dismissed = !self.process.file(&format!("task/{new}")).exists();
                    self.threads.entry(new).or_insert(Thread { dismissed, ..NEW });
                }
                None
            }
            Stop::Exec => {
                self.exec = true;
                None
            }
            Stop::Signal(sig) => {
                // While traced, even ignored signals wake a thread out of its call; see `restart`. What is left of a call
                // is finished from rest.
                if let Some(regs) = self.alive(tid, "getregs", ptrace::regs(tid))? {
                    if self.since.is_none() && Rest::of(&self.process, tid, &regs).is_some() {
                        self.interrupt(tid)?;
                    }
                    self.cure(tid, &regs);
                }
                Some(sig)
            }
            Stop::Syscall | Stop::Other(_) => None,
        };
        // Any stop takes a pending interruption along.
        if self.since.is_some() {
            self.interrupt(tid)?;
        }
        self.alive(tid, "cont", ptrace::cont(tid, signal)).map(|_| ())
    }

    /// The value, or nothing where the thread was killed meanwhile (the next look tells).
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
        // The process's end belongs to its parent, which may be us; a thread's to its tracer, and an exec in the
        // target waits until it is taken.
        if tid.0 != self.process.pid().0 {
            ptrace::reap(tid);
        }
    }

    /// A first thread that has ended while others live is never reported by the kernel.
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

    /// The threads at rest.
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

    /// What is left to do of the call that a thread at rest is in.
    fn rest(&self, tid: Tid) -> Option<Rest> {
        Rest::of(
            &self.process,
            tid,
            &self.regs(tid).or_else(|_| ptrace::regs(tid).map_err(|_| Error::ThreadGone(tid))).ok()?,
        )
    }

    /// Lets a thread go on in a call that is taken up again from the beginning, or not at all.
    pub(crate) fn let_go_as_is(&mut self, tid: Tid) {
        if let Ok(regs) = self.regs(tid).or_else(|_| ptrace::regs(tid)) {
            self.cure(tid, &regs);
        }
        self.detach(tid, None);
    }

    /// Ends the tracing of a stopped thread.
    pub(crate) fn detach(&mut self, tid: Tid, sig: Option<Sig>) {
        // ESRCH: killed meanwhile. Anything else is mended by the end of the tracing thread.
        let _ = ptrace::detach(tid, sig);
        self.threads.remove(&tid);
    }

    /// Lets every thread go on, those that were interrupted as they come to rest: so that no call of theirs fails because
    /// of us. False where some still are to, in a while.
    pub(crate) fn wind_down(&mut self) -> bool {
        self.release();
        let since = Instant::now();
        let mut late = LATE;
        // What was not interrupted needs nothing but the end of the tracing thread.
        while self.since.is_some() && !self.are_all_gone() {
            if !self.see_off() {
                break;
            }
            let waited = since.elapsed();
            if waited >= late {
                late = waited + LATE;
                self.drop_dead_leader();
                let limit = if self.stuck_for_long() { SOON_STUCK } else { SOON };
                if waited >= limit {
                    return false;
                }
            }
            std::thread::sleep(NAP);
        }
        true
    }

    /// Whether no thread needs anything but the end of the tracing thread.
    fn are_all_gone(&self) -> bool {
        self.threads.values().all(|t| t.entering.is_some_and(|e| e.there))
    }

    /// Whether all that have not come to rest are in uninterruptible waits.
    fn stuck_for_long(&self) -> bool {
        self.threads.keys().all(|&tid| self.process.thread_status(tid).is_ok_and(|s| s.state == 'D'))
    }

    /// Whether the process is a child of ours.
    pub(crate) fn is_child(&self) -> bool {
        self.process.status().is_ok_and(|s| u32::try_from(s.ppid) == Ok(std::process::id()))
    }

    /// Goes on with that until all are let go, `end` is set or a minute has passed.
    pub(crate) fn linger(&mut self, end: &AtomicBool) {
        let since = Instant::now();
        while !self.are_all_gone() && !end.load(Ordering::Relaxed) && since.elapsed() < LINGER {
            self.drop_dead_leader();
            if !self.see_off() {
                break;
            }
            std::thread::sleep(LINGER_NAP);
        }
    }

    /// Lets go of who has come to rest, newborn threads as well; false where that is best left to the kernel.
    fn see_off(&mut self) -> bool {
        for t in self.threads.values_mut() {
            t.dismissed = true;
        }
        self.pump().is_ok()
    }

    /// Lets those go on first that are half way through a transfer, and the others when these are in the kernel again, which
    /// then holds their files: a thread that ran before them could close a file, and open another one by the same number.
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
            // Some are followed to the entry of their call.
            if self.pump().is_err() {
                break;
            }
            under_way.retain(|&(tid, slot)| self.is_on_its_way(tid, slot));
        }
    }

    /// Whether a thread that was sent into a slot has not begun its call yet.
    fn is_on_its_way(&self, tid: Tid, slot: Slot) -> bool {
        let followed = self.threads.get(&tid).and_then(|t| t.entering).is_some_and(|e| !e.there);
        let runs =
            || self.process.text(&format!("task/{tid}/syscall")).is_ok_and(|s| s.starts_with("running"));
        followed || (!slot.is_free(&self.process) && runs())
    }

    /// Lets every thread at rest go on.
    pub(crate) fn release(&mut self) -> StopReport {
        let resting: Vec<Tid> = self.resting().map(|(tid, _)| tid).collect();
        self.finish_transfers();
        // Then those that need nothing: making room for what is left of a call takes a thread at rest some time.
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
        StopReport { stopped, threads: resting.len(), cured: self.cured }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.release();
    }
}
