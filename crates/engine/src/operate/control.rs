//! `undo` and `redo`: take milliseconds, are exact, and use the journal alone.

use crate::debuggers::perf_map;
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::restore;
use crate::session::state::{StopMs, TargetState, state_of};
use crate::{Error, Target};
use serde::{Deserialize, Serialize};
use splice::{Installed, Policy};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracee::{Pid, Raised};

/// How long an undo without the lock tries again.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// The answer of `undo` and `redo`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToggleAnswer {
    /// The target.
    pub pid: i32,
    /// Its state now.
    pub state: TargetState,
    /// Redirects in the requested state, by kind.
    pub redirects: BTreeMap<String, usize>,
    /// Redirects that were left unchanged.
    pub skipped_redirects: usize,
    /// Stops of the whole target.
    pub stop_ms: StopMs,
    /// The result of writing the perf map. Absent after undo, which keeps the map because threads may still
    /// run in clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perf_map: Option<crate::PerfMap>,
}

/// Removes every redirect of every generation.
///
/// # Errors
/// Returns [`Error::NotInstalled`] for a process that whet never touched, [`Error::UndoIncomplete`] if
/// redirects remain.
pub fn undo(pid: Pid) -> Result<ToggleAnswer, Error> {
    let _favoured = Raised::favoured();
    let (process, lock) = TargetLock::force(pid)?;
    Claim::overrule(&process);
    let begun = Instant::now();
    loop {
        match undo_once(pid, &lock) {
            // Another whet is stopping the target, or has just put something in force.
            Err(e) if !lock.is_held() && passes(&e) && begun.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Undoes once, even while another whet works on the target. After the announcement nothing comes into force,
/// so the redirects that are found then are all there are.
fn undo_once(pid: Pid, lock: &TargetLock) -> Result<ToggleAnswer, Error> {
    let target = Target::open_of_any_version(pid)?;
    let Some(installed) = &target.installed else {
        return Err(if lock.is_held() { Error::NotInstalled { pid } } else { Error::Locked { pid } });
    };
    splice::overrule(&target.process, &installed.anchor)?;
    let target = Target::open_of_any_version(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let answer = locked_toggle(&target, installed, Code::Originals)?;
    if lock.is_held() {
        return Ok(answer);
    }
    // The other whet may have marked removed redirects as in force meanwhile.
    match Target::open_of_any_version(pid)?.installed.as_ref().map(state_of) {
        Some(TargetState::Undone) | None => Ok(answer),
        Some(_) => Err(Error::Changed { pid }),
    }
}

/// Returns whether an error may pass as soon as another whet has ended its stop. A tracer in another pid
/// namespace has no name here; it looks like a missing permission.
fn passes(e: &Error) -> bool {
    use tracee::Error as T;
    let passes =
        |e: &T| matches!(e, T::TracedByWhet { .. } | T::TracerEnding { .. } | T::NoPermission { .. });
    match e {
        Error::Changed { .. } | Error::Splice(splice::Error::NotAlone | splice::Error::WriteLost { .. }) => {
            true
        }
        Error::Tracee(e)
        | Error::Splice(splice::Error::Tracee(e) | splice::Error::Stop(tracee::StopError::Failed(e))) => {
            passes(e)
        }
        _ => false,
    }
}

/// Puts the redirects of the newest generation back.
///
/// # Errors
/// Same as [`undo`]; the answer counts redirects that could not be put back.
pub fn redo(pid: Pid) -> Result<ToggleAnswer, Error> {
    let _favoured = Raised::favoured();
    // The lock comes first: another whet may be about to add a generation.
    let (process, lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    let target = lock.target(pid)?;
    // Generation 0 only counted, so it has nothing to put back.
    let usable = |i: &&Installed| i.generation() > 0;
    let installed = target.installed.as_ref().filter(usable).ok_or(Error::NotInstalled { pid })?;
    let answer = locked_toggle(&target, installed, Code::Clones(installed.generation()))?;
    drop(lock);
    // Other commands need not wait for the perf map.
    Ok(ToggleAnswer { perf_map: Some(perf_map::refresh(pid)), ..answer })
}

/// Recovers the interrupted operation of a whet that died. Counting clones are undone and the generation
/// before is put back. An installation that did not finish is undone. Other targets stay unchanged. Returns
/// the state afterwards, `None` for a process that whet never touched.
///
/// # Errors
/// Same as [`undo`]; returns [`Error::Locked`] if the other whet is still at work.
pub fn mend(pid: Pid) -> Result<Option<TargetState>, Error> {
    let (_, lock) = TargetLock::open(pid)?;
    let target = lock.target(pid)?;
    let Some(installed) = &target.installed else { return Ok(None) };
    splice::recover_pending(&target.process, &installed.anchor).map_err(|e| target.cause(e.into()))?;
    match state_of(installed) {
        TargetState::Counting => restore::restore(&target, installed.generation() > 0)?,
        TargetState::Interrupted => {
            let report = splice::undo(&target.process, installed, &Policy::default())
                .map_err(|e| target.cause(e.into()))?;
            let left = report.foreign.len();
            if left > 0 {
                return Err(Error::UndoIncomplete { pid, left });
            }
        }
        // Running whets report the last two states; journals never have them.
        TargetState::Optimized | TargetState::Undone | TargetState::Profiling | TargetState::Optimizing => {}
    }
    Ok(Target::open(pid)?.installed.as_ref().map(state_of))
}

/// The code that a target executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The originals alone.
    Originals,
    /// The clones of this generation.
    Clones(u32),
}

impl Code {
    /// Returns the state of a target that executes this code.
    fn state(self) -> TargetState {
        match self {
            Code::Originals => TargetState::Undone,
            Code::Clones(_) => TargetState::Optimized,
        }
    }
}

/// Makes a target execute the given code.
pub(crate) fn locked_toggle(
    target: &Target,
    installed: &Installed,
    code: Code,
) -> Result<ToggleAnswer, Error> {
    let (pid, state) = (target.process.pid(), code.state());
    let (process, policy) = (&target.process, Policy::default());
    let report = match code {
        Code::Originals => splice::undo(process, installed, &policy),
        Code::Clones(generation) => splice::put_in_force(process, installed, generation, &policy),
    };
    let report = report
        .and_then(|report| splice::recover_pending(&target.process, &installed.anchor).map(|()| report))
        .map_err(|e| target.cause(e.into()))?;
    let left = report.foreign.len();
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
