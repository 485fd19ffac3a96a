use super::*;
use crate::units::{Bytes, Span};
use TargetState as J;

const S: Duration = Duration::from_secs(1);

struct World {
    config: Config,
    off: bool,
    quiet: bool,
    full: bool,
    now: Moment,
    target: Target,
}

fn world() -> World {
    let config = Config {
        profile: crate::config::Profiling { memory_cap: Bytes(8 << 20), ..Config::default().profile },
        ..Config::default()
    };
    World { config, off: false, quiet: false, full: false, now: S, target: Target::new(S, None) }
}

impl World {
    fn policy(&self) -> Policy<'_> {
        Policy { config: &self.config, off: self.off, quiet: self.quiet, full: self.full }
    }

    fn apply(&mut self, event: Event) -> &mut Self {
        let mut target = self.target.clone();
        target.apply(event, self.now, &self.policy());
        self.target = target;
        self
    }

    fn next_job(&self) -> Option<Job> {
        self.target.next_job(self.now, &self.policy())
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn seen(&mut self, cpu_percent: f64, age: Duration) -> &mut Self {
        self.apply(Event::Seen { cpu_percent, age })
    }

    fn busy(&mut self) -> &mut Self {
        self.seen(100.0, 100 * S).seen(100.0, 100 * S)
    }

    /// Begins the job that the target needs, which must be `job`.
    #[track_caller]
    fn begin(&mut self, job: Job) -> &mut Self {
        assert_eq!(self.next_job(), Some(job), "{:?}", self.target);
        self.target.begin(job, self.now);
        self
    }

    fn ends(&mut self, outcome: Outcome) -> &mut Self {
        self.apply(Event::Ended(outcome))
    }

    #[track_caller]
    fn is(&mut self, state: State, reason: &str) -> &mut Self {
        assert_eq!(self.target.state, state, "{:?}", self.target);
        assert!(self.target.reason.contains(reason), "{:?}", self.target.reason);
        self
    }

    /// Ends a rebuild and the check after it.
    fn built(&mut self) -> &mut Self {
        self.ends(built()).begin(Job::Check).ends(fits(0.9, 0.1))
    }

    /// Returns a target that is optimized, judged and under load.
    fn optimized() -> Self {
        let mut w = world();
        w.busy().begin(Job::Optimize { fresh: false }).built();
        w.begin(Job::Judge).ends(judged(1.2, 1.1, 1.3));
        w
    }
}

fn built() -> Outcome {
    Outcome::Optimized { generation: 1, coverage: 0.97, layout: Layout::New }
}

fn judged(factor: f64, low: f64, high: f64) -> Outcome {
    Outcome::Judged(Some(Verdict { factor, low, high }), String::new())
}

fn failed(failure: Failure) -> Outcome {
    Outcome::Failed { failure, code: format!("{failure:?}"), message: format!("because {failure:?}") }
}

/// Passes a minute, and ends a check of the fit if one is due.
fn look(w: &mut World, outcome: Outcome) {
    w.pass(61 * S).seen(100.0, 1000 * S);
    if w.next_job() == Some(Job::Check) {
        w.begin(Job::Check).ends(outcome);
    }
}

fn fits(hot: f64, drift: f64) -> Outcome {
    Outcome::Checked(Fit { samples: 1000, hot, cloned: hot, drift })
}

/// One look at a busy target is followed by another one soon, which decides.
#[test]
fn one_busy_look_leaves_a_target_undecided() {
    let mut w = world();
    assert!(!w.seen(1.0, 100 * S).target.is_undecided());
    assert!(w.seen(100.0, 100 * S).target.is_undecided());
    assert!(!w.seen(100.0, 100 * S).target.is_undecided());
    assert!(!w.seen(1.0, 100 * S).target.is_undecided());
    w.busy().begin(Job::Optimize { fresh: false }).seen(1.0, 100 * S);
    assert!(!w.seen(100.0, 100 * S).target.is_undecided(), "a worker is at it");
}

#[test]
fn a_target_is_optimized_when_it_is_old_and_busy_enough() {
    let mut w = world();
    assert_eq!(
        w.seen(100.0, 10 * S).seen(100.0, 59 * S).is(State::Watching, "younger than 60 s").next_job(),
        None
    );
    // It was busy in one look only.
    assert_eq!(
        w.seen(0.0, 70 * S).seen(100.0, 75 * S).is(State::Watching, "30% is the threshold").next_job(),
        None
    );
    w.seen(100.0, 80 * S).is(State::Watching, "waits for its turn");
    for (off, quiet, full, reason) in
        [(true, false, false, "kill-switch"), (false, true, false, "quiet"), (false, false, true, "as many")]
    {
        (w.off, w.quiet, w.full) = (off, quiet, full);
        assert_eq!(w.seen(100.0, 85 * S).is(State::Watching, reason).next_job(), None);
    }
    (w.off, w.quiet, w.full) = (false, false, false);
    w.begin(Job::Optimize { fresh: false }).is(State::Profiling, "100% of a CPU");
    assert_eq!(w.next_job(), None, "one job at a time");
    w.apply(Event::Stage(State::Counting))
        .is(State::Counting, "")
        .apply(Event::Stage(State::Optimizing))
        .is(State::Optimizing, "");
    w.ends(built()).is(State::Optimized, "97.0% of its user time");
    // With a kept profile, the wait is short.
    let mut w = world();
    w.target.has_profile = true;
    w.seen(100.0, 6 * S)
        .seen(100.0, 6 * S)
        .begin(Job::Optimize { fresh: false })
        .is(State::Profiling, "warm");
}

#[test]
fn a_harmful_rebuild_is_undone_and_stays_undone() {
    let mut w = world();
    w.busy().begin(Job::Optimize { fresh: false }).built();
    w.begin(Job::Judge).ends(judged(0.8, 0.7, 0.95)).is(State::Optimized, "does not pay");
    w.begin(Job::Undo).ends(Outcome::Toggled(Some(J::Undone)));
    w.is(State::Undone, "it does not pay: work per user CPU second x0.80 (0.70-0.95)");
    assert_eq!(w.busy().pass(100_000 * S).busy().next_job(), None);
    // Another daemon finds the reason.
    let memory = w.target.memory();
    assert_eq!(memory.undone_by, Some(By::Harm));
    w.target = Target::new(w.now, Some(memory));
    assert_eq!(w.apply(Event::Journal(Some(J::Undone))).is(State::Undone, "").busy().next_job(), None);
    // A loss of less than 1% is no difference, whatever the interval says.
    let mut w = world();
    w.busy()
        .begin(Job::Optimize { fresh: false })
        .built()
        .begin(Job::Judge)
        .ends(judged(0.995, 0.991, 0.999));
    assert_eq!(w.is(State::Optimized, "no difference to be seen").next_job(), None);
    // Without a clear result, the clones stay.
    for verdict in [judged(0.99, 0.9, 1.01), Outcome::Judged(None, "too idle".to_owned())] {
        let mut w = world();
        w.busy().begin(Job::Optimize { fresh: false }).built().begin(Job::Judge).ends(verdict);
        assert_eq!(w.is(State::Optimized, "").next_job(), None);
    }
}

#[test]
fn clones_are_put_back_after_an_interrupted_comparison() {
    for outcome in [failed(Failure::Interrupted), Outcome::Crashed("dead".to_owned()), Outcome::Killed] {
        let mut w = world();
        w.busy().begin(Job::Optimize { fresh: false }).built().begin(Job::Judge);
        assert_eq!(w.target.memory().undone_by, Some(By::Whet));
        let died = matches!(outcome, Outcome::Crashed(_) | Outcome::Killed);
        w.ends(outcome).is(State::Optimized, "");
        if died {
            w.begin(Job::Mend).ends(Outcome::Toggled(Some(J::Undone)));
        }
        w.begin(Job::Redo).ends(Outcome::Toggled(Some(J::Optimized))).is(State::Optimized, "put back");
        assert_eq!(w.next_job(), None, "not judged again and again");
    }
    // The same holds if the daemon died.
    let mut w = world();
    w.target = Target::new(w.now, Some(Memory { undone_by: Some(By::Whet), ..Memory::default() }));
    w.apply(Event::Journal(Some(J::Undone)))
        .begin(Job::Redo)
        .ends(Outcome::Toggled(Some(J::Optimized)))
        .is(State::Optimized, "");
}

#[test]
fn the_time_between_rebuilds_for_changed_loads_doubles() {
    let mut w = World::optimized();
    for _ in 0..20 {
        look(&mut w, fits(0.95, 0.1));
    }
    assert_eq!(w.is(State::Optimized, "hot clones hold 95.0%").next_job(), None);
    // A single sign may be chance.
    look(&mut w, fits(0.7, 0.1));
    look(&mut w, fits(0.9, 0.1));
    look(&mut w, fits(0.7, 0.1));
    assert_eq!(w.is(State::Optimized, "the load has changed: hot clones hold 70.0%").next_job(), None);
    look(&mut w, fits(0.95, 0.5));
    w.is(State::Optimized, "50.0% of the profile")
        .begin(Job::Optimize { fresh: true })
        .is(State::Profiling, "again, as the load has changed");
    w.built().begin(Job::Judge).ends(judged(1.2, 1.1, 1.3));
    // The second rebuild comes after twice the interval.
    look(&mut w, fits(0.5, 0.0));
    look(&mut w, fits(0.9, 0.5));
    look(&mut w, fits(0.5, 0.5));
    assert_eq!(w.next_job(), None);
    w.pass(600 * S);
    assert_ne!(w.next_job(), Some(Job::Optimize { fresh: true }));
    w.begin(Job::Check).ends(fits(0.5, 0.5)).pass(600 * S);
    w.begin(Job::Optimize { fresh: true });
    // The memory cap ends the rebuilds, and the earlier clones stay in force.
    w.ends(failed(Failure::LeftAlone)).is(State::Optimized, "because LeftAlone");
    w.pass(100_000 * S).begin(Job::Check).ends(fits(0.1, 0.9));
    w.pass(100_000 * S).begin(Job::Check).ends(fits(0.1, 0.9)).is(State::Optimized, "cap is reached").pass(S);
    assert_eq!(w.next_job(), None);
    // A warm start from a profile of another load is noticed by its first check and the next.
    let mut w = world();
    let warm = Outcome::Optimized { generation: 1, coverage: 0.97, layout: Layout::Warm };
    w.busy().begin(Job::Optimize { fresh: false }).ends(warm).begin(Job::Check);
    assert!(w.target.is_before_judgement(&w.config), "its place is kept");
    w.ends(fits(0.7, 0.1));
    w.is(State::Optimized, "70.0% of the samples, not 87.3%").begin(Job::Judge).ends(judged(1.2, 1.1, 1.3));
    look(&mut w, fits(0.7, 0.1));
    w.pass(600 * S).begin(Job::Optimize { fresh: true });
    // What a rebuild for the present load does not reach, the next rebuild would not reach either.
    w.ends(built()).begin(Job::Check).ends(fits(0.7, 0.1)).begin(Job::Judge).ends(judged(1.2, 1.1, 1.3));
    for _ in 0..30 {
        look(&mut w, fits(0.7, 0.1));
    }
    assert_eq!(w.is(State::Optimized, "hot clones hold 70.0% of its user time").next_job(), None);
    // A profile of another build leaves functions out. The full share is expected, not the share of its
    // functions.
    let mut w = world();
    let warm = Outcome::Optimized { generation: 1, coverage: 0.7, layout: Layout::WarmFromOtherBuild };
    w.busy().begin(Job::Optimize { fresh: false }).ends(warm).begin(Job::Check).ends(fits(0.7, 0.1));
    w.is(State::Optimized, "70.0% of the samples, not 90.0%").begin(Job::Judge).ends(judged(1.2, 1.1, 1.3));
    look(&mut w, fits(0.7, 0.1));
    w.pass(600 * S).begin(Job::Optimize { fresh: true });
    // A check with too few samples does not count, an idle target is not checked, and `optimize_once`
    // prevents checks.
    let mut w = World::optimized();
    w.pass(61 * S).begin(Job::Check).ends(Outcome::Checked(Fit { samples: 50, ..Fit::default() }));
    assert_eq!(w.target.fit.map(|f| f.samples), Some(1000));
    assert_eq!(w.pass(61 * S).seen(1.0, 1000 * S).next_job(), None);
    w.config.optimize_once = true;
    assert_eq!(w.busy().next_job(), None);
}

#[test]
fn no_rebuild_begins_in_quiet_hours() {
    let mut w = World::optimized();
    w.config.reoptimize.min_interval = Span(Duration::ZERO);
    w.quiet = true;
    for _ in 0..3 {
        w.pass(61 * S).busy().begin(Job::Check).ends(fits(0.1, 0.9));
        w.target.best_share = Some(1.0);
    }
    assert_eq!(w.next_job(), None);
    w.quiet = false;
    assert_eq!(w.next_job(), Some(Job::Optimize { fresh: true }));
}

#[test]
fn the_kill_switch_undoes_and_its_removal_redoes() {
    let mut w = World::optimized();
    w.off = true;
    w.begin(Job::Undo).ends(Outcome::Toggled(Some(J::Undone))).is(State::Undone, "kill-switch");
    assert_eq!(w.busy().next_job(), None);
    w.off = false;
    w.begin(Job::Redo).ends(Outcome::Toggled(Some(J::Optimized))).is(State::Optimized, "");
    // Another whet is faster.
    w.off = true;
    w.apply(Event::Journal(Some(J::Undone))).is(State::Undone, "kill-switch");
    assert_eq!(w.busy().next_job(), None);
    w.off = false;
    w.begin(Job::Redo).ends(Outcome::Toggled(Some(J::Optimized))).is(State::Optimized, "");
    // An undo by hand stays, whatever becomes of the file.
    w.apply(Event::ByHand(Wish::Undo));
    w.off = true;
    w.pass(SHORT_WAIT).apply(Event::Journal(Some(J::Undone))).is(State::Undone, "by hand");
    w.off = false;
    assert_eq!(w.pass(9999 * S).next_job(), None);
}

#[test]
fn changes_by_hand_are_respected() {
    let mut w = World::optimized();
    // By hand, without a message to the daemon.
    w.apply(Event::Journal(Some(J::Undone))).is(State::Undone, "by hand");
    assert_eq!(w.busy().pass(9999 * S).next_job(), None);
    w.apply(Event::Journal(Some(J::Optimized))).is(State::Optimized, "found");
    // With a message, in the middle of a rebuild.
    let mut w = world();
    w.busy()
        .begin(Job::Optimize { fresh: false })
        .apply(Event::ByHand(Wish::Undo))
        .is(State::Undone, "by hand");
    w.ends(failed(Failure::Interrupted))
        .is(State::Undone, "by hand")
        .apply(Event::Journal(None))
        .is(State::Undone, "by hand");
    assert_eq!(w.busy().pass(9999 * S).next_job(), None);
    w.apply(Event::ByHand(Wish::Redo))
        .is(State::Watching, "")
        .pass(9999 * S)
        .busy()
        .begin(Job::Optimize { fresh: false });
    // In the middle of a check, whose figures are from before the undo.
    let mut w = World::optimized();
    w.pass(61 * S).busy().begin(Job::Check).apply(Event::ByHand(Wish::Undo));
    w.ends(fits(0.5, 0.5)).is(State::Undone, "by hand");
    assert_eq!(w.target.fit.map(|f| f.hot), Some(0.9));
    // A journal that was read before the undo was done is ignored.
    let mut w = World::optimized();
    w.apply(Event::ByHand(Wish::Undo)).apply(Event::Journal(Some(J::Optimized))).is(State::Undone, "by hand");
    w.pass(SHORT_WAIT).apply(Event::Journal(Some(J::Undone))).is(State::Undone, "by hand");
    // Optimized by hand.
    let mut w = world();
    w.apply(Event::Journal(Some(J::Optimized))).is(State::Optimized, "found");
    assert_eq!(w.next_job(), None);
}

#[test]
fn refusals_last_as_long_as_their_reason() {
    let refused = |outcome| {
        let mut w = world();
        w.busy().begin(Job::Optimize { fresh: false }).ends(outcome);
        w
    };
    let mut w = refused(failed(Failure::LeftAlone));
    assert_eq!(w.is(State::Refused, "because LeftAlone").pass(1_000_000 * S).busy().next_job(), None);
    assert!(w.target.memory().refused);
    w.target = Target::new(w.now, Some(w.target.memory()));
    assert_eq!(w.is(State::Refused, "because LeftAlone").busy().next_job(), None);
    // These causes may pass: a debugger detaches, a limit is raised, a permission is granted.
    for failure in [Failure::Hindered, Failure::Other] {
        let mut w = refused(failed(failure));
        assert!(!w.target.memory().refused, "{failure:?}");
        w.pass(61 * S).busy().is(State::Watching, "");
    }
    let mut w = refused(failed(Failure::Hindered));
    w.pass(S)
        .busy()
        .is(State::Refused, "Hindered")
        .pass(60 * S)
        .busy()
        .is(State::Watching, "")
        .begin(Job::Optimize { fresh: false });
    // The kill switch does not wait for such times.
    let mut optimized = World::optimized();
    optimized.target.ready_at = Moment::MAX;
    optimized.off = true;
    optimized.begin(Job::Undo).ends(failed(Failure::Busy)).pass(SHORT_WAIT).begin(Job::Undo);
    // Each wait is longer.
    w.ends(failed(Failure::Hindered)).pass(30 * S).busy().is(State::Refused, "");
    let mut w = refused(failed(Failure::Busy));
    assert_eq!(w.is(State::Watching, "because Busy").next_job(), None);
    w.pass(60 * S).busy().begin(Job::Optimize { fresh: false });
}

#[test]
fn crashes_of_workers_are_mended_and_limited() {
    let mut w = world();
    w.busy();
    for _ in 0..CRASHES {
        w.begin(Job::Optimize { fresh: false })
            .ends(Outcome::Crashed("dead".to_owned()))
            .is(State::Watching, "whet failed: dead");
        w.begin(Job::Mend).ends(Outcome::Toggled(None)).pass(2 * LONGEST_WAIT).busy();
    }
    w.begin(Job::Optimize { fresh: false }).ends(Outcome::Crashed("dead".to_owned()));
    w.begin(Job::Mend).ends(Outcome::Toggled(None));
    assert_eq!(w.is(State::Refused, "4 times").pass(1_000_000 * S).busy().next_job(), None);
    // The crashed worker's operation is recovered all the same.
    w.apply(Event::Journal(Some(J::Counting)))
        .begin(Job::Mend)
        .ends(Outcome::Toggled(Some(J::Undone)))
        .is(State::Refused, "4 times");
    // An undo after a dead worker does not count as an undo by hand.
    let mut w = world();
    w.apply(Event::Journal(Some(J::Interrupted))).begin(Job::Mend).ends(Outcome::Toggled(Some(J::Undone)));
    w.is(State::Watching, "taken out").apply(Event::Journal(Some(J::Undone)));
    w.is(State::Watching, "taken out").busy().begin(Job::Optimize { fresh: false });
}

/// A rebuild that does not end by itself is killed when the kill switch is on. This does not count as a crash
/// of the target, even if the switch is off again by then.
#[test]
fn a_rebuild_killed_by_the_switch_is_mended_and_undone() {
    let mut w = World::optimized();
    for i in 0..=CRASHES {
        w.target.begin(Job::Optimize { fresh: true }, w.now);
        w.off = i % 2 == 0;
        w.ends(Outcome::Killed).is(State::Optimized, "its worker was killed");
        w.off = true;
        w.begin(Job::Mend).ends(Outcome::Toggled(Some(J::Optimized)));
        w.begin(Job::Undo).ends(Outcome::Toggled(Some(J::Undone))).is(State::Undone, "kill-switch file");
        w.off = false;
        w.begin(Job::Redo).ends(Outcome::Toggled(Some(J::Optimized))).is(State::Optimized, "put back");
    }
}

/// A worker that crashes counts as such with the kill switch on as well.
#[test]
fn crashes_count_under_the_switch() {
    let mut w = World::optimized();
    w.off = true;
    for _ in 0..=CRASHES {
        w.target.begin(Job::Optimize { fresh: true }, w.now);
        w.ends(Outcome::Crashed("dead".to_owned()));
    }
    w.is(State::Refused, "4 times: dead");
}

/// An operator undoes a target while a worker works on it, which is killed for this. The worker's operation
/// is recovered, and the operator's undo remains in force.
#[test]
fn an_undo_by_hand_stands_after_its_worker_was_killed() {
    for (job, left) in [
        (Job::Optimize { fresh: true }, Some(J::Undone)),
        (Job::Optimize { fresh: true }, None),
        (Job::Judge, Some(J::Undone)),
        (Job::Align, Some(J::Undone)),
    ] {
        let mut w = World::optimized();
        w.target.begin(job, w.now);
        w.apply(Event::ByHand(Wish::Undo)).ends(Outcome::Killed).is(State::Undone, "by hand");
        w.pass(SHORT_WAIT).begin(Job::Mend).ends(Outcome::Toggled(left)).is(State::Undone, "by hand");
        assert_eq!(w.pass(1000 * S).busy().next_job(), None, "{job:?}");
        assert_eq!(w.target.memory().undone_by, Some(By::User));
    }
}

#[test]
fn replaced_and_ended_processes_are_noticed() {
    let mut w = World::optimized();
    // The same program is executed again in the same process.
    w.apply(Event::Journal(None)).is(State::Watching, "another program");
    w.apply(Event::Gone).is(State::Lost, "ended");
    w.apply(Event::Journal(Some(J::Optimized))).busy().is(State::Lost, "");
    assert_eq!(w.next_job(), None);
}

/// Events in any order: there is one job at a time, none for a lost target, and each working state has a
/// rebuild as its job.
#[test]
fn any_order_of_events_keeps_the_rules() {
    arbtest::arbtest(|u| {
        let mut w = world();
        let mut states = Vec::new();
        for _ in 0..u.int_in_range(0..=60)? {
            w.now += Duration::from_millis(u.int_in_range(0..=200_000)?);
            (w.off, w.quiet, w.full) = (u.ratio(1, 8)?, u.ratio(1, 8)?, u.ratio(1, 8)?);
            if let Some(job) = w.next_job() {
                assert!(w.target.job.is_none() && w.target.state != State::Lost);
                assert!(!w.off || !job.takes_a_place() || job == Job::Judge);
                w.target.begin(job, w.now);
            }
            let journal = *u.choose(&[
                None,
                Some(J::Optimized),
                Some(J::Undone),
                Some(J::Counting),
                Some(J::Interrupted),
            ])?;
            let event = match u.int_in_range(0..=14)? {
                0 => Event::Journal(journal),
                13 => Event::Member(journal),
                1 => Event::Ended(Outcome::Toggled(journal)),
                2 => Event::Ended(built()),
                3 => Event::Ended(fits(f64::from(u.int_in_range(0..=10)?) / 10.0, 0.0)),
                4 => Event::Ended(judged(1.0, 0.9, f64::from(u.int_in_range(9..=11)?) / 10.0)),
                5 => Event::Ended(failed(*u.choose(&[
                    Failure::Gone,
                    Failure::Busy,
                    Failure::Hindered,
                    Failure::LeftAlone,
                    Failure::Other,
                ])?)),
                6 => Event::Ended(Outcome::Crashed(String::new())),
                14 => Event::Ended(Outcome::Killed),
                7 => Event::Stage(*u.choose(&[State::Profiling, State::Counting, State::Optimizing])?),
                8 => Event::ByHand(*u.choose(&[Wish::Undo, Wish::Redo])?),
                9 if u.ratio(1, 10)? => Event::Gone,
                _ => Event::Seen { cpu_percent: f64::from(u.int_in_range(0..=200)?), age: w.now },
            };
            w.apply(event);
            let working = matches!(w.target.state, State::Profiling | State::Counting | State::Optimizing);
            assert!(!working || matches!(w.target.job, Some(Job::Optimize { .. })), "{:?}", w.target);
            states.push(w.target.state);
        }
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn earlier_layouts_are_reported_and_do_not_lengthen_the_wait() {
    let mut w = World::optimized();
    let by = |layout| Outcome::Optimized { generation: 2, coverage: 0.97, layout };
    let mut rebuilt = |after: u32, layout, words: &str| {
        for _ in 0..3 {
            look(&mut w, fits(0.9, 0.5));
        }
        w.pass(after * S).begin(Job::Optimize { fresh: true }).ends(by(layout)).is(State::Optimized, words);
        w.begin(Job::Check).ends(fits(0.9, 0.0)).begin(Job::Judge).ends(judged(1.2, 1.1, 1.3));
    };
    for _ in 0..5 {
        rebuilt(600, Layout::Earlier, "an earlier layout, which serves this load");
    }
    rebuilt(600, Layout::EarlierAsFull, "no room is left for new clones");
    for _ in 0..3 {
        look(&mut w, fits(0.9, 0.5));
    }
    assert_ne!(w.pass(300 * S).next_job(), Some(Job::Optimize { fresh: true }));
    assert_eq!(w.pass(1200 * S).next_job(), Some(Job::Optimize { fresh: true }));
}

#[test]
fn a_careful_rollout_begins_with_few_targets_and_observing_begins_with_none() {
    type Change = dyn Fn(&mut crate::config::Rollout);
    let wanted = |change: &Change, lot: u16, age: u32| {
        let mut w = world();
        change(&mut w.config.rollout);
        w.target.lot = lot;
        w.seen(100.0, age * S).seen(100.0, age * S);
        (w.next_job(), w.target.reason.clone())
    };
    let share = |r: &mut crate::config::Rollout| r.share_percent = 10.0;
    assert!(wanted(&share, 999, 70).0.is_some());
    let (job, why) = wanted(&share, 1000, 70);
    assert!(job.is_none() && why.contains("not among the 10%"), "{why}");
    let jitter = |r: &mut crate::config::Rollout| r.start_jitter = Span(100 * S);
    assert!(wanted(&jitter, 0, 60).0.is_some() && wanted(&jitter, 5000, 109).0.is_none());
    assert!(wanted(&jitter, 5000, 110).0.is_some());
    let observe = |r: &mut crate::config::Rollout| r.observe = true;
    let freeze = |r: &mut crate::config::Rollout| r.freeze = true;
    let both: [(&Change, &str); 2] = [(&observe, "would be optimized now (cold)"), (&freeze, "says freeze")];
    for (change, reason) in both {
        let (job, why) = wanted(change, 0, 70);
        assert!(job.is_none() && why.contains(reason), "{why}");
    }
}

/// Members of a family that differ from their parent are put right: with the parent's clones, or without any.
#[test]
fn a_family_is_one_target() {
    let mut w = World::optimized();
    for alike in [Some(J::Optimized), Some(J::Counting)] {
        let mut w = World::optimized();
        w.apply(Event::Member(alike));
        let mends = alike == Some(J::Counting);
        assert_eq!(w.next_job().filter(|j| *j != Job::Judge), mends.then_some(Job::Mend));
    }
    w.apply(Event::Member(None)).begin(Job::Align);
    w.ends(Outcome::Toggled(Some(J::Optimized))).is(State::Optimized, "");
    assert_ne!(w.next_job(), Some(Job::Align));
    // A member that does not fit forks another one: this has time.
    w.apply(Event::Member(Some(J::Undone)));
    assert_ne!(w.next_job(), Some(Job::Align));
    w.pass(A_MOMENT).begin(Job::Align).ends(failed(Failure::Busy));
    w.pass(A_MOMENT).begin(Job::Align);
    // A family that was undone for harm stays so.
    let mut w = world();
    w.busy().begin(Job::Optimize { fresh: false }).built().begin(Job::Judge).ends(judged(0.8, 0.7, 0.9));
    w.begin(Job::Undo).ends(Outcome::Toggled(Some(J::Undone))).is(State::Undone, "does not pay");
    w.apply(Event::Member(Some(J::Optimized))).begin(Job::Undo).ends(Outcome::Toggled(Some(J::Undone)));
    w.is(State::Undone, "does not pay");
    assert_eq!(w.next_job(), None);
    // The kill switch reaches members whose parent has no clones, and does not give up.
    let mut w = world();
    w.apply(Event::Member(Some(J::Optimized)));
    assert_eq!(w.next_job(), None);
    w.off = true;
    w.begin(Job::Undo).ends(failed(Failure::Busy));
    w.pass(SHORT_WAIT).begin(Job::Undo).ends(Outcome::Toggled(None)).is(State::Watching, "no clones");
    assert_eq!(w.pass(SHORT_WAIT).next_job(), None);
}
