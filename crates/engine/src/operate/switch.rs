//! Switches a target on and off many times, for a comparison. Works as `undo` and `redo` do, but only while
//! no other command changes the target. `whet undo` by an operator during a comparison is respected.

use crate::operate::control::{self, ToggleAnswer};
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::state::{TargetState, state_of};
use crate::{Error, Target};
use splice::Installed;
use tracee::{Pid, Process};

/// An optimized target that is switched back and forth. Undo, redo and optimize by another command end this.
/// Every later switch then returns [`Error::Changed`] and leaves the target unchanged.
#[derive(Debug)]
pub struct Switch {
    process: Process,
    claim: Claim,
    generation: u32,
    found: TargetState,
    /// The number of operator's undos when the target was opened. `None` for a stand-in, which accepts any
    /// number.
    undos: Option<u64>,
    /// The current state; `None` after a failed switch.
    now: Option<TargetState>,
}

impl Switch {
    /// Opens a target and creates the claim; changes nothing in the target.
    ///
    /// # Errors
    /// Returns [`Error::NotInstalled`] if there is nothing to switch: the target was never optimized, or its
    /// installation did not finish. Returns [`Error::Locked`] during another comparison.
    pub fn open(pid: Pid) -> Result<Self, Error> {
        let (process, _lock) = TargetLock::open(pid)?;
        let mut claim = Claim::stake(&process)?;
        let Target { installed, .. } = Target::open(pid)?;
        let undos = installed.as_ref().map(|i| i.anchor.undos);
        let known = installed.as_ref().map(|i| (i.generation(), state_of(i)));
        match known {
            Some((generation, found @ (TargetState::Optimized | TargetState::Undone))) if generation > 0 => {
                claim.say(found);
                Ok(Self { process, claim, generation, found, undos, now: Some(found) })
            }
            _ => Err(Error::NotInstalled { pid }),
        }
    }

    /// Stands in for the process that opened the switch, to restore the target after that process's death.
    ///
    /// # Errors
    /// Returns [`Error::Changed`] if there is no comparison.
    pub fn stand_in(pid: Pid, generation: u32, found: TargetState) -> Result<Self, Error> {
        let process = Process::open(pid)?;
        let claim = Claim::witness(&process)?;
        Ok(Self { process, claim, generation, found, undos: None, now: None })
    }

    /// Returns the target; its handles never come to denote another process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the state in which it was found.
    #[must_use]
    pub fn found(&self) -> TargetState {
        self.found
    }

    /// Returns the generation that is switched.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether no other command has changed the target or is about to.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.claim.stands()
    }

    /// Switches the target to a state. Returns `None` if this switch has brought it to that state already.
    ///
    /// # Errors
    /// Returns the errors of `undo` and `redo`, and [`Error::Changed`] if another command has changed the
    /// target.
    pub fn to(&mut self, state: TargetState) -> Result<Option<ToggleAnswer>, Error> {
        if self.now == Some(state) {
            return Ok(None);
        }
        self.go(state).map(Some).map_err(|e| match e {
            Error::Tracee(e) => self.process.cause(e).into(),
            e => e,
        })
    }

    fn go(&mut self, state: TargetState) -> Result<ToggleAnswer, Error> {
        let pid = self.process.pid();
        if !self.process.is_alive() {
            return Err(tracee::Error::Gone(pid).into());
        }
        if !self.stands() {
            return Err(Error::Changed { pid });
        }
        let _lock = TargetLock::take(&self.process).map_err(|e| match e {
            // The other command has only just begun.
            Error::Locked { .. } if !self.stands() => Error::Changed { pid },
            e => e,
        })?;
        let target = Target::open(pid)?;
        let overruled = |i: &Installed| self.undos.is_some_and(|undos| undos != i.anchor.undos);
        let is_ours = |i: &&Installed| i.generation() == self.generation && !i.is_counting() && !overruled(i);
        let installed = target.installed.as_ref().filter(is_ours).filter(|_| self.stands());
        let installed = installed.ok_or(Error::Changed { pid })?;
        self.now = None;
        let answer = control::locked_toggle(&target, installed, state)?;
        self.now = Some(state);
        Ok(answer)
    }

    /// Switches the target back to the state in which it was found.
    ///
    /// # Errors
    /// Same as [`Switch::to`]; the call can be repeated.
    pub fn restore(&mut self) -> Result<(), Error> {
        self.to(self.found).map(drop)
    }

    /// Ends the claim. The target must be in the state in which it was found.
    pub fn close(self) {
        self.claim.give_up();
    }
}
