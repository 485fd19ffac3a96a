//! One target between its two sides, and the way back.

use crate::guard::{Guard, restore};
use crate::{Error, Options, Side};
use engine::{Pid, StopMs, Switch, TargetState};
use std::time::Duration;

/// Attempts to stop a target that is busy, and the pause between them.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// Switches a target; leaves it as it was found, whatever happens.
#[derive(Debug)]
pub struct Session {
    /// None once it is over.
    switch: Option<Switch>,
    guard: Option<Guard>,
    is_guarded: bool,
    /// How long each switch stopped the target, in milliseconds.
    stops: Vec<f64>,
}

impl Session {
    /// Takes a target on; changes nothing in it.
    pub fn open(pid: Pid, options: &Options) -> Result<Self, Error> {
        let switch = Some(Switch::open(pid)?);
        Ok(Self { switch, guard: None, is_guarded: options.guarded, stops: Vec::new() })
    }

    /// The switch; there is one until the session is over.
    pub fn switch(&self) -> Result<&Switch, Error> {
        self.switch
            .as_ref()
            .ok_or_else(|| engine::Error::Build("a comparison that is over".to_owned()).into())
    }

    /// The target's state of a side.
    pub fn state_of(side: Side) -> TargetState {
        match side {
            Side::With => TargetState::Optimized,
            Side::Without => TargetState::Undone,
        }
    }

    /// Brings the target to a side, if it is not there already. The first time it needs to, it sees to the way back.
    pub fn go(&mut self, side: Side, options: &Options) -> Result<(), Error> {
        let Some(switch) = self.switch.as_mut() else { return Ok(()) };
        let is_first = self.stops.is_empty() && switch.found() != Self::state_of(side);
        if is_first && self.is_guarded && self.guard.is_none() {
            self.guard = Some(Guard::start(switch)?);
        }
        for attempt in 1.. {
            match switch.to(Self::state_of(side)) {
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

    /// How often the target was switched, and how long each switch stopped it.
    pub fn stops(&self) -> (u32, StopMs) {
        let stops: Vec<Duration> = self.stops.iter().map(|ms| Duration::from_secs_f64(ms / 1e3)).collect();
        (u32::try_from(stops.len()).unwrap_or(u32::MAX), StopMs::of(&stops))
    }

    /// Ends it. An outcome that failed is worth more than a way back that did, where the cause is the same: a target that
    /// has ended.
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
        // Only a panic comes here with something left to do.
        let _ = self.finish();
    }
}
