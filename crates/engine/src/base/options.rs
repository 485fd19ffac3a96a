//! How a process is to be optimized.

use crate::Interrupt;
use crate::base::passes::{Passes, Style};
use profile::Profile;
use std::sync::Arc;
use std::time::Duration;

/// Address space that clones of all generations may take in one target. Bytes.
pub const MEMORY_CAP: u64 = 128 << 20;

/// How to optimize.
#[derive(Clone, Debug, Default)]
pub struct OptimizeOptions {
    /// When to break off.
    pub interrupt: Interrupt,
    /// How long to sample.
    pub sampling: Duration,
    /// After that, count edges exactly for so long a round; `None` infers them from samples.
    pub counting: Option<Duration>,
    /// Clone everything in random order, from this seed.
    pub shuffle: Option<u64>,
    /// Neither sample nor count: what to clone and how it ran is told by this.
    pub profile: Option<Arc<Profile>>,
    /// What is done to make clones faster.
    pub passes: Passes,
    /// Only these functions.
    pub only: Vec<String>,
    /// Only so many functions that can be cloned.
    pub max_functions: Option<usize>,
    /// Write a perf map for profilers.
    pub perf_map: bool,
    /// Put an earlier generation in force again where that serves the sampled load nearly as well as a new one would: for
    /// whoever rebuilds by itself for as long as the target lives.
    pub prefer_earlier: bool,
    /// Address space that clones of all generations may take; [`MEMORY_CAP`] at most, and where this is `None`. Bytes.
    pub memory_cap: Option<u64>,
}

impl OptimizeOptions {
    /// How clones are to be laid out.
    pub(crate) fn style(&self) -> Style {
        Style { shuffle: self.shuffle, passes: self.passes }
    }

    /// The names of the passes that it goes without.
    pub(crate) fn left_out(&self) -> Vec<String> {
        self.passes.left_out().map(|p| p.to_string()).collect()
    }
}
