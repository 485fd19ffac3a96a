//! Switches one target between the two sides of a comparison, and restores it.

use crate::guard::{Guard, restore};
use crate::{Error, Options, Side};
use engine::{Code, Pid, StopMs, Switch};
use std::time::Duration;
use tracee::Process;

/// The most attempts to switch a target that is busy.
const ATTEMPTS: u32 = 20;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Checks that a process exists and can be opened. Its work is counted from before the first look at it.
///
/// # Errors
/// [`Error::Engine`] with the errors of [`tracee::preflight`] for a process that cannot be opened.
pub fn check(pid: Pid) -> Result<(), Error> {
    match Process::open(pid) {
        Ok(_) => Ok(()),
        Err(e) => Err(engine::Error::from(tracee::preflight(pid).err().unwrap_or(e)).into()),
    }
}

/// A session with one target. It switches the target, and always leaves it as it was found.
#[derive(Debug)]
pub struct Session {
    /// `None` once the session is over.
    switch: Option<Switch>,
    guard: Option<Guard>,
    is_guarded: bool,
    /// The longest stop of each switch, in milliseconds.
    stops: Vec<f64>,
}

impl Session {
    /// Opens a target. Changes nothing in the target.
    pub fn open(pid: Pid, options: &Options) -> Result<Self, Error> {
        let switch = Some(Switch::open(pid)?);
        Ok(Self { switch, guard: None, is_guarded: options.guarded, stops: Vec::new() })
    }

    /// Returns the switch, or an error once the session is over.
    pub fn switch(&self) -> Result<&Switch, Error> {
        self.switch
            .as_ref()
            .ok_or_else(|| engine::Error::Build("a comparison that is over".to_owned()).into())
    }

    /// Returns the code that the target executes on a side.
    fn code_of(switch: &Switch, side: Side, options: &Options) -> Code {
        match (options.between, side) {
            (Some([first, _]), Side::Without) => Code::Clones(first),
            (Some([_, second]), Side::With) => Code::Clones(second),
            (None, Side::With) => Code::Clones(switch.generation()),
            (None, Side::Without) => Code::Originals,
        }
    }

    /// Switches the target to a side, unless it is there already. Before the first change from the code that was found,
    /// starts the guard, if the options require one.
    pub fn go(&mut self, side: Side, options: &Options) -> Result<(), Error> {
        let Some(switch) = self.switch.as_mut() else { return Ok(()) };
        let code = Self::code_of(switch, side, options);
        let leaves_what_was_found = switch.found_code() != code;
        if leaves_what_was_found && self.is_guarded && self.guard.is_none() {
            self.guard = Some(Guard::start(switch)?);
        }
        for attempt in 1.. {
            match switch.to(code) {
                Ok(None) => return Ok(()),
                Ok(Some(answer)) => {
                    self.stops.push(answer.stop_ms.max);
                    return Ok(());
                }
                Err(e @ engine::Error::Changed { .. }) => return Err(e.into()),
                Err(e) if e.exit_code() != engine::ExitCode::Busy || attempt == ATTEMPTS => {
                    return Err(e.into());
                }
                Err(_) => crate::gauge::sleep(PAUSE, &options.interrupt)?,
            }
        }
        Ok(())
    }

    /// Returns the number of switches, and how long they stopped the target.
    pub fn stops(&self) -> (u32, StopMs) {
        let stops: Vec<Duration> = self.stops.iter().map(|ms| Duration::from_secs_f64(ms / 1e3)).collect();
        (u32::try_from(stops.len()).unwrap_or(u32::MAX), StopMs::of(&stops))
    }

    /// Ends the session and restores the target. If the target has ended, returns the outcome's error,
    /// because it has the same cause as the failed restore. Otherwise returns the error of the restore, if
    /// there is one, before that of the outcome.
    pub fn end<T>(mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        let restored = self.finish();
        match (outcome, restored) {
            (Err(e @ Error::Engine(engine::Error::Tracee(tracee::Error::Gone(_)))), _) => Err(e),
            (_, Err(e)) => Err(e),
            (outcome, Ok(())) => outcome,
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        let Some(mut switch) = self.switch.take() else { return Ok(()) };
        let restored = restore(&mut switch);
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        switch.close();
        restored
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The session is still open here only after a panic.
        let _ = self.finish();
    }
}
