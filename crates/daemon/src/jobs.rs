//! Starts workers, reads their output and ends them.

use crate::states::{By, Event, Job, Outcome};
use crate::supervisor::{Daemon, Entry};
use crate::watch::Identity;
use crate::work::Order;
use crate::worker::Worker;
use engine::Failure;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The time that a rebuild may take beyond sampling and counting. It is enough to analyse a large server on a
/// busy machine.
const BUILDING: Duration = Duration::from_secs(300);
/// The time that any other job may take. A comparison may take this time beyond its own.
const SHORT: Duration = Duration::from_secs(60);
/// How long a rebuild may take to end once the kill-switch file exists. Then its worker is killed, and its
/// operation is recovered.
const AT_ONCE: Duration = Duration::from_millis(400);

impl Daemon {
    /// Starts the jobs that targets need, as far as there are worker slots. Targets with the highest CPU use
    /// come first.
    pub(crate) fn start_jobs(&mut self) {
        if self.is_stopping {
            return;
        }
        let now = self.now();
        let (policy, targets) = self.split();
        let most = usize::try_from(policy.config.take.at_once).unwrap_or(1);
        let mut wanted: Vec<(f64, i32, Job)> = targets
            .iter()
            .filter_map(|(pid, e)| Some((e.life.cpu_percent, *pid, e.life.next_job(now, &policy)?)))
            .collect();
        // The process may be another program by now, while a worker is still at work on it.
        wanted.retain(|(_, pid, _)| self.workers.iter().all(|w| w.order.pid != *pid));
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let keeps_its = |e: &&Entry| e.life.is_before_judgement(&self.config);
        let mut taken = self.workers.iter().filter(|w| w.order.job.takes_a_place()).count()
            + self.targets.values().filter(keeps_its).count();
        let mut begun = Vec::new();
        for (_, pid, job) in wanted {
            let takes = job.takes_a_place();
            if takes && (taken >= most || !self.stops.allow(job, now, &self.config)) {
                continue;
            }
            // This is checked again: with the jobs begun so far, the limit of targets may be reached.
            let (policy, targets) = self.split();
            let Some(entry) = targets.get_mut(&pid).filter(|e| e.life.next_job(now, &policy) == Some(job))
            else {
                continue;
            };
            taken += usize::from(takes);
            entry.life.begin(job, now);
            entry.members.begin(job);
            if let Job::Optimize { .. } = job {
                info!(pid, exe = entry.exe, state = entry.life.state.word(), "{}", entry.life.reason);
            }
            begun.push((entry.id, job));
            self.stops.note(job, now, &self.config);
        }
        if !begun.is_empty() {
            // Records are written before the work begins: if the daemon is killed, the next daemon finds
            // there what caused a target's state.
            self.keep();
        }
        for (id, job) in begun {
            self.start(id, job);
        }
    }

    fn start(&mut self, id: Identity, job: Job) {
        let mut warm = None;
        if let Job::Optimize { fresh } = job {
            let profile = self.targets.get(&id.pid).filter(|_| !fresh).and_then(|e| self.warm_profile(e));
            if let Some(profile) = &profile {
                info!(pid = id.pid, "it is started from {}", profile.origin.source.words());
            }
            if let Some(entry) = self.targets.get_mut(&id.pid) {
                entry.warm = profile.as_ref().map(|p| p.origin);
            }
            warm = profile.map(|p| p.path);
        }
        let profiling = &self.config.profile;
        let entry = self.targets.get(&id.pid);
        let build_id = entry.and_then(|e| e.build_id.as_ref());
        let order = Order {
            pid: id.pid,
            start: id.start,
            job,
            family: entry.is_some_and(|e| e.members.is_family()),
            daemon: i32::try_from(std::process::id()).unwrap_or(0),
            sampling: profiling.sampling.0,
            counting: profiling.counting.0,
            memory_cap: profiling.memory_cap.0,
            code_cache: profiling.code_cache,
            judging: self.config.harm.within.0,
            profile: build_id.map(|id| self.store.profile(id)),
            warm,
            bad_layout: self.bad_layout,
        };
        let limit = match job {
            Job::Optimize { .. } => BUILDING + order.sampling + order.counting * 4,
            Job::Judge => SHORT + order.judging,
            Job::Check | Job::Undo | Job::Redo | Job::Mend | Job::Align => SHORT,
        };
        match Worker::start(&self.program, order, limit) {
            Ok(worker) => self.workers.push(worker),
            Err(e) => {
                let outcome = Outcome::Failed {
                    failure: Failure::Busy,
                    code: "cannot_run".to_owned(),
                    message: format!("cannot start a worker: {e}"),
                };
                self.ended(id, job, outcome);
            }
        }
    }

    /// Reads the output of all workers, and records the jobs that have ended.
    pub(crate) fn poll_workers(&mut self) {
        let now = Instant::now();
        let mut i = 0;
        while let Some(worker) = self.workers.get_mut(i) {
            let output = worker.poll(now);
            let (id, job) = (worker.order.target(), worker.order.job);
            for warning in output.warnings {
                warn!(pid = id.pid, "{warning}");
            }
            self.counted.stops = self.counted.stops.saturating_add(output.stops.count);
            if let Some(entry) = self.targets.get_mut(&id.pid).filter(|e| e.id == id) {
                entry.stops.count = entry.stops.count.saturating_add(output.stops.count);
                entry.stops.longest = entry.stops.longest.max(output.stops.longest);
            }
            let is_there = self.is_there(id);
            if let Some(stage) = output.stage.filter(|_| is_there) {
                self.apply(id.pid, Event::Stage(stage));
            }
            match output.outcome {
                Some(outcome) => {
                    self.workers.remove(i);
                    self.ended(id, job, outcome);
                }
                None => i += 1,
            }
        }
    }

    fn is_there(&self, id: Identity) -> bool {
        self.targets.get(&id.pid).is_some_and(|e| e.id == id && e.life.job.is_some())
    }

    fn ended(&mut self, id: Identity, job: Job, outcome: Outcome) {
        self.counted.outcome(&outcome);
        match &outcome {
            Outcome::Crashed(why) => warn!(pid = id.pid, ?job, "{why}"),
            Outcome::Killed => info!(pid = id.pid, ?job, "its worker did not end in time, and was killed"),
            _ => {}
        }
        if self.is_there(id) {
            let fell_back = matches!(outcome, Outcome::Optimized { layout, .. } if !layout.is_warm());
            let judged = matches!(outcome, Outcome::Judged(Some(_), _));
            self.apply(id.pid, Event::Ended(outcome));
            self.vote(id, fell_back, judged);
            let has_profile = self.targets.get(&id.pid).is_some_and(|e| self.warm_profile(e).is_some());
            if let Some(entry) = self.targets.get_mut(&id.pid) {
                entry.members.end(job, engine::start_time_now());
                entry.life.has_profile = has_profile;
                if job.visits_members() {
                    // It changes the parent's journal too, whose figures are reported with the next look.
                    entry.journal_at = None;
                }
                self.counted.taken_back +=
                    u64::from(job == Job::Undo && entry.life.memory().undone_by == Some(By::Harm));
            }
        } else if let Outcome::Failed { message, .. } = outcome {
            // The target is not on the list, or has ended meanwhile.
            info!(pid = id.pid, ?job, "{message}");
        }
    }

    /// Interrupts all workers except those that undo or recover, because everything is to be undone.
    /// Processes that are not on the list stay as they are; `whet undo --all` undoes these.
    pub(crate) fn switch_off(&mut self) {
        for worker in &mut self.workers {
            match worker.order.job {
                Job::Undo | Job::Mend => {}
                // It may build for seconds before it notices the request, while clones of an earlier
                // generation are in force.
                Job::Optimize { .. } => worker.interrupt_within(AT_ONCE),
                Job::Check | Job::Judge | Job::Redo | Job::Align => worker.interrupt(),
            }
        }
    }

    /// Interrupts the workers of one target, or all workers if `pid` is `None`.
    pub(crate) fn let_go(&mut self, pid: Option<i32>) {
        for worker in &mut self.workers {
            if pid.is_none_or(|pid| worker.order.pid == pid) {
                worker.interrupt();
            }
        }
    }
}
