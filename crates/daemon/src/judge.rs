//! Compares a target's work with clones and without, in short windows: does a rebuild gain?

use crate::states::{Outcome, Verdict};
use engine::{Error, ExitCode, Failure, Interrupt, Pid};
use measure::{Estimate, Options, Report, SystemCalls};
use std::time::Duration;

/// The length of one window.
const WINDOW: Duration = Duration::from_millis(150);
/// The time that a pair takes beyond its windows: two switches with the pauses after them.
const BESIDE: Duration = Duration::from_millis(100);
/// How many members of a family are tried: they may end while they are compared.
const TRIES: usize = 3;
/// The fewest pairs that can show anything.
const FEWEST: u32 = 8;

/// Returns the number of pairs of windows in a comparison.
fn rounds(time: Duration) -> u32 {
    let pair = (2 * WINDOW + BESIDE).as_millis();
    u32::try_from(time.as_millis() / pair).unwrap_or(u32::MAX).max(FEWEST)
}

/// Returns about how often a comparison stops its target: twice for each pair of windows.
pub(crate) fn stops(time: Duration) -> u32 {
    rounds(time).saturating_mul(2)
}

/// Compares work by the number of system calls, for about `time`. Afterwards the target is as it was found.
/// Of a family, the busiest process is compared: its clones are those of all members.
///
/// # Errors
/// Errors of the engine. If work cannot be counted, the outcome says so.
pub(crate) fn judge(pid: Pid, family: bool, time: Duration, interrupt: &Interrupt) -> Result<Outcome, Error> {
    if !family {
        return judge_one(pid, time, interrupt);
    }
    let mut last = String::new();
    for _ in 0..TRIES {
        let member = match engine::busiest_member(pid) {
            Err(e @ Error::NothingHot { .. }) => return Ok(Outcome::Judged(None, e.to_string())),
            member => member?,
        };
        match judge_one(member, time, interrupt) {
            // The member has ended; the family lives on.
            Err(e) if member != pid && e.exit_code() == ExitCode::Gone => last = e.to_string(),
            // Its clones are not in force any more, or it cannot be switched.
            Err(e @ Error::NotInstalled { .. }) if member != pid => last = e.to_string(),
            outcome => return outcome,
        }
    }
    Ok(Outcome::Judged(None, last))
}

fn judge_one(pid: Pid, time: Duration, interrupt: &Interrupt) -> Result<Outcome, Error> {
    let rounds = rounds(time);
    let untold = |e: &dyn ToString| Ok(Outcome::Judged(None, e.to_string()));
    let mut work = match SystemCalls::open(pid) {
        Ok(work) => work,
        Err(e) => return untold(&e),
    };
    let options = Options { rounds, window: WINDOW, interrupt: interrupt.clone(), ..Options::default() };
    match measure::paired(pid, &options, &mut work, &mut |_| {}) {
        Ok(report) => Ok(outcome(&report)),
        // For example, another command undid, redid or optimized the target meanwhile. The other command's
        // change stands.
        Err(measure::Error::Engine(e)) => Err(e),
        // The target may be without clones. Then they are put back.
        Err(e @ measure::Error::NotRestored { .. }) => {
            let code = "not_restored".to_owned();
            Ok(Outcome::Failed { failure: Failure::Other, code, message: e.to_string() })
        }
        Err(e) => untold(&e),
    }
}

/// Returns the outcome of a report. It uses user CPU time if the kernel reports this time, because a layout
/// can change nothing else.
fn outcome(report: &Report) -> Outcome {
    let figure = report.user_cpu_factor.or(report.combined_improvement_factor);
    match figure.filter(|_| report.can_tell) {
        Some(Estimate { value, low, high }) => {
            Outcome::Judged(Some(Verdict { factor: value, low, high }), String::new())
        }
        None => {
            let why = report.warnings.first().map_or("the figures allow no conclusion", |w| w.text.as_str());
            Outcome::Judged(None, why.to_owned())
        }
    }
}
