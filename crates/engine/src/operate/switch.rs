//! Between with and without, many times, for a comparison: as `undo` and `redo`, but only while nobody else has a hand in
//! it. An operator who says `whet undo` in the midst of a comparison is not overruled.

use crate::operate::control::{self, ToggleAnswer};
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::state::{TargetState, state_of};
use crate::{Error, Target};
use splice::Installed;
use tracee::{Pid, Process};

/// One optimized target that is switched back and forth. Undo, redo and optimize by anybody else end that: every later
/// switch then says [`Error::Changed`], and the target is left as they have it.
#[derive(Debug)]
pub struct Switch {
    process: Process,
    claim: Claim,
    generation: u32,
    found: TargetState,
    /// How often it had been undone by hand then; one that stands in for another takes it as it is.
    undos: Option<u64>,
    /// None after a switch that was broken off.
    now: Option<TargetState>,
}

impl Switch {
    /// Looks at a target and lays claim to it; changes nothing in it.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] where there is nothing to switch: never optimized, or an installation broken off.
    /// [`Error::Locked`] where another comparison is being made.
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

    /// For a process that is to restore the target after the death of the one that opened it: stands in for that one.
    ///
    /// # Errors
    /// [`Error::Changed`] where no comparison is being made.
    pub fn stand_in(pid: Pid, generation: u32, found: TargetState) -> Result<Self, Error> {
        let process = Process::open(pid)?;
        let claim = Claim::witness(&process)?;
        Ok(Self { process, claim, generation, found, undos: None, now: None })
    }

    /// The target, held by handles that cannot come to mean another process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The state in which it was found.
    #[must_use]
    pub fn found(&self) -> TargetState {
        self.found
    }

    /// The generation that is switched.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether nobody else has had a hand in it, or is about to.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.claim.stands()
    }

    /// Brings the target to a state; `None` where it is in that state by our doing already.
    ///
    /// # Errors
    /// Those of `undo` and `redo`; [`Error::Changed`] where somebody else has changed it.
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
            // They have only just begun.
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

    /// Brings the target back to the state in which it was found, and ends the claim.
    ///
    /// # Errors
    /// As [`Switch::to`]; it can be tried again.
    pub fn restore(&mut self) -> Result<(), Error> {
        self.to(self.found).map(drop)
    }

    /// Ends the claim, as the target is again as it was found.
    pub fn close(self) {
        self.claim.give_up();
    }
}
