//! The life of one target: its states, the transitions between states, and the next job.
//!
//! Pure: it accesses no process, no file and no clock. Moments are passed in, on a clock that never goes back
//! (time since the daemon's start). So a change of the time of day has no effect here.

use crate::config::Config;
use crate::percent;
use crate::rollout::LOTS;
use crate::states::{By, Event, Job, Layout, Memory, Moment, Outcome, State, Verdict, Wish};
use engine::{Failure, Fit, TargetState};
use std::time::Duration;

/// How many looks in a row must agree before something costly is done.
const AGREEING: u32 = 2;
/// The fewest samples for a check of the fit to count.
const TELLING_SAMPLES: u64 = 200;
/// If a profile fits, at most this share of the samples in cloned functions lies outside the hot fragments of
/// clones.
const WARM_SHARE: f64 = 0.1;
/// The wait after the first failure; it doubles with each further failure.
const FIRST_WAIT: Duration = Duration::from_secs(20);
/// The wait after a target could not be put in order. Also the time after a change by hand in which journals
/// are ignored.
const SHORT_WAIT: Duration = Duration::from_secs(5);
/// How long after a worker's end a look may find a child that was forked before.
const A_MOMENT: Duration = Duration::from_secs(30);
/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How many crashes of workers a target may have. After one more, the target is left alone.
const CRASHES: u32 = 3;
/// The longest time between two rebuilds that doubling leads to.
const LONGEST_INTERVAL: Duration = Duration::from_secs(86_400);

/// The conditions that hold for all targets.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The kill-switch file exists.
    pub off: bool,
    /// This is a quiet hour.
    pub quiet: bool,
    /// As many targets as allowed are optimized or worked on.
    pub full: bool,
}

/// One target.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Its state.
    pub state: State,
    /// The reason for the state.
    pub reason: String,
    /// The stable name of the cause of the last refusal. It holds in the state [`State::Refused`].
    pub code: String,
    /// The moment at which it entered the state.
    pub since: Moment,
    /// The job of the worker that is at work on it.
    pub job: Option<Job>,
    /// User CPU time at the last scan, percent of one CPU.
    pub cpu_percent: f64,
    /// The generation of its newest rebuild by this daemon; 0 before the first rebuild.
    pub generation: u32,
    /// The result of the last check of the fit.
    pub fit: Option<Fit>,
    /// The result of the last comparison.
    pub verdict: Option<Verdict>,
    /// A profile of its build is kept.
    pub has_profile: bool,
    /// Its place among all targets, for shares and jitter: a number below `LOTS`.
    pub lot: u16,
    undone_by: Option<By>,
    age: Duration,
    hungry: u32,
    /// No new work begins before this moment.
    ready_at: Moment,
    /// No undo, redo, recovery or alignment begins before this moment.
    toggled_at: Moment,
    failures: u32,
    crashes: u32,
    needs_mending: bool,
    /// The clones in force in a member of its family differ from those of the parent.
    unlike: bool,
    /// The last end of a job that was done for this reason alone.
    aligned_at: Option<Moment>,
    /// Clones were in force when the job began.
    was_optimized: bool,
    /// The clones did harm and are to be undone.
    harmful: bool,
    judged: bool,
    final_generation: bool,
    best_share: Option<f64>,
    unfit: u32,
    rebuilds: u32,
    built_at: Moment,
    deaf_until: Moment,
    changed_at: Option<Moment>,
    /// The moment of the last check of the fit; `None` if there was no check since the rebuild.
    checked_at: Option<Moment>,
}

impl Target {
    /// Creates a target that was just found. `known` is the record of an earlier daemon, or follows from the
    /// parent process.
    #[must_use]
    pub fn new(now: Moment, known: Option<Memory>) -> Self {
        let known = known.unwrap_or_default();
        Self {
            state: if known.refused { State::Refused } else { State::Watching },
            reason: if known.refused { known.reason } else { "just found".to_owned() },
            code: known.code,
            since: now,
            job: None,
            cpu_percent: 0.0,
            generation: 0,
            fit: None,
            verdict: None,
            has_profile: false,
            lot: 0,
            undone_by: known.undone_by,
            age: Duration::ZERO,
            hungry: 0,
            ready_at: if known.refused { Moment::MAX } else { now },
            toggled_at: now,
            failures: 0,
            crashes: 0,
            needs_mending: false,
            unlike: false,
            aligned_at: None,
            was_optimized: false,
            harmful: false,
            judged: false,
            final_generation: false,
            best_share: None,
            unfit: 0,
            rebuilds: 0,
            built_at: now,
            deaf_until: now,
            changed_at: None,
            checked_at: Some(now),
        }
    }

    /// Returns true while a check of the fit runs before the pending comparison; the worker slot stays
    /// reserved.
    #[must_use]
    pub fn is_before_judgement(&self, c: &Config) -> bool {
        self.job == Some(Job::Check) && !self.judged && c.harm.judge
    }

    /// Returns the facts that a later daemon needs.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let under_judgement =
            matches!(self.job, Some(Job::Judge | Job::Redo | Job::Mend | Job::Optimize { .. }));
        let refused = self.state == State::Refused && self.ready_at == Moment::MAX;
        Memory {
            undone_by: if under_judgement { Some(By::Whet) } else { self.undone_by },
            reason: self.reason.clone(),
            refused,
            code: if refused { self.code.clone() } else { String::new() },
        }
    }

    /// Returns whether the last comparison found that the clones do harm, so that they are to be undone.
    #[must_use]
    pub fn is_harmful(&self) -> bool {
        self.harmful
    }

    /// Returns whether its clones are in force, as far as the daemon can see.
    #[must_use]
    pub fn is_optimized(&self) -> bool {
        self.state == State::Optimized
    }

    /// Returns whether a worker is changing the target, or has just done so. Children forked meanwhile may
    /// lack its clones only for this reason.
    #[must_use]
    pub fn is_being_changed(&self, now: Moment) -> bool {
        let working = self.job.is_some_and(|j| j != Job::Check);
        let lately = self.changed_at.is_some_and(|at| now < at + A_MOMENT);
        let a_moment_ago = self.state == State::Optimized && lately;
        self.undone_by != Some(By::User) && (working || a_moment_ago)
    }

    fn enter(&mut self, state: State, now: Moment, reason: impl Into<String>) {
        if state != self.state {
            self.since = now;
        }
        self.state = state;
        self.reason = reason.into();
    }

    /// Returns whether the next look may be the one after which the target is optimized.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.state == State::Watching && self.hungry + 1 == AGREEING
    }

    /// Returns the next job, if there is one; the caller decides when to start it.
    #[must_use]
    pub fn next_job(&self, now: Moment, policy: &Policy<'_>) -> Option<Job> {
        if self.job.is_some() || self.state == State::Lost {
            return None;
        }
        self.job_in_order(policy).filter(|_| now >= self.toggled_at).or_else(|| {
            let may_begin = now >= self.ready_at && self.job_in_order(policy).is_none();
            self.new_job(now, policy).filter(|_| may_begin)
        })
    }

    /// Returns the job that puts the target in order, if one is needed. The wait for new work (`ready_at`)
    /// does not delay it.
    fn job_in_order(&self, policy: &Policy<'_>) -> Option<Job> {
        match self.state {
            _ if self.needs_mending => Some(Job::Mend),
            _ if self.unlike && (policy.off || self.undone_by == Some(By::Harm)) => Some(Job::Undo),
            State::Optimized if policy.off || self.harmful => Some(Job::Undo),
            State::Optimized if self.undone_by == Some(By::Whet) => Some(Job::Redo),
            State::Undone if self.undone_by == Some(By::Switch) && !policy.off => Some(Job::Redo),
            _ => None,
        }
    }

    fn new_job(&self, now: Moment, policy: &Policy<'_>) -> Option<Job> {
        let c = policy.config;
        let calm = !policy.off && !policy.quiet && !c.rollout.freeze && !c.rollout.observe;
        match self.state {
            State::Watching => self.obstacle(policy).is_none().then_some(Job::Optimize { fresh: false }),
            State::Optimized if self.unlike && self.aligned_at.is_none_or(|at| now >= at + A_MOMENT) => {
                Some(Job::Align)
            }
            // The first check comes at once after a rebuild, while the load is still the load of the profile.
            // Later checks are compared with its result.
            State::Optimized if self.checked_at.is_none() && self.may_be_checked(c) => Some(Job::Check),
            State::Optimized if !self.judged && c.harm.judge => Some(Job::Judge),
            State::Optimized if calm && self.should_be_rebuilt(now, c) => Some(Job::Optimize { fresh: true }),
            State::Optimized
                if self.checked_at.is_some_and(|at| now >= at + c.reoptimize.every.0)
                    && self.may_be_checked(c) =>
            {
                Some(Job::Check)
            }
            _ => None,
        }
    }

    fn may_be_checked(&self, c: &Config) -> bool {
        !c.optimize_once && self.is_busy(c)
    }

    /// Returns the reason why a watched target is not optimized now.
    fn obstacle(&self, policy: &Policy<'_>) -> Option<String> {
        let c = policy.config;
        let age =
            if self.has_profile { c.take.warm_min_age.0.min(c.take.min_age.0) } else { c.take.min_age.0 };
        let part = f64::from(self.lot) / f64::from(LOTS);
        let age = age + c.rollout.start_jitter.0.mul_f64(part);
        if policy.off {
            Some("the kill-switch file exists".to_owned())
        } else if policy.full {
            Some("as many targets as allowed are optimized".to_owned())
        } else if self.age < age {
            Some(format!("it is younger than {} s", age.as_secs()))
        } else if self.hungry < AGREEING {
            Some(format!(
                "it uses {:.0}% of a CPU; {:.0}% is the threshold",
                self.cpu_percent, c.take.cpu_percent
            ))
        } else if policy.quiet {
            Some("these are quiet hours".to_owned())
        } else if c.rollout.freeze {
            Some("the configuration says freeze".to_owned())
        } else if part * 100.0 >= c.rollout.share_percent {
            Some(format!("it is not among the {}% of targets that are optimized", c.rollout.share_percent))
        } else if c.rollout.observe {
            let how = if self.has_profile { "warm" } else { "cold" };
            Some(format!("it would be optimized now ({how}); the configuration says observe"))
        } else {
            None
        }
    }

    fn is_busy(&self, c: &Config) -> bool {
        self.cpu_percent >= c.take.cpu_percent
    }

    fn should_be_rebuilt(&self, now: Moment, c: &Config) -> bool {
        let doubled = c.reoptimize.min_interval.0.saturating_mul(1 << self.rebuilds.min(16));
        !c.optimize_once
            && !self.final_generation
            && self.unfit >= AGREEING
            && now >= self.built_at + doubled.min(LONGEST_INTERVAL.max(c.reoptimize.min_interval.0))
    }

    /// Records that a worker has begun a job.
    pub fn begin(&mut self, job: Job, now: Moment) {
        self.job = Some(job);
        self.was_optimized = self.state == State::Optimized;
        if let Job::Optimize { fresh } = job {
            let why = match (fresh, self.has_profile) {
                (true, _) => format!("again, as {}", self.reason),
                (false, true) => "warm, by the profile that is kept".to_owned(),
                (false, false) => format!("it uses {:.0}% of a CPU", self.cpu_percent),
            };
            self.enter(State::Profiling, now, why);
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, event: Event, now: Moment, policy: &Policy<'_>) {
        if self.state == State::Lost {
            return;
        }
        if matches!(event, Event::ByHand(_)) {
            // Until the change by hand is done, the journal shows the earlier state.
            self.deaf_until = now + SHORT_WAIT;
        }
        match event {
            Event::Seen { cpu_percent, age } => self.seen(cpu_percent, age, now, policy),
            Event::Journal(journal) if self.job.is_none() && now >= self.deaf_until => {
                self.journal(journal, now, policy);
            }
            Event::Member(journal) if self.job.is_none() && now >= self.deaf_until => self.member(journal),
            Event::Journal(_) | Event::Member(_) => {}
            Event::Stage(stage) => {
                if matches!(self.job, Some(Job::Optimize { .. })) {
                    let reason = std::mem::take(&mut self.reason);
                    self.enter(stage, now, reason);
                }
            }
            Event::Ended(outcome) => {
                if let Some(job) = self.job.take() {
                    // The job is over, whatever its outcome.
                    if matches!(self.state, State::Profiling | State::Counting | State::Optimizing) {
                        self.state = if self.was_optimized { State::Optimized } else { State::Watching };
                        self.since = now;
                    }
                    if job != Job::Check {
                        self.changed_at = Some(now);
                        self.aligned_at = if job == Job::Align { Some(now) } else { self.aligned_at };
                        self.unlike &= !job.visits_members() || matches!(outcome, Outcome::Failed { .. });
                    }
                    self.ended(job, outcome, now, policy);
                }
            }
            Event::ByHand(Wish::Undo) => {
                self.undone_by = Some(By::User);
                self.needs_mending = false;
                self.harmful = false;
                self.enter(State::Undone, now, "by hand");
            }
            // The journal will show the result.
            Event::ByHand(Wish::Redo) => {
                if matches!(self.state, State::Undone | State::Refused) {
                    self.undone_by = None;
                    self.ready_at = now + FIRST_WAIT;
                    self.enter(State::Watching, now, "to be looked after again, by hand");
                }
            }
            Event::Gone => self.enter(State::Lost, now, "it has ended, or become another program"),
        }
    }

    fn seen(&mut self, cpu_percent: f64, age: Duration, now: Moment, policy: &Policy<'_>) {
        self.cpu_percent = cpu_percent;
        self.age = age;
        let hungry = self.is_busy(policy.config);
        self.hungry = if hungry { self.hungry.saturating_add(1) } else { 0 };
        if self.state == State::Refused && now >= self.ready_at {
            self.enter(State::Watching, now, "to be tried again");
        }
        if self.state == State::Watching && self.job.is_none() && now >= self.ready_at && !self.needs_mending
        {
            self.reason = self.obstacle(policy).unwrap_or_else(|| "it waits for its turn".to_owned());
        }
    }

    fn journal(&mut self, journal: Option<TargetState>, now: Moment, policy: &Policy<'_>) {
        use TargetState as J;
        match (self.state, journal) {
            (_, Some(J::Counting | J::Interrupted)) => {
                self.needs_mending = true;
                if self.state != State::Refused {
                    self.reason = "a whet died while it was at work on it".to_owned();
                }
            }
            (State::Watching | State::Optimized, Some(J::Undone)) => match self.undone_by {
                // A worker died between undo and redo.
                Some(By::Whet) => self.enter(State::Optimized, now, "its clones are being put back"),
                Some(By::Mended) => self.enter(State::Watching, now, self.reason.clone()),
                Some(By::Harm) => self.enter(State::Undone, now, self.reason.clone()),
                Some(By::Switch) => self.enter(State::Undone, now, "the kill-switch file was there"),
                // By another whet, for the same file.
                None if policy.off => self.undone_for_switch(now),
                Some(By::User) | None => {
                    self.undone_by = Some(By::User);
                    self.enter(State::Undone, now, "by hand");
                }
            },
            (State::Optimized, None) => {
                *self = Self { has_profile: self.has_profile, lot: self.lot, ..Self::new(now, None) };
                self.reason = "it has become another program".to_owned();
            }
            (State::Watching | State::Undone | State::Refused, Some(J::Optimized)) => {
                self.undone_by = None;
                self.judged = true;
                self.ready_at = now;
                self.built_at = now;
                // The earlier results may belong to another layout.
                (self.verdict, self.fit, self.best_share, self.unfit) = (None, None, None, 0);
                self.enter(State::Optimized, now, "found optimized");
            }
            _ => {}
        }
        if self.state == State::Optimized && journal == Some(J::Optimized) {
            self.undone_by = None;
        }
    }

    /// Compares a member's journal with the target's state. An operator's undo of a single member is not
    /// undone: each member is read once, when it is new.
    fn member(&mut self, journal: Option<TargetState>) {
        use TargetState as J;
        match (self.state, journal) {
            (_, Some(J::Counting | J::Interrupted)) => self.needs_mending = true,
            (State::Optimized, None | Some(J::Undone)) => self.unlike = true,
            (State::Watching | State::Undone | State::Refused, Some(J::Optimized)) => self.unlike = true,
            _ => {}
        }
    }

    fn ended(&mut self, job: Job, outcome: Outcome, now: Moment, policy: &Policy<'_>) {
        match outcome {
            Outcome::Optimized { generation, coverage, layout } => {
                // An earlier layout takes no room. So a load that alternates between layouts does not
                // lengthen the wait.
                let waits_longer = self.was_optimized && layout != Layout::Earlier;
                self.rebuilds = self.rebuilds.saturating_add(u32::from(waits_longer));
                self.generation = generation;
                self.failures = 0;
                self.undone_by = None;
                self.judged = false;
                self.verdict = None;
                self.unfit = 0;
                // A warm layout was built for the profile's load, so its first check is already compared with
                // the profile's share. For a layout built for the present load, the first check sets the
                // share to compare with. Of another build, functions may be missing: if much is, a rebuild for the
                // present load follows.
                self.best_share = match layout {
                    Layout::Warm => Some(coverage * (1.0 - WARM_SHARE)),
                    Layout::WarmFromOtherBuild => Some(1.0 - WARM_SHARE),
                    Layout::New | Layout::Earlier | Layout::EarlierAsFull => None,
                };
                self.built_at = now;
                self.checked_at = None;
                let how = match layout {
                    Layout::New => "",
                    Layout::Warm => "warm, by the profile that is kept; ",
                    Layout::WarmFromOtherBuild => "warm, by the profile of another build; ",
                    Layout::Earlier => "by an earlier layout, which serves this load; ",
                    Layout::EarlierAsFull => "by an earlier layout, as no room is left for new clones; ",
                };
                self.enter(
                    State::Optimized,
                    now,
                    format!("{how}clones hold {} of its user time", percent(coverage)),
                );
            }
            Outcome::Checked(fit) => self.checked(fit, now, policy),
            Outcome::Judged(verdict, reason) => self.judged(verdict, &reason, now, policy),
            Outcome::Toggled(journal) => self.toggled(job, journal, now, policy),
            Outcome::Failed { failure, code, message } => {
                self.code = code;
                self.failed(job, failure, &message, now);
            }
            Outcome::Crashed(why) => self.crashed(job, &why, now),
            Outcome::Killed => self.died(job, "its worker was killed, as it was to end", now),
        }
    }

    fn crashed(&mut self, job: Job, why: &str, now: Moment) {
        self.crashes = self.crashes.saturating_add(1);
        self.died(job, &format!("whet failed: {why}"), now);
        if self.crashes > CRASHES {
            self.ready_at = Moment::MAX;
            "worker_crashed".clone_into(&mut self.code);
            self.enter(State::Refused, now, format!("whet failed {} times: {why}", self.crashes));
        }
    }

    /// Handles the death of a worker: its operation may have to be recovered. An operator's undo, for which
    /// the worker was to end, remains in force.
    fn died(&mut self, job: Job, reason: &str, now: Moment) {
        if job == Job::Check {
            self.checked_at = Some(now);
            return;
        }
        // The number of attempts to recover is limited as well.
        self.needs_mending = self.crashes <= CRASHES || job != Job::Mend;
        let by_hand = self.is_undone_by_hand();
        if job == Job::Judge {
            self.judged = true;
            self.undone_by = if by_hand { self.undone_by } else { Some(By::Whet) };
            return;
        }
        self.wait(job, now);
        if !by_hand {
            let state = if self.was_optimized { State::Optimized } else { State::Watching };
            self.enter(state, now, reason);
        }
    }

    fn undone_for_switch(&mut self, now: Moment) {
        self.undone_by = Some(By::Switch);
        self.enter(State::Undone, now, "the kill-switch file exists");
    }

    fn is_undone_by_hand(&self) -> bool {
        self.state == State::Undone && self.undone_by == Some(By::User)
    }

    fn checked(&mut self, fit: Fit, now: Moment, policy: &Policy<'_>) {
        let r = &policy.config.reoptimize;
        self.checked_at = Some(now);
        if fit.samples < TELLING_SAMPLES || self.state != State::Optimized {
            return;
        }
        self.fit = Some(fit);
        let best = self.best_share.unwrap_or(0.0).max(fit.hot);
        self.best_share = Some(best);
        let fell = (best - fit.hot) * 100.0 > r.share_drop_percent;
        let drifted = fit.drift * 100.0 > r.drift_percent;
        self.unfit = if fell || drifted { self.unfit.saturating_add(1) } else { 0 };
        let share = percent(fit.hot);
        self.reason = match (fell, drifted) {
            (true, _) => {
                format!("the load has changed: hot clones hold {share} of the samples, not {}", percent(best))
            }
            (_, true) => {
                format!("the load has changed: {} of the profile lie in other functions", percent(fit.drift))
            }
            _ => format!("hot clones hold {share} of its user time"),
        };
        if self.unfit > 0 && self.final_generation {
            self.reason.push_str("; its memory cap is reached");
        }
    }

    fn judged(&mut self, verdict: Option<Verdict>, why: &str, now: Moment, policy: &Policy<'_>) {
        self.judged = true;
        self.verdict = verdict;
        let Some(v) = verdict else {
            self.reason = format!("{}; the gain could not be measured: {why}", self.reason);
            return;
        };
        let text = format!("work per user CPU second x{:.2} ({:.2}-{:.2})", v.factor, v.low, v.high);
        // A difference of less than 1% is none, whatever the interval says.
        let least = 1.0 + policy.config.harm.min_gain_percent / 100.0;
        if v.high < least && v.factor <= least - measure::LEAST_EFFECT {
            self.harmful = true;
            self.enter(State::Optimized, now, format!("it does not pay: {text}"));
        } else {
            let differs = v.low > 1.0 && v.factor >= 1.0 + measure::LEAST_EFFECT;
            self.reason = match differs {
                true => format!("{text} with its clones"),
                false => format!("no difference to be seen: {text} with its clones"),
            };
        }
    }

    fn toggled(&mut self, job: Job, journal: Option<TargetState>, now: Moment, policy: &Policy<'_>) {
        use TargetState as J;
        self.needs_mending = false;
        self.failures = 0;
        match (job, journal) {
            (Job::Align, Some(J::Optimized)) => {}
            // Members alone were undone; the cause of the target's own undo stands.
            (Job::Undo, Some(J::Undone) | None) if self.state == State::Undone => {}
            // The worker that died was to end for an operator's undo, which stands.
            (Job::Mend, Some(J::Undone) | None) if self.is_undone_by_hand() => {}
            (_, Some(J::Optimized)) => {
                self.undone_by = None;
                self.enter(
                    State::Optimized,
                    now,
                    if job == Job::Mend { "mended" } else { "its redirects were put back" },
                );
            }
            (Job::Undo, Some(J::Undone)) if self.harmful => {
                self.harmful = false;
                self.undone_by = Some(By::Harm);
                let reason = self.reason.clone();
                self.enter(State::Undone, now, reason);
            }
            (Job::Undo, Some(J::Undone)) if policy.off => self.undone_for_switch(now),
            // A worker died after an undo, before the redo, or while it installed: the daemon puts the clones
            // back.
            (_, Some(J::Undone)) if self.state == State::Optimized => self.undone_by = Some(By::Whet),
            (_, Some(J::Undone) | None) if self.state == State::Refused => self.undone_by = Some(By::Mended),
            (_, Some(J::Undone)) => {
                self.undone_by = Some(By::Mended);
                self.enter(State::Watching, now, "what a whet that died had begun was taken out");
            }
            (_, Some(J::Counting | J::Interrupted | J::Profiling | J::Optimizing)) => {
                self.needs_mending = true;
            }
            (_, None) => self.enter(State::Watching, now, "it holds no clones"),
        }
    }

    fn failed(&mut self, job: Job, failure: Failure, message: &str, now: Moment) {
        let was_optimized = self.was_optimized;
        if self.is_undone_by_hand() {
            // An operator undid the target, and the job was interrupted for this.
            return;
        }
        if job == Job::Judge {
            self.judged = true;
            self.undone_by = Some(By::Whet);
            self.reason = format!("the gain could not be measured: {message}");
            return;
        }
        if job == Job::Check {
            self.checked_at = Some(now);
            return;
        }
        self.wait(job, now);
        match job {
            Job::Optimize { .. } if was_optimized && failure.is_transient() => {
                self.unfit = 0;
                self.enter(State::Optimized, now, message);
            }
            Job::Optimize { .. } if was_optimized => {
                self.final_generation = true;
                self.enter(State::Optimized, now, format!("{}; {message}", self.reason));
            }
            Job::Optimize { .. } if failure.is_transient() => self.enter(State::Watching, now, message),
            Job::Optimize { .. } => {
                if failure.is_final() {
                    self.ready_at = Moment::MAX;
                }
                self.enter(State::Refused, now, message);
            }
            _ => self.reason = message.to_owned(),
        }
    }

    /// Sets the wait after a failure. New work waits longer each time, a job that puts the target in order
    /// only a short time.
    fn wait(&mut self, job: Job, now: Moment) {
        if matches!(job, Job::Undo | Job::Redo | Job::Mend | Job::Align) {
            self.toggled_at = now + SHORT_WAIT;
            return;
        }
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT);
        self.failures = self.failures.saturating_add(1);
        self.ready_at = now + wait;
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
