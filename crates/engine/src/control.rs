//! `undo` and `redo`: milliseconds, exact, by the journal alone.

use crate::lock::TargetLock;
use crate::report::{StopMs, TargetState, ToggleAnswer};
use crate::{Error, Target, perf_map};
use splice::{Installed, Policy, ToggleReport};
use tracee::{Pid, Process};

/// Takes every redirect of every generation away.
///
/// # Errors
/// [`Error::NotInstalled`] for a process whet never touched, [`Error::UndoIncomplete`] where redirects are left.
pub fn undo(pid: Pid) -> Result<ToggleAnswer, Error> {
    let (answer, left) = toggle(pid, TargetState::Undone, splice::undo)?;
    if left == 0 { Ok(answer) } else { Err(Error::UndoIncomplete { pid, left }) }
}

/// Puts the redirects of the newest generation back.
///
/// # Errors
/// As [`undo`]; redirects that could not be put back are counted in the answer.
pub fn redo(pid: Pid) -> Result<ToggleAnswer, Error> {
    toggle(pid, TargetState::Optimized, splice::redo).map(|(answer, _)| answer)
}

type Act = fn(&Process, &Installed, &Policy) -> Result<ToggleReport, splice::Error>;

fn toggle(pid: Pid, state: TargetState, act: Act) -> Result<(ToggleAnswer, usize), Error> {
    tracee::preflight(pid)?;
    // The lock comes first: another whet may be about to add a generation.
    let lock = TargetLock::take(&Process::open(pid)?)?;
    let target = Target::open(pid)?;
    // What only counted is nothing to put back.
    let usable = |i: &&Installed| state == TargetState::Undone || i.generation() > 0;
    let installed = target.installed.as_ref().filter(usable).ok_or(Error::NotInstalled { pid })?;
    let report = act(&target.process, installed, &Policy::default())
        .and_then(|report| splice::settle(&target.process, &installed.anchor).map(|()| report))
        .map_err(|e| target.cause(e.into()))?;
    drop(lock);
    let left = report.foreign.len() + report.in_use.len();
    let answer = ToggleAnswer {
        pid: pid.0,
        state,
        redirects: report.done.iter().map(|(k, &n)| (k.name().to_owned(), n)).collect(),
        skipped_redirects: left,
        stop_ms: StopMs::of(&report.stops),
        perf_map: (state == TargetState::Optimized).then(|| perf_map::refresh(pid)),
    };
    Ok((answer, left))
}
