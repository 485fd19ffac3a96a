//! Switches a target many times for a comparison: between its originals and its clones, or between two
//! generations of clones. Works as `undo` and `redo` do, but only while no other command changes the target. `whet undo` by an operator during a comparison is respected.

use crate::operate::control::{self, Code, ToggleAnswer};
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::state::{TargetState, state_of};
use crate::{Error, Target};
use splice::{Cache, Installed, State};
use tracee::{Pid, Process};

/// An optimized target that is switched back and forth. Undo, redo and optimize by another command end this.
/// Every later switch then returns [`Error::Changed`] and leaves the target unchanged.
#[derive(Debug)]
pub struct Switch {
    process: Process,
    claim: Claim,
    /// The newest generation.
    generation: u32,
    found: TargetState,
    /// The number of operator's undos when the target was opened. `None` for a stand-in, which accepts any
    /// number.
    undos: Option<u64>,
    /// The code that it executes now; `None` if unknown, as after a failed switch.
    now: Option<Code>,
}

impl Switch {
    /// Opens a target and creates the claim; changes nothing in the target.
    ///
    /// # Errors
    /// Returns [`Error::NotInstalled`] if there is nothing to switch: the target was never optimized, or its
    /// installation did not finish. Returns [`Error::Locked`] during another comparison.
    pub fn open(pid: Pid) -> Result<Self, Error> {
        let (process, lock) = TargetLock::open(pid)?;
        let mut claim = Claim::stake(&process)?;
        let Target { installed, .. } = lock.target(pid)?;
        let undos = installed.as_ref().map(|i| i.anchor.undos);
        let installed = installed.ok_or(Error::NotInstalled { pid })?;
        let (generation, found) = (installed.generation(), state_of(&installed));
        if generation == 0 || !matches!(found, TargetState::Optimized | TargetState::Undone) {
            return Err(Error::NotInstalled { pid });
        }
        claim.show_state(found);
        let mut switch = Self { process, claim, generation, found, undos, now: None };
        // A comparison that died may have left an older generation in force.
        let is_applied = |c: &Cache| c.header.state == State::Applied;
        let is_known = found == TargetState::Undone || installed.of(generation).any(is_applied);
        switch.now = is_known.then(|| switch.found_code());
        Ok(switch)
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

    /// Returns the target; its handles never denote another process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the state in which it was found.
    #[must_use]
    pub fn found(&self) -> TargetState {
        self.found
    }

    /// Returns the newest generation, which is in force afterwards if clones were in force before.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns whether no other command has changed the target or is about to.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.claim.stands()
    }

    /// Returns the code that the target executed when it was opened.
    #[must_use]
    pub fn found_code(&self) -> Code {
        match self.found {
            TargetState::Optimized => Code::Clones(self.generation),
            _ => Code::Originals,
        }
    }

    /// Makes the target execute the given code. Returns `None` if it does already.
    ///
    /// # Errors
    /// Returns the errors of `undo` and `redo`, [`Error::Changed`] if another command has changed the target,
    /// and [`Error::NoSuchGeneration`].
    pub fn to(&mut self, code: Code) -> Result<Option<ToggleAnswer>, Error> {
        if self.now == Some(code) {
            return Ok(None);
        }
        self.go(code).map(Some).map_err(|e| match e {
            Error::Tracee(e) => self.process.cause(e).into(),
            e => e,
        })
    }

    fn go(&mut self, code: Code) -> Result<ToggleAnswer, Error> {
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
        if let Code::Clones(generation) = code {
            let known: Vec<u32> = installed.whole_generations().into_iter().map(|(g, _)| g).collect();
            if !known.contains(&generation) {
                return Err(Error::NoSuchGeneration { pid, generation, known });
            }
        }
        self.now = None;
        let answer = control::locked_toggle(&target, installed, code)?;
        self.now = Some(code);
        Ok(answer)
    }

    /// Switches the target back to the state in which it was found.
    ///
    /// # Errors
    /// Same as [`Switch::to`]; the call can be repeated.
    pub fn restore(&mut self) -> Result<(), Error> {
        self.to(self.found_code()).map(drop)
    }

    /// Ends the claim. The target must be in the state in which it was found.
    pub fn close(self) {
        self.claim.give_up();
    }
}
