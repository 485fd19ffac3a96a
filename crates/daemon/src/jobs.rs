//! Workers started, heard and ended.

use crate::machine::{By, Event, Job, Outcome};
use crate::supervisor::{Daemon, Entry};
use crate::watch::Identity;
use crate::work::Order;
use crate::worker::Worker;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What a rebuild may take beyond sampling and counting: the analysis of a large server, on a busy machine.
const BUILDING: Duration = Duration::from_secs(300);
/// What any other job may take beyond its own time.
const SHORT: Duration = Duration::from_secs(60);
/// How long a rebuild may take to end by itself once the kill-switch file is there. What a killed one leaves is mended.
const AT_ONCE: Duration = Duration::from_millis(400);

impl Daemon {
    /// Starts what targets want, the hungriest first, as far as there are places.
    pub(crate) fn start_jobs(&mut self) {
        if self.is_stopping {
            return;
        }
        let now = self.now();
        let (policy, targets) = self.split();
        let most = usize::try_from(policy.config.take.at_once).unwrap_or(1);
        let mut wanted: Vec<(f64, i32, Job)> = targets
            .iter()
            .filter_map(|(pid, e)| Some((e.life.cpu_percent, *pid, e.life.wants(now, &policy)?)))
            .collect();
        // One that has become another program may be in a worker's hands yet.
        wanted.retain(|(_, pid, _)| self.workers.iter().all(|w| w.order.pid != *pid));
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let keeps_its = |e: &&Entry| e.life.is_before_judgement(&self.config);
        let mut taken = self.workers.iter().filter(|w| w.order.job.takes_a_place()).count()
            + self.targets.values().filter(keeps_its).count();
        let mut begun = Vec::new();
        for (_, pid, job) in wanted {
            // Asked again: the ones before may have made it too many.
            let (policy, targets) = self.split();
            let Some(entry) = targets.get_mut(&pid).filter(|e| e.life.wants(now, &policy) == Some(job))
            else {
                continue;
            };
            if job.takes_a_place() {
                if taken >= most {
                    continue;
                }
                taken += 1;
            }
            entry.life.begin(job, now);
            if let Job::Optimize { .. } = job {
                info!(pid, exe = entry.exe, state = entry.life.state.word(), "{}", entry.life.reason);
            }
            begun.push((entry.id, job));
        }
        if !begun.is_empty() {
            // Before anything is done: should the daemon be killed, the next one knows who did it.
            self.keep();
        }
        for (id, job) in begun {
            self.start(id, job);
        }
    }

    fn start(&mut self, id: Identity, job: Job) {
        let profiling = &self.config.profile;
        let build_id = self.targets.get(&id.pid).and_then(|e| e.build_id.as_ref());
        let order = Order {
            pid: id.pid,
            start: id.start,
            job,
            daemon: i32::try_from(std::process::id()).unwrap_or(0),
            sampling: profiling.sampling.0,
            counting: profiling.counting.0,
            memory_cap: profiling.memory_cap.0,
            judging: self.config.harm.within.0,
            profile: build_id.map(|id| self.store.profile(id)),
            bad_layout: self.bad_layout,
        };
        let limit = match job {
            Job::Optimize { .. } => BUILDING + order.sampling + order.counting * 4,
            Job::Judge => SHORT + order.judging,
            Job::Check | Job::Undo | Job::Redo | Job::Mend => SHORT,
        };
        match Worker::start(&self.program, order, limit) {
            Ok(worker) => self.workers.push(worker),
            Err(e) => {
                let outcome = Outcome::Failed {
                    code: "busy".to_owned(),
                    exit: 6,
                    message: format!("cannot start a worker: {e}"),
                };
                self.ended(id, job, outcome);
            }
        }
    }

    /// Takes in what workers have said.
    pub(crate) fn hear_workers(&mut self) {
        let now = Instant::now();
        let mut i = 0;
        while let Some(worker) = self.workers.get_mut(i) {
            let said = worker.listen(now);
            let (id, job) = (worker.order.target(), worker.order.job);
            for warning in said.warnings {
                warn!(pid = id.pid, "{warning}");
            }
            let is_there = self.is_there(id);
            if let Some(stage) = said.stage.filter(|_| is_there) {
                self.tell(id.pid, Event::Stage(stage));
            }
            match said.outcome {
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
        if let Outcome::Crashed(why) = &outcome {
            warn!(pid = id.pid, ?job, "{why}");
        }
        if self.is_there(id) {
            self.tell(id.pid, Event::Ended(outcome));
            let store = self.store.clone();
            if let Some(entry) = self.targets.get_mut(&id.pid) {
                entry.life.has_profile = entry.build_id.as_ref().is_some_and(|b| store.profile(b).exists());
                self.counted.taken_back +=
                    u64::from(job == Job::Undo && entry.life.memory().undone_by == Some(By::Harm));
            }
        } else if let Outcome::Failed { message, .. } = outcome {
            // One that is not on the list, or has ended meanwhile.
            info!(pid = id.pid, ?job, "{message}");
        }
    }

    /// Everything is to be taken back: workers stop what they do. What is not on the list is not the daemon's; `whet undo --all` takes
    /// that back.
    pub(crate) fn switch_off(&mut self) {
        for worker in &mut self.workers {
            match worker.order.job {
                Job::Undo | Job::Mend => {}
                // It may build for seconds before it hears, while clones of before are in force.
                Job::Optimize { .. } => worker.interrupt_within(AT_ONCE),
                Job::Check | Job::Judge | Job::Redo => worker.interrupt(),
            }
        }
    }

    /// Whoever works on a target, or on any, lets go of it.
    pub(crate) fn let_go(&mut self, pid: Option<i32>) {
        for worker in &mut self.workers {
            if pid.is_none_or(|pid| worker.order.pid == pid) {
                worker.interrupt();
            }
        }
    }
}
