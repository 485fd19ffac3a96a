//! How a comparison is made.

use engine::Interrupt;
use std::time::Duration;

/// How a paired comparison is made. The default takes about 80 seconds.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many pairs of windows, at least 2. 20 find a difference of 10% on a quiet machine.
    pub rounds: u32,
    /// The length of one window, longer than nothing.
    pub window: Duration,
    /// Waited after each switch before a window begins, so that caches and predictors have met the new code.
    pub settle: Duration,
    /// Decides the order within pairs and the draws of the intervals: the same seed and windows, the same answer. Drawn
    /// where it is not given.
    pub seed: Option<u64>,
    /// Whether a process of its own restores the target should this one be killed in the midst of it. It is this
    /// process's program, called with [`crate::GUARD_COMMAND`]: its `main` must then call [`crate::guard()`].
    pub guarded: bool,
    /// A wish that it end soon; the target is restored then.
    pub interrupt: Interrupt,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 150,
            window: Duration::from_millis(200),
            settle: Duration::from_millis(30),
            seed: None,
            guarded: true,
            interrupt: Interrupt::default(),
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Whether there is any load at all.
    Looking,
    /// This window of so many.
    Window {
        /// From 1.
        done: u32,
        /// How many there will be.
        of: u32,
    },
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Progress::Looking => write!(f, "looking for load"),
            Progress::Window { done, of } => write!(f, "comparing: window {done} of {of}"),
        }
    }
}
