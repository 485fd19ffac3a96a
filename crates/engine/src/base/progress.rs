//! The current step of a command that takes seconds.

use std::fmt;
use std::time::Duration;

/// The current step.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// Reading modules and functions.
    Reading,
    /// Taking samples.
    Sampling {
        /// Samples so far.
        samples: usize,
        /// The remaining time.
        left: Duration,
    },
    /// Finding functions, their graphs and all that they refer to.
    Analysing,
    /// Building clones in random order.
    Shuffling {
        /// Functions to build.
        functions: usize,
        /// Functions that were left out for lack of room.
        left_out: usize,
    },
    /// Counting edges.
    Counting {
        /// Functions to count.
        functions: usize,
    },
    /// Choosing orders, inlining and loops.
    LayingOut,
    /// Emitting clones and verifying them.
    Building,
    /// Installing clones.
    Installing,
}

impl Progress {
    /// Returns the name of the phase that the step belongs to.
    #[must_use]
    pub fn phase(&self) -> &'static str {
        match self {
            Progress::Reading => "reading",
            Progress::Sampling { .. } => "sampling",
            Progress::Analysing | Progress::Shuffling { .. } => "analysing",
            Progress::Counting { .. } => "counting",
            Progress::LayingOut => "laying_out",
            Progress::Building => "building",
            Progress::Installing => "installing",
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Reading => f.write_str("reading the program"),
            Progress::Sampling { samples, left } => {
                write!(f, "profiling: {samples} samples, {:.0} s to go", left.as_secs_f64().ceil())
            }
            Progress::Counting { functions: 1 } => f.write_str("counting in 1 function"),
            Progress::Shuffling { functions, left_out: 0 } => write!(f, "building {functions} clones"),
            Progress::Shuffling { functions, left_out } => {
                write!(
                    f,
                    "building {functions} clones; {left_out} functions are left out, as there are too many"
                )
            }
            Progress::Counting { functions } => write!(f, "counting in {functions} functions"),
            Progress::Analysing => f.write_str("analysing functions"),
            Progress::LayingOut => f.write_str("laying clones out"),
            Progress::Building => f.write_str("building clones"),
            Progress::Installing => f.write_str("installing"),
        }
    }
}
