//! Options of an optimization.

use crate::Interrupt;
use crate::base::passes::{Passes, Style};
use profile::Profile;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Address space that clones of all generations may take in one target. Bytes.
pub const MEMORY_CAP: u64 = 128 << 20;

/// Options of an optimization.
#[derive(Clone, Debug, Default)]
pub struct OptimizeOptions {
    /// Ends the work early.
    pub interrupt: Interrupt,
    /// How long to sample.
    pub sampling: Duration,
    /// Then count edges exactly, for this time a round; `None` infers edges from samples.
    pub counting: Option<Duration>,
    /// Clone all functions in random order, from this seed.
    pub shuffle: Option<u64>,
    /// Use this profile instead of sampling and counting.
    pub profile: Option<Arc<Profile>>,
    /// The optimizations to apply.
    pub passes: Passes,
    /// Clone only these functions.
    pub only: Vec<String>,
    /// Clone at most so many functions.
    pub max_functions: Option<usize>,
    /// Write a perf map for profilers.
    pub perf_map: bool,
    /// Put an earlier generation in force again if it serves the sampled load nearly as well as a new layout
    /// would. For callers that rebuild on their own as long as the target lives.
    pub prefer_earlier: bool,
    /// Address space that clones of all generations may take: [`MEMORY_CAP`] at most, and if this is `None`.
    /// Bytes.
    pub memory_cap: Option<u64>,
    /// The memory of the clones.
    pub code_cache: CodeCache,
}

/// The memory that clones are mapped from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeCache {
    /// Anonymous memory: tools find names and frame tables in whet's own files.
    #[default]
    Anonymous,
    /// A file in memory, which is an ELF file with names and frame tables. Anonymous memory, if the target
    /// cannot take a file.
    File,
}

impl OptimizeOptions {
    /// Returns the layout of clones.
    pub(crate) fn style(&self) -> Style {
        Style { shuffle: self.shuffle, passes: self.passes }
    }

    /// Returns the names of the passes that are left out.
    pub(crate) fn left_out(&self) -> Vec<String> {
        self.passes.left_out().map(|p| p.to_string()).collect()
    }
}
