//! What commands answer: the stable JSON objects. The human form is made from the same data.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A target's state in words of the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetState {
    /// Redirects are in force.
    Optimized,
    /// Clones that count are in force; where no whet is at work on the target, one died there: undo takes them out.
    Counting,
    /// They were taken away.
    Undone,
    /// An installation was begun and did not come to its end.
    Interrupted,
    /// A whet reads it and takes samples of it. Nothing is in force yet.
    Profiling,
    /// A whet builds clones for it, or puts them in place.
    Optimizing,
}

impl TargetState {
    /// The word used in JSON.
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

/// Milliseconds for which the world stood still, over the stops of one command.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StopMs {
    /// The middle one.
    pub median: f64,
    /// The longest.
    pub max: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_none(n: &usize) -> bool {
    *n == 0
}

impl StopMs {
    /// Of some durations; zeros for none.
    #[must_use]
    pub fn of(stops: &[std::time::Duration]) -> Self {
        let mut ms: Vec<f64> = stops.iter().map(|d| d.as_secs_f64() * 1e3).collect();
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

/// How many functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounts {
    /// Chosen for cloning: by samples, or all of them when shuffling.
    pub hot: usize,
    /// Cloned.
    pub cloned: usize,
    /// Chosen and left alone.
    pub refused: usize,
    /// The last function cloned, in the fixed order that `--max-functions` counts in.
    pub last: Option<String>,
}

/// The answer of `optimize` (and of `run` when it optimized).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OptimizeReport {
    /// The target.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// Its state now.
    pub state: TargetState,
    /// The number of this rebuild.
    pub generation: u32,
    /// The earlier generation whose clones are in force again under this number, as there is no room for new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<u32>,
    /// Whether the memory cap, or the list of code caches, has no room for new clones.
    #[serde(default)]
    pub is_full: bool,
    /// Wall time from start to end.
    pub seconds: f64,
    /// User samples taken of the target.
    pub samples: u64,
    /// Samples the kernel had to drop.
    pub lost_samples: u64,
    /// Where the profile came from: `profile` (a file), `branch-stacks`, or what samples were taken by: `cycles`, `cpu-clock`,
    /// `taken-branches`; `none` where chance decided.
    pub source: String,
    /// What was left out to be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// How many functions.
    pub functions: FunctionCounts,
    /// Functions that a shuffle left out, as there is more code than it takes on at once. The seed draws those that stay.
    #[serde(default, skip_serializing_if = "is_none")]
    pub not_drawn: usize,
    /// Why functions, or entries of cloned functions, were left alone: reason to count.
    pub refusals: BTreeMap<String, usize>,
    /// Share of the user samples that fall in cloned functions.
    pub coverage: f64,
    /// The same for the main program alone.
    pub coverage_main: f64,
    /// Where all of the user time goes; absent where no samples are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_time: Option<crate::UserTime>,
    /// Bytes of clones.
    pub code_bytes: u64,
    /// Bytes of address space mapped in the target for this generation.
    pub mapped_bytes: u64,
    /// Whether all of the main program's code cache is backed by huge pages.
    pub huge_page: bool,
    /// Redirects in force by kind.
    pub redirects: BTreeMap<String, usize>,
    /// Redirects left out since threads or somebody else stood in the way.
    pub skipped_redirects: usize,
    /// Stops of the target: those of all threads, and that of one thread for mappings.
    pub stop_ms: StopMs,
    /// What counting came to, where edges were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counting: Option<crate::counting::CountingReport>,
    /// What branch stacks came to, where the CPU records those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<crate::StacksReport>,
    /// What became of the profile, where one was used in place of sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<crate::profile_store::ProfileUse>,
    /// What the counted functions' layout makes the CPU do, where edges were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dyno: Option<crate::DynoReport>,
    /// What became of the perf map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perf_map: Option<crate::PerfMap>,
    /// Stop of one thread for making mappings.
    pub map_stop_ms: f64,
    /// whet's own peak memory, MB.
    pub whet_peak_rss_mb: f64,
}

/// The answer of `undo` and `redo`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToggleAnswer {
    /// The target.
    pub pid: i32,
    /// Its state now.
    pub state: TargetState,
    /// Redirects now as wanted, by kind.
    pub redirects: BTreeMap<String, usize>,
    /// Redirects left as they were.
    pub skipped_redirects: usize,
    /// Stops of the whole target.
    pub stop_ms: StopMs,
    /// What became of the perf map; absent after undo, which leaves it, as threads may run in clones yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perf_map: Option<crate::PerfMap>,
}

/// A run of bytes that differs from the file for no reason the journal knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unexpected {
    /// The module.
    pub module: String,
    /// Process address.
    pub at: String,
    /// How many bytes.
    pub len: u64,
    /// What it means.
    pub what: String,
}

/// The answer of `verify`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerifyReport {
    /// The target.
    pub pid: i32,
    /// Original text equals the file outside live redirects.
    pub identical: bool,
    /// Where it does not.
    pub unexpected: Vec<Unexpected>,
    /// Its state.
    pub state: Option<TargetState>,
    /// Live redirects found.
    pub live_redirects: usize,
    /// Live redirects that undo leaves, as unwinders may meet frames of clones yet: words by which they call
    /// `dl_iterate_phdr`.
    pub kept_redirects: usize,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Modules whose file could not be had for comparing.
    pub uncompared: Vec<String>,
}

/// One target in `status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The target.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// Its state.
    pub state: TargetState,
    /// The newest generation; 0 where there is none yet.
    pub generation: u32,
    /// When that was installed, or the work on a first one begun: RFC 3339, UTC.
    pub since: String,
    /// Redirects of that generation.
    pub redirects: usize,
    /// Bytes of its clones.
    pub code_bytes: u64,
    /// Bytes mapped by all generations.
    pub mapped_bytes: u64,
    /// Functions that have a clone.
    pub cloned: usize,
    /// Functions that were wanted and left alone.
    pub refused: usize,
    /// Why functions, or entries, were left alone: reason to count.
    pub refusals: BTreeMap<String, usize>,
    /// Share of the user samples that fell in cloned functions; `None` where no samples were taken.
    pub coverage: Option<f64>,
    /// The same for the main program.
    pub coverage_main: Option<f64>,
    /// Where all of the user time goes, by the same samples; absent where none were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_time: Option<crate::UserTime>,
    /// How long the world stood still at most in the last install, undo or redo; `None` where nobody wrote it down.
    pub stop_ms: Option<f64>,
    /// CPU time it has used so far. Seconds.
    pub cpu_seconds: Option<f64>,
    /// The version of the journal, where a newer whet wrote it: this one can undo it and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_journal: Option<u32>,
    /// Rebuilt functions whose originals somebody else has changed since (a probe, a breakpoint, a hook): without effect while clones run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_originals: Vec<String>,
    /// Whether the memory cap, or the list of code caches, has no room for new clones: rebuilds use earlier ones.
    #[serde(default)]
    pub is_full: bool,
    /// The whet that works on it just now: its process id. While that one compares, `state` is the one that it found and restores.
    pub worked_on_by: Option<i32>,
}

/// The answer of `status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// Every process that carries a journal.
    pub targets: Vec<TargetStatus>,
    /// Processes that could not be looked at for want of permission.
    pub unreadable: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stops_are_summed_up() {
        let d = |ms| Duration::from_millis(ms);
        assert_eq!(StopMs::of(&[]), StopMs { median: 0.0, max: 0.0 });
        assert_eq!(StopMs::of(&[d(3), d(1), d(2)]), StopMs { median: 2.0, max: 3.0 });
        assert_eq!(StopMs::of(&[d(4), d(1)]), StopMs { median: 2.5, max: 4.0 });
    }
}
