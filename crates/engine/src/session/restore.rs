//! Restores a target to its state before work on it failed.

use crate::{Error, Target};
use splice::{Policy, State};
use tracee::Pid;

/// Returns whether an earlier generation is in force.
pub(crate) fn is_optimized(target: &Target) -> bool {
    target.installed.as_ref().is_some_and(|i| i.generation() > 0 && i.state() == State::Applied)
}

/// Undoes counting clones, puts the earlier generation back if it was in force when the target was opened, and
/// recovers interrupted operations. After an operator's undo that has begun since, neither this work nor the earlier
/// generation may be in force: then all is undone.
///
/// # Errors
/// Returns the errors of undo and redo, after more attempts than usual.
pub(crate) fn restore(target: &Target, was_optimized: bool) -> Result<(), Error> {
    match put_back(target, was_optimized) {
        Err(Error::Changed { .. } | Error::Splice(splice::Error::NotAlone)) => take_out(target.process.pid()),
        outcome => outcome,
    }
}

fn put_back(target: &Target, was_optimized: bool) -> Result<(), Error> {
    let policy = Policy { attempts: 100, ..Policy::default() };
    let target = target.again()?;
    let Some(installed) = &target.installed else { return Ok(()) };
    if installed.is_counting() {
        splice::undo(&target.process, installed, &policy)?;
    }
    let target = target.again()?;
    if let Some(installed) = target.installed.as_ref().filter(|_| was_optimized && !is_optimized(&target)) {
        splice::redo(&target.process, installed, &policy)?;
    }
    if let Some(installed) = &target.installed {
        splice::recover_pending(&target.process, &installed.anchor)?;
    }
    Ok(())
}

/// Ends counting that a whet left behind when it died.
///
/// # Errors
/// Returns the errors of undo.
pub(crate) fn end_counting(pid: Pid) -> Result<(), Error> {
    let target = Target::open(pid)?;
    match target.installed.as_ref().filter(|i| i.is_counting()) {
        Some(installed) => {
            let undone = splice::undo(&target.process, installed, &Policy::default());
            undone.map(|_| ()).map_err(|e| target.cause(e.into()))
        }
        None => Ok(()),
    }
}

/// Undoes the changes of this work, after an undo by another command that did not include them.
fn take_out(pid: Pid) -> Result<(), Error> {
    let target = Target::open(pid)?;
    let Some(installed) = &target.installed else { return Ok(()) };
    if installed.is_counting() || installed.state() != State::Undone {
        splice::undo(&target.process, installed, &Policy::default())?;
    }
    Ok(splice::recover_pending(&target.process, &installed.anchor)?)
}

/// Returns the outcome of work on a target. If the work failed, restores the target first.
///
/// # Errors
/// Returns the error of the work, or the error of restoring the target, which is more serious.
pub(crate) fn or_restore<R>(
    target: &Target,
    was_optimized: bool,
    outcome: Result<R, Error>,
) -> Result<R, Error> {
    let Err(e) = outcome else { return outcome };
    Err(target.cause(restore(target, was_optimized).err().unwrap_or(e)))
}
