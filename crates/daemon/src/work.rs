//! The worker: whet's own program, started by the daemon for one job on one target.
//!
//! It gets an [`Order`] and writes lines of JSON: stages and warnings, at last an [`Outcome`].

use crate::judge;
use crate::states::{Job, Layout, Outcome, State};
use crate::store::write_whole;
use crate::watch::Identity;
use engine::{
    CodeCache, Error, ExitCode, Interrupt, MembersReport, OptimizeOptions, Pid, Progress, Tally, TargetState,
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The sampling rate for a comparison of the layout with the load, per second of a busy thread. A target that
/// is busy for a tenth of the time gives the fewest samples that count, others give more.
const CHECK_HZ: u32 = 1009;
/// The sampling time of a comparison of the layout with the load.
const CHECK_TIME: Duration = Duration::from_secs(2);

/// One job on one target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The process id.
    pub pid: i32,
    /// The process's start, in clock ticks since boot. The id may belong to another process by now.
    pub start: u64,
    /// The job.
    pub job: Job,
    /// Whether it is done on the process's whole family.
    pub family: bool,
    /// The daemon's process id. If the worker's parent is another process, the worker does nothing.
    pub daemon: i32,
    /// The sampling time.
    pub sampling: Duration,
    /// The length of a round of counting; zero means no counting.
    pub counting: Duration,
    /// The most address space for clones. Bytes.
    pub memory_cap: u64,
    /// The memory of clones.
    pub code_cache: CodeCache,
    /// The time for a comparison.
    pub judging: Duration,
    /// The file for the profile of the target's build, which the worker writes.
    pub profile: Option<PathBuf>,
    /// The file of the profile to start from without sampling and counting.
    pub warm: Option<PathBuf>,
    /// For tests: lay out everything at random, which does harm.
    pub bad_layout: bool,
}

/// A line of a worker's output.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The worker has begun this stage.
    Stage(State),
    /// A warning for the daemon's log.
    Warning(String),
    /// The worker has stopped its target so often, and for so long at most.
    Stops {
        /// The number of stops.
        count: u64,
        /// The longest.
        longest: Duration,
    },
    /// The job has ended.
    Outcome(Outcome),
}

fn say(line: &Line) {
    let text = serde_json::to_string(line).unwrap_or_default();
    let mut stdout = std::io::stdout().lock();
    // If the daemon is gone, the work must still end in a sound state.
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Carries out an order, given as JSON. `listen` turns signals into a request for an orderly end.
pub fn run(order: &str, listen: impl FnOnce(&Interrupt)) -> ExitCode {
    let Ok(order) = serde_json::from_str::<Order>(order) else { return ExitCode::Usage };
    let interrupt = Interrupt::default();
    listen(&interrupt);
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    if getppid().map(|p| p.as_raw_nonzero().get()) != Some(order.daemon) {
        return ExitCode::Usage;
    }
    let outcome = order.carry_out(&interrupt).unwrap_or_else(|e| failed(&e));
    let Tally { count, longest } = engine::tally();
    say(&Line::Stops { count, longest });
    say(&Line::Outcome(outcome));
    ExitCode::Ok
}

/// Returns the outcome of a job that failed.
pub(crate) fn failed(e: &Error) -> Outcome {
    Outcome::Failed { failure: e.failure(), code: e.code().to_owned(), message: engine::with_causes(e) }
}

/// Returns the outcome of a job that changed which code is in force, and reports members that it left alone.
fn toggled(state: TargetState, members: Option<&MembersReport>) -> Outcome {
    if let Some(members) = members {
        report_left_alone(members);
    }
    Outcome::Toggled(Some(state))
}

fn report_left_alone(members: &MembersReport) {
    if let Some(first) = members.left_alone.first() {
        let (many, pid, why) = (members.left_alone.len(), first.pid, &first.why);
        say(&Line::Warning(format!(
            "{many} processes of its family run without its clones; the first is {pid}: {why}"
        )));
    }
}

impl Order {
    /// Returns the identity of the target.
    #[must_use]
    pub fn target(&self) -> Identity {
        Identity { pid: self.pid, start: self.start }
    }

    fn carry_out(&self, interrupt: &Interrupt) -> Result<Outcome, Error> {
        let pid = Pid(self.pid);
        engine::is_still(pid, self.start)?;
        match self.job {
            Job::Optimize { fresh } => self.optimize(fresh, interrupt),
            Job::Check => match (self.give_way(interrupt)?, self.family) {
                (Some(outcome), _) => Ok(outcome),
                (None, true) => {
                    engine::fit_family(pid, CHECK_TIME, CHECK_HZ, interrupt).map(Outcome::Checked)
                }
                (None, false) => engine::fit(pid, CHECK_TIME, CHECK_HZ, interrupt).map(Outcome::Checked),
            },
            Job::Judge => judge::judge(pid, self.family, self.judging, interrupt),
            Job::Undo if self.family => self.undo_family(),
            Job::Redo if self.family => {
                engine::redo_family(pid).map(|a| toggled(a.parent.state, Some(&a.members)))
            }
            Job::Mend if self.family => self.mend_family(interrupt),
            Job::Undo => engine::undo(pid).map(|a| toggled(a.state, None)),
            Job::Redo => engine::redo(pid).map(|a| toggled(a.state, None)),
            Job::Mend => engine::mend(pid).map(Outcome::Toggled),
            Job::Align => {
                engine::align_family(pid, interrupt).map(|m| toggled(TargetState::Optimized, Some(&m)))
            }
        }
    }

    /// Undoes a family. Members in which redirects remain are reported.
    fn undo_family(&self) -> Result<Outcome, Error> {
        let undone = match engine::undo_family(Pid(self.pid)) {
            Err(Error::NotInstalled { .. }) => return Ok(Outcome::Toggled(None)),
            undone => undone?,
        };
        for left in &undone.left {
            say(&Line::Warning(format!(
                "process {} of its family could not be undone: {}",
                left.pid, left.why
            )));
        }
        Ok(Outcome::Toggled(undone.parent_answer.map(|a| a.state)))
    }

    /// Recovers an interrupted operation in a family. The worker may also have died while one member was
    /// without its clones.
    fn mend_family(&self, interrupt: &Interrupt) -> Result<Outcome, Error> {
        let pid = Pid(self.pid);
        let state = engine::mend_family(pid)?;
        if state == Some(TargetState::Optimized) {
            report_left_alone(&engine::align_family(pid, interrupt)?);
        }
        Ok(Outcome::Toggled(state))
    }

    fn optimize(&self, fresh: bool, interrupt: &Interrupt) -> Result<Outcome, Error> {
        let cold = OptimizeOptions {
            interrupt: interrupt.clone(),
            sampling: self.sampling,
            counting: Some(self.counting).filter(|c| !c.is_zero()),
            memory_cap: Some(self.memory_cap),
            code_cache: self.code_cache,
            prefer_earlier: fresh,
            ..OptimizeOptions::default()
        };
        if self.bad_layout {
            let bad = OptimizeOptions { shuffle: Some(1), counting: None, ..cold };
            return self.optimize_by(&bad).map(|r| r.0);
        }
        if let Some(path) = self.warm.as_deref().filter(|p| p.exists()) {
            match engine::read_profile(path) {
                Ok(profile) => {
                    let warm = OptimizeOptions { profile: Some(Arc::new(profile)), ..cold.clone() };
                    match self.optimize_by(&warm) {
                        Ok((outcome, _)) => return Ok(outcome),
                        // The profile is of other libraries, or of nothing that is loaded. Then the rebuild
                        // goes on without it.
                        Err(Error::ProfileUnfit { .. } | Error::NothingHot { .. }) => {}
                        Err(e) => return Err(e),
                    }
                }
                Err(e) => say(&Line::Warning(format!("a profile cannot be read, and is taken anew: {e}"))),
            }
        }
        let (outcome, counted) = self.optimize_by(&cold)?;
        if counted {
            self.keep_profile();
        }
        Ok(outcome)
    }

    /// Rebuilds a target without the functions whose originals another program has changed, from the profile
    /// in the target. A probe in a function has no effect while its clone runs. Returns `None` if there is no
    /// such function, or if the target cannot be rebuilt without them.
    fn give_way(&self, interrupt: &Interrupt) -> Result<Option<Outcome>, Error> {
        let pid = Pid(self.pid);
        let changed = engine::changed_originals(pid)?;
        let Some(first) = changed.first() else { return Ok(None) };
        say(&Line::Warning(format!(
            "the originals of {} rebuilt functions were changed by another program, {first} among them: the target is rebuilt without them",
            changed.len()
        )));
        let profile = Some(Arc::new(engine::export_profile(pid)?));
        let memory_cap = Some(self.memory_cap);
        let options = OptimizeOptions {
            interrupt: interrupt.clone(),
            profile,
            memory_cap,
            code_cache: self.code_cache,
            ..OptimizeOptions::default()
        };
        match self.optimize_by(&options) {
            Ok((outcome, _)) => Ok(Some(outcome)),
            // No other function is rebuilt, or there is no room for another generation.
            Err(
                e @ (Error::NothingHot { .. }
                | Error::ProfileUnfit { .. }
                | Error::MemoryCap { .. }
                | Error::Splice(_)),
            ) => {
                say(&Line::Warning(format!(
                    "it cannot be rebuilt without them ({e}); after `whet undo {pid}` they take effect"
                )));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn optimize_by(&self, options: &OptimizeOptions) -> Result<(Outcome, bool), Error> {
        let mut last = None;
        let mut show = |p: Progress| {
            let stage = match p {
                Progress::Reading | Progress::Sampling { .. } => State::Profiling,
                Progress::Counting { .. } => State::Counting,
                Progress::Analysing
                | Progress::Shuffling { .. }
                | Progress::LayingOut
                | Progress::Building
                | Progress::Installing => State::Optimizing,
            };
            if last.replace(stage) != Some(stage) {
                say(&Line::Stage(stage));
            }
        };
        let pid = Pid(self.pid);
        let report = match self.family {
            true => {
                let done = engine::optimize_family(pid, options, &mut show)?;
                report_left_alone(&done.members);
                done.parent
            }
            false => engine::optimize(pid, options, &mut show)?,
        };
        let layout = match (&options.profile, report.reused) {
            (Some(_), _) if report.profile.as_ref().is_some_and(|p| p.found_again > 0) => {
                Layout::WarmFromOtherBuild
            }
            (Some(_), _) => Layout::Warm,
            (None, Some(_)) if report.is_full => Layout::EarlierAsFull,
            (None, Some(_)) => Layout::Earlier,
            (None, None) => Layout::New,
        };
        let (generation, coverage) = (report.generation, report.coverage);
        Ok((Outcome::Optimized { generation, coverage, layout }, layout == Layout::New))
    }

    /// Writes the profile for the next start of the same build. A failure does not affect the target.
    fn keep_profile(&self) {
        let Some(path) = &self.profile else { return };
        let written = engine::export_profile(Pid(self.pid))
            .and_then(|profile| engine::write_profile(&profile, engine::ProfileForm::Profile, None))
            .map_err(|e| e.to_string())
            .and_then(|text| write_whole(path, text.text.as_bytes()).map_err(|e| e.to_string()));
        if let Err(why) = written {
            say(&Line::Warning(format!("cannot keep the profile {}: {why}", path.display())));
        }
    }
}
