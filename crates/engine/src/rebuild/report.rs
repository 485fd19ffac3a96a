//! The answer of `optimize`: a stable JSON object. The human form is made from the same data.

use crate::base::phases::{PhaseTime, Span};
use crate::session::state::{StopMs, TargetState};
use crate::{OptimizeOptions, Target};
use serde::{Deserialize, Serialize};
use splice::ToggleReport;
use std::collections::BTreeMap;
use std::time::Duration;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_none(n: &usize) -> bool {
    *n == 0
}

/// Numbers of functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCounts {
    /// Functions chosen for cloning: by samples, or all of them when shuffling.
    pub hot: usize,
    /// Functions that were cloned.
    pub cloned: usize,
    /// Functions that were chosen and left alone.
    pub refused: usize,
    /// The last cloned function, in the fixed order that `--max-functions` counts in.
    pub last: Option<String>,
}

/// The answer of `optimize` (and of `run` if it optimized).
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
    /// The earlier generation whose clones are in force again under this number, for lack of room for new
    /// clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<u32>,
    /// True if the memory cap, or the list of code caches, has no room for new clones.
    #[serde(default)]
    pub is_full: bool,
    /// Wall time from start to end.
    pub seconds: f64,
    /// The time of each phase, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseTime>,
    /// User samples taken of the target.
    pub samples: u64,
    /// Samples that the kernel dropped.
    pub lost_samples: u64,
    /// The source of the profile: `profile` (a file), `branch-stacks`, or the event of the samples: `cycles`,
    /// `cpu-clock`, `taken-branches`. `none` if the layout is random.
    pub source: String,
    /// Passes that were left out, for measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// Numbers of functions.
    pub functions: FunctionCounts,
    /// Functions that a shuffle left out: there is more code than it clones at once. The seed draws the
    /// functions that stay.
    #[serde(default, skip_serializing_if = "is_none")]
    pub not_drawn: usize,
    /// Why functions, or entries of cloned functions, were left alone: number for each reason.
    pub refusals: BTreeMap<String, usize>,
    /// Share of the user samples that fall in cloned functions.
    pub coverage: f64,
    /// The same for the main program alone.
    pub coverage_main: f64,
    /// How all user time is distributed; absent without samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_time: Option<crate::UserTime>,
    /// Bytes of clones.
    pub code_bytes: u64,
    /// Bytes of address space mapped in the target for this generation.
    pub mapped_bytes: u64,
    /// True if huge pages back all of the main program's code cache.
    pub huge_page: bool,
    /// Redirects in force by kind.
    pub redirects: BTreeMap<String, usize>,
    /// Redirects left out because of threads, or because another program had changed the place.
    pub skipped_redirects: usize,
    /// Stops of the target: stops of all threads, and the stop of one thread for mappings.
    pub stop_ms: StopMs,
    /// The result of counting, if edges were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counting: Option<crate::CountingReport>,
    /// What branch stacks contributed, if the CPU records them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<crate::StacksReport>,
    /// How the profile was used, if one replaced sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<crate::ProfileUse>,
    /// Modelled executions of the counted functions' layout, if edges were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dyno: Option<crate::DynoReport>,
    /// The result of writing the perf map.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perf_map: Option<crate::PerfMap>,
    /// The files of the clones, if they were to be in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_files: Option<crate::CodeFiles>,
    /// How long one thread was stopped to create mappings.
    pub map_stop_ms: f64,
    /// whet's own peak memory, MB.
    pub whet_peak_rss_mb: f64,
}

/// The figures of the clones in force.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) coverage: f64,
    pub(crate) coverage_main: f64,
    pub(crate) refusals: BTreeMap<String, usize>,
    pub(crate) functions: FunctionCounts,
    pub(crate) dyno: Option<crate::DynoReport>,
    pub(crate) user_time: Option<crate::UserTime>,
}

/// The generation in force, and how it came to be.
pub(crate) struct InForce {
    pub(crate) generation: u32,
    pub(crate) reused: Option<u32>,
    pub(crate) is_full: bool,
    pub(crate) figures: Figures,
    pub(crate) code_bytes: u64,
    pub(crate) mapped_bytes: u64,
    pub(crate) huge_page: bool,
    pub(crate) toggle: ToggleReport,
    /// How long one thread was stopped to create mappings.
    pub(crate) map_stop: Duration,
    /// The files of its caches, if it was to have any.
    pub(crate) code_files: Option<crate::CodeFiles>,
}

/// All facts about an optimization, except the facts that are known only after the target is released.
pub(crate) struct Done {
    pub(crate) took: Duration,
    pub(crate) samples: usize,
    pub(crate) lost_samples: u64,
    pub(crate) source: &'static str,
    pub(crate) counting: Option<crate::CountingReport>,
    pub(crate) stacks: Option<crate::StacksReport>,
    pub(crate) profile: Option<crate::ProfileUse>,
    pub(crate) not_drawn: usize,
    pub(crate) spans: Vec<(Span, Duration)>,
    pub(crate) in_force: InForce,
}

impl Done {
    /// Returns the answer of `optimize`.
    pub(crate) fn report(
        self,
        target: &Target,
        options: &OptimizeOptions,
        phases: Vec<PhaseTime>,
        perf_map: Option<crate::PerfMap>,
    ) -> OptimizeReport {
        let InForce { generation, reused, is_full, figures, toggle, .. } = self.in_force;
        OptimizeReport {
            pid: target.process.pid().0,
            exe: target.exe(),
            state: TargetState::Optimized,
            generation,
            reused,
            is_full,
            seconds: round(self.took.as_secs_f64()),
            phases,
            samples: self.samples as u64,
            lost_samples: self.lost_samples,
            source: self.source.to_owned(),
            without: options.left_out(),
            functions: figures.functions,
            not_drawn: self.not_drawn,
            refusals: figures.refusals,
            coverage: figures.coverage,
            coverage_main: figures.coverage_main,
            user_time: figures.user_time,
            code_bytes: self.in_force.code_bytes,
            mapped_bytes: self.in_force.mapped_bytes,
            huge_page: self.in_force.huge_page,
            redirects: toggle.done.iter().map(|(k, &n)| (k.name().to_owned(), n)).collect(),
            skipped_redirects: toggle.foreign.len(),
            stop_ms: StopMs::of(&toggle.stops),
            counting: self.counting,
            stacks: self.stacks,
            profile: self.profile,
            dyno: figures.dyno,
            perf_map,
            code_files: self.in_force.code_files,
            map_stop_ms: round(self.in_force.map_stop.as_secs_f64() * 1e3),
            whet_peak_rss_mb: peak_rss_mb(),
        }
    }
}

/// Rounds to four decimal places.
pub(crate) fn round(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}

/// Returns the peak resident memory of this program, in MB of 10^6 bytes.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|v| v.trim().strip_suffix(" kB"))
        .and_then(|v| v.trim().parse::<f64>().ok());
    round(kib.unwrap_or(0.0) * 1024.0 / 1e6)
}
