//! The state of a target, and how long it was stopped.

use serde::{Deserialize, Serialize};
use splice::{Installed, State};

/// A target's state, in the words of the JSON interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// Redirects are in force.
    Optimized,
    /// Counting clones are in force. If no whet is at work on the target, one died there; undo removes them.
    Counting,
    /// Redirects were removed.
    Undone,
    /// An installation began and did not finish.
    Interrupted,
    /// A whet reads the target and samples it. Nothing is in force yet.
    Profiling,
    /// A whet builds clones for the target, or installs them.
    Optimizing,
}

impl TargetState {
    /// Returns the word used in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            TargetState::Optimized => "optimized",
            TargetState::Counting => "counting",
            TargetState::Undone => "undone",
            TargetState::Interrupted => "interrupted",
            TargetState::Profiling => "profiling",
            TargetState::Optimizing => "optimizing",
        }
    }
}

/// How long the target was stopped, over the stops of one command. Milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StopMs {
    /// The median.
    pub median: f64,
    /// The longest stop.
    pub max: f64,
}

impl StopMs {
    /// Summarizes durations; zeros for none.
    #[must_use]
    pub fn of(stops: &[std::time::Duration]) -> Self {
        Self::of_ms(stops.iter().map(|d| d.as_secs_f64() * 1e3).collect())
    }

    /// Summarizes milliseconds; zeros for none.
    pub(crate) fn of_ms(mut ms: Vec<f64>) -> Self {
        ms.sort_by(f64::total_cmp);
        let round = |v: f64| (v * 1e3).round() / 1e3;
        let median = match ms.len() {
            0 => 0.0,
            n if n % 2 == 1 => ms[n / 2],
            n => f64::midpoint(ms[n / 2 - 1], ms[n / 2]),
        };
        Self { median: round(median), max: round(ms.last().copied().unwrap_or(0.0)) }
    }
}

/// Returns the JSON interface's word for the journal's state.
#[must_use]
pub fn state_of(installed: &Installed) -> TargetState {
    if installed.is_counting() {
        return TargetState::Counting;
    }
    match installed.state() {
        State::Applied => TargetState::Optimized,
        State::Undone => TargetState::Undone,
        State::Prepared => TargetState::Interrupted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stops_are_summarized() {
        let d = |ms| Duration::from_millis(ms);
        assert_eq!(StopMs::of(&[]), StopMs { median: 0.0, max: 0.0 });
        assert_eq!(StopMs::of(&[d(3), d(1), d(2)]), StopMs { median: 2.0, max: 3.0 });
        assert_eq!(StopMs::of(&[d(4), d(1)]), StopMs { median: 2.5, max: 4.0 });
    }
}
