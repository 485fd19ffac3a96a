//! The answer of `optimize`: a stable JSON object. The human form is made from the same data.

use crate::session::state::{StopMs, TargetState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_none(n: &usize) -> bool {
    *n == 0
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
    pub counting: Option<crate::count::counting::CountingReport>,
    /// What branch stacks came to, where the CPU records those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<crate::StacksReport>,
    /// What became of the profile, where one was used in place of sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<crate::records::profile_store::ProfileUse>,
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

/// To four places.
pub(crate) fn round(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}

/// Peak resident memory of this program, in MB of 10^6 bytes.
pub(crate) fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|v| v.trim().strip_suffix(" kB"))
        .and_then(|v| v.trim().parse::<f64>().ok());
    round(kib.unwrap_or(0.0) * 1024.0 / 1e6)
}
