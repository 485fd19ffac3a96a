//! The options of a comparison.

use engine::Interrupt;
use std::time::Duration;

/// The options of a comparison. With the defaults, a paired comparison takes about 80 seconds.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of pairs of windows. Fewer than 5 give no figures; 20 show a difference of 10% on a quiet
    /// machine.
    pub rounds: u32,
    /// The length of one window; longer than zero.
    pub window: Duration,
    /// The pause after each switch before a window begins, so that caches and predictors adapt to the new
    /// code.
    pub pause: Duration,
    /// Compares two generations of clones instead of clones and originals. The first is the side "without",
    /// the second the side "with".
    pub between: Option<[u32; 2]>,
    /// The seed of the order within pairs and of the resampling for intervals. The same seed and windows give
    /// the same result. If this is `None`, a seed is drawn.
    pub seed: Option<u64>,
    /// Whether a second process restores the target if this process is killed during the comparison. The
    /// second process runs the same program, called with [`crate::GUARD_COMMAND`], so the program's `main`
    /// must then call [`crate::guard()`].
    pub guarded: bool,
    /// The user's request to end soon. The target is then restored.
    pub interrupt: Interrupt,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 150,
            window: Duration::from_millis(200),
            pause: Duration::from_millis(30),
            between: None,
            seed: None,
            guarded: true,
            interrupt: Interrupt::default(),
        }
    }
}

/// The progress of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The comparison checks whether there is any load.
    Looking,
    /// A window has ended.
    Window {
        /// The number of windows that have ended, from 1.
        done: u32,
        /// The number of all windows.
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
