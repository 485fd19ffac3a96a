//! Does a rebuild pay: the target's work with and without, in short windows.

use crate::machine::{Outcome, Verdict};
use engine::{Error, Interrupt, Pid};
use measure::{Estimate, Options, Report, SystemCalls};
use std::time::Duration;

/// The length of one window.
const WINDOW: Duration = Duration::from_millis(150);
/// What a pair of windows takes beyond its windows: two switches with what they wait for.
const BESIDE: Duration = Duration::from_millis(100);
/// Pairs that tell anything at all.
const FEWEST: u32 = 8;

/// Compares by system calls, for about `time`. The target is as it was found then.
///
/// # Errors
/// Those of the engine; where work could not be counted the outcome says so.
pub(crate) fn judge(pid: Pid, time: Duration, interrupt: &Interrupt) -> Result<Outcome, Error> {
    let pair = (2 * WINDOW + BESIDE).as_millis();
    let rounds = u32::try_from(time.as_millis() / pair).unwrap_or(u32::MAX).max(FEWEST);
    let untold = |e: &dyn ToString| Ok(Outcome::Judged(None, e.to_string()));
    let mut work = match SystemCalls::open(pid) {
        Ok(work) => work,
        Err(e) => return untold(&e),
    };
    let options = Options { rounds, window: WINDOW, interrupt: interrupt.clone(), ..Options::default() };
    match measure::paired(pid, &options, &mut work, &mut |_| {}) {
        Ok(report) => Ok(told(&report)),
        // Somebody undid, redid or optimized it meanwhile: their wish counts.
        Err(measure::Error::Engine(e)) => Err(e),
        // It may be without: it is put back then.
        Err(e @ measure::Error::NotRestored { .. }) => Ok(Outcome::Failed {
            code: e.code().to_owned(),
            exit: e.exit_code() as u8,
            message: e.to_string(),
        }),
        Err(e) => untold(&e),
    }
}

/// What a report says. By user CPU time where the kernel tells it apart, since that is what a layout can change.
fn told(report: &Report) -> Outcome {
    let figure = report.user_cpu_factor.or(report.combined_improvement_factor);
    match figure.filter(|_| report.can_tell) {
        Some(Estimate { value, low, high }) => {
            Outcome::Judged(Some(Verdict { factor: value, low, high }), String::new())
        }
        None => {
            let why = report.warnings.first().map_or("the figures tell nothing", |w| w.text.as_str());
            Outcome::Judged(None, why.to_owned())
        }
    }
}
