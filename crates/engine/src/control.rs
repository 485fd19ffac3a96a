//! `undo` and `redo`: milliseconds, exact, by the journal alone.

use crate::claim::Claim;
use crate::lock::TargetLock;
use crate::report::{StopMs, TargetState, ToggleAnswer};
use crate::status::state_of;
use crate::{Error, Target, perf_map, restore};
use splice::{Installed, Policy};
use tracee::{Pid, Raised};

/// Takes every redirect of every generation away.
///
/// # Errors
/// [`Error::NotInstalled`] for a process whet never touched, [`Error::UndoIncomplete`] where redirects are left.
pub fn undo(pid: Pid) -> Result<ToggleAnswer, Error> {
    toggle(pid, TargetState::Undone)
}

/// Puts the redirects of the newest generation back.
///
/// # Errors
/// As [`undo`]; redirects that could not be put back are counted in the answer.
pub fn redo(pid: Pid) -> Result<ToggleAnswer, Error> {
    toggle(pid, TargetState::Optimized)
}

/// Brings a target back in order in which a whet died: clones that count are taken out and the generation before put back; an
/// installation that did not come to its end is taken away. What is in order is left as it is. The state then; `None` for
/// a process whet never touched.
///
/// # Errors
/// As [`undo`]; [`Error::Locked`] where the other whet is at work yet.
pub fn mend(pid: Pid) -> Result<Option<TargetState>, Error> {
    let (_, _lock) = TargetLock::open(pid)?;
    let target = Target::open(pid)?;
    let Some(installed) = &target.installed else { return Ok(None) };
    splice::settle(&target.process, &installed.anchor).map_err(|e| target.cause(e.into()))?;
    match state_of(installed) {
        TargetState::Counting => restore::restore(pid, installed.generation() > 0)?,
        TargetState::Interrupted => {
            let report = splice::undo(&target.process, installed, &Policy::default())
                .map_err(|e| target.cause(e.into()))?;
            let left = report.foreign.len() + report.in_use.len();
            if left > 0 {
                return Err(Error::UndoIncomplete { pid, left });
            }
        }
        // The latter two are what whets say of themselves, not journals.
        TargetState::Optimized | TargetState::Undone | TargetState::Profiling | TargetState::Optimizing => {}
    }
    Ok(Target::open(pid)?.installed.as_ref().map(state_of))
}

fn toggle(pid: Pid, state: TargetState) -> Result<ToggleAnswer, Error> {
    let _favoured = Raised::favoured();
    // The lock comes first: another whet may be about to add a generation.
    let (process, lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    let target = Target::open(pid)?;
    // What only counted is nothing to put back.
    let usable = |i: &&Installed| state == TargetState::Undone || i.generation() > 0;
    let installed = target.installed.as_ref().filter(usable).ok_or(Error::NotInstalled { pid })?;
    let answer = locked_toggle(&target, installed, state)?;
    drop(lock);
    // Others need not wait for it.
    let perf_map = (state == TargetState::Optimized).then(|| perf_map::refresh(pid));
    Ok(ToggleAnswer { perf_map, ..answer })
}

/// Undoes or redoes a target whose lock is held.
pub(crate) fn locked_toggle(
    target: &Target,
    installed: &Installed,
    state: TargetState,
) -> Result<ToggleAnswer, Error> {
    let pid = target.process.pid();
    let act = if state == TargetState::Undone { splice::undo } else { splice::redo };
    let report = act(&target.process, installed, &Policy::default())
        .and_then(|report| splice::settle(&target.process, &installed.anchor).map(|()| report))
        .map_err(|e| target.cause(e.into()))?;
    let left = report.foreign.len() + report.in_use.len();
    if state == TargetState::Undone && left > 0 {
        return Err(Error::UndoIncomplete { pid, left });
    }
    Ok(ToggleAnswer {
        pid: pid.0,
        state,
        redirects: report.done.iter().map(|(k, &n)| (k.name().to_owned(), n)).collect(),
        skipped_redirects: left,
        stop_ms: StopMs::of(&report.stops),
        perf_map: None,
    })
}
