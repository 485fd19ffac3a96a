//! Resuming: every thread continues as if it had not been stopped, at the latest when the tracing thread ends.

use super::{Group, LATE, LINGER_NAP, NAP, Thread};
use crate::rest::Rest;
use crate::slots::Slot;
use crate::{Error, Regs, Sig, StopReport, Tid};
use crate::{lend, ptrace, reaper, tally, vfork};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the end of a stop waits for interrupted threads that have not come to rest. The first limit is for threads
/// that wait for a CPU, and for a child of vfork whose parent does not wait yet. The second is for threads in an
/// uninterruptible wait, most often for a page of memory.
pub(super) const SOON: Duration = Duration::from_secs(1);
const SOON_STUCK: Duration = Duration::from_millis(10);
/// How long the background thread checks threads that were interrupted and did not come to rest.
const LINGER: Duration = Duration::from_secs(60);
/// How long all other threads wait at most until threads in the middle of a transfer are in the kernel again.
/// Most often these are few, and each takes some tens of microseconds. It takes longer only if they get no
/// CPU.
pub(super) const REENTRY: Duration = Duration::from_millis(20);

impl Group {
    pub(super) fn let_go(&mut self, tid: Tid) {
        self.place = None;
        self.on(tid, |group| match group.rest(tid) {
            Some(rest) => {
                group.finish(tid, &rest);
            }
            None => group.let_go_as_is(tid),
        });
    }

    /// Returns the rest of the call that a thread at rest is in.
    fn rest(&self, tid: Tid) -> Option<Rest> {
        #[cfg(test)]
        self.panics_at.reach(super::Point::Rest(tid));
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
        let detached = ptrace::detach(tid, sig).is_ok();
        self.threads.remove(&tid);
        // ESRCH: killed meanwhile, or whet has panicked while the thread ran. The end of the tracing thread repairs any
        // other failure.
        if !detached && self.faulty.contains(&tid) {
            self.threads.insert(tid, Thread::dismissed());
        }
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
    fn are_all_gone(&mut self) -> bool {
        if self.is_following() {
            return false;
        }
        let needs_look = |t: &Thread| !t.spared && t.entering.is_none();
        let undecided: Vec<Tid> =
            self.threads.iter().filter(|(_, t)| needs_look(t)).map(|(&tid, _)| tid).collect();
        undecided.into_iter().all(|tid| {
            !self.faulty.contains(&tid) && self.on(tid, |group| vfork::is_waiting(&group.process, tid))
        })
    }

    /// Returns whether threads are followed to the entry of their call, and are not there yet.
    pub(super) fn is_following(&self) -> bool {
        self.threads.values().any(|t| t.entering.is_some_and(|e| !e.there))
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
    pub(super) fn finish_transfers(&mut self) {
        #[cfg(test)]
        self.panics_at.reach(super::Point::Transfers);
        self.reentering.retain(|(tid, _)| !self.faulty.contains(tid));
        let in_transfer = |regs: &Regs| {
            regs.syscall().is_some() && (regs.result() > 0 || Slot::of(&self.process, regs.ip()).is_some())
        };
        let transfers: Vec<Tid> = self.sound().filter(|(_, r)| in_transfer(r)).map(|(tid, _)| tid).collect();
        let since = Instant::now();
        for tid in transfers {
            if since.elapsed() >= REENTRY {
                break;
            }
            let slot = self.on(tid, |group| {
                let rest = group.rest(tid).filter(Rest::moves)?;
                group.finish(tid, &rest)
            });
            self.reentering.extend(slot.map(|slot| (tid, slot)));
        }
        while !self.reentering.is_empty() && since.elapsed() < REENTRY {
            self.reentering.iter().for_each(|&(tid, _)| lend::wait(tid, NAP));
            // Some threads are followed to the entry of their call.
            if self.pump().is_err() {
                break;
            }
            for (tid, slot) in self.reentering.clone() {
                if !self.on(tid, |group| group.is_on_its_way(tid, slot)) {
                    self.reentering.retain(|(of, _)| *of != tid);
                }
            }
        }
        self.reentering.clear();
    }

    /// Returns whether a thread that was sent into a slot has not begun its call yet.
    fn is_on_its_way(&self, tid: Tid, slot: Slot) -> bool {
        let followed = self.threads.get(&tid).and_then(|t| t.entering).is_some_and(|e| !e.there);
        let runs =
            || self.process.text(&format!("task/{tid}/syscall")).is_ok_and(|s| s.starts_with("running"));
        followed || (!slot.is_free(&self.process) && runs())
    }

    /// Returns the threads at rest at which whet has not panicked.
    pub(super) fn sound(&self) -> impl Iterator<Item = (Tid, Regs)> {
        self.resting().filter(|(tid, _)| !self.faulty.contains(tid))
    }

    /// Resumes every thread at rest.
    pub(crate) fn release(&mut self) -> StopReport {
        let resting: Vec<Tid> = self.resting().map(|(tid, _)| tid).collect();
        self.finish_transfers();
        // Next come threads in no unfinished call: room for the rest of a call takes a thread at rest some
        // time.
        let mut rests = Vec::new();
        for tid in self.sound().map(|(tid, _)| tid).collect::<Vec<_>>() {
            let rest = self.on(tid, |group| {
                let rest = group.rest(tid);
                if rest.is_none() {
                    group.let_go_as_is(tid);
                }
                rest
            });
            rests.extend(rest.map(|rest| (tid, rest)));
        }
        for (tid, rest) in rests {
            self.on(tid, |group| group.finish(tid, &rest));
        }
        for tid in self.resting().map(|(tid, _)| tid).collect::<Vec<_>>() {
            self.detach(tid, None);
        }
        let stopped = self.since.map_or(Duration::ZERO, |s| s.elapsed());
        if !resting.is_empty() {
            tally::count(stopped);
        }
        StopReport { stopped, threads: resting.len(), cured: self.cured }
    }
}
