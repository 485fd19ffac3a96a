//! The result of a comparison, as data. Its JSON is stable.

use crate::Estimate;
use crate::window::Window;
use engine::StopMs;
use serde::{Deserialize, Serialize};

/// The result of a comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The target.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// The method: `paired` or `classic`.
    pub method: Method,
    /// The two generations that were compared: the first is the side `without`, the second the side `with`.
    /// Absent if clones were compared with the original code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub between: Option<[u32; 2]>,
    /// The kind of work that was counted.
    pub work: WorkName,
    /// Work per second. `None` if nothing could be compared.
    pub qps: Option<Comparison>,
    /// CPU seconds that the target used per second: 1.5 is one CPU and a half.
    pub cpu_usage: Option<Comparison>,
    /// The change of work per second divided by the change of CPU usage. This is the change of work per CPU
    /// second: 1.25 is a quarter more work for the same CPU time. Quote this figure: it holds whether or not
    /// the CPU is the bottleneck.
    pub combined_improvement_factor: Option<Estimate>,
    /// Work per user CPU second with clones, divided by work per user CPU second without. It is computed from
    /// the sums over all windows, as the kernel splits user and system time too coarsely for single windows.
    /// `None` if the kernel saw no user time.
    pub user_cpu_factor: Option<Estimate>,
    /// Rates of events that the CPU's performance counters counted.
    pub events: Events,
    /// Events that a model of a named CPU predicts, if there are no counters. They are not measured, and the
    /// caller fills them in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modelled: Option<engine::FetchReport>,
    /// The verdict on the figures.
    pub verdict: Verdict,
    /// Whether there is a verdict: there was load enough, and the figures are certain enough.
    pub can_tell: bool,
    /// Whether the load was about the same throughout. False if nothing could be compared.
    pub steady: bool,
    /// Whether the CPU was the bottleneck. If not, work per second stays the same however much CPU time is
    /// saved.
    pub cpu_bound: bool,
    /// Warnings that the reader needs to interpret the figures.
    pub warnings: Vec<Warning>,
    /// The number of compared pairs; with the classic method, of slices on the side with fewer.
    pub pairs: u32,
    /// The number of pairs that were left out because one of their windows saw no work; with the classic
    /// method, of slices without work.
    pub void_pairs: u32,
    /// The length of a window, in seconds.
    pub window_seconds: f64,
    /// The seed of the order and of the resampling for intervals.
    pub seed: u64,
    /// The duration of the whole comparison, in seconds.
    pub seconds: f64,
    /// The number of switches of the target.
    pub switches: u32,
    /// The longest stop of the target for each switch, in milliseconds.
    pub stop_ms: StopMs,
    /// All windows, in the order in which they were measured.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub windows: Vec<Window>,
}

/// A method of comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Short windows in pairs.
    Paired,
    /// A minute with clones, then a minute without.
    Classic,
}

/// The kind of work that was counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkName {
    /// A stable word: `mysql`, `command`, `system_calls`, `reads_and_writes`.
    pub kind: String,
    /// A description, for display.
    pub what: String,
}

/// One figure, with clones and without.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The figure of the original code, or of the first of two generations.
    pub without: Estimate,
    /// The figure of the clones, or of the second of two generations.
    pub with: Estimate,
    /// The change from the first to the second, as a ratio: 1 is no change. It is the median of the
    /// ratios within pairs, or the ratio of the two figures if these are sums over all windows.
    pub change: Estimate,
}

/// Rates of events in the CPU, in user mode only.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Events {
    /// The source of the figures.
    pub source: EventSource,
    /// Instructions per cycle.
    pub ipc: Option<Comparison>,
    /// Misses of the first-level instruction cache per thousand instructions.
    pub icache_misses: Option<Comparison>,
    /// Misses of the instruction TLB per thousand instructions.
    pub itlb_misses: Option<Comparison>,
    /// Mispredicted branches per thousand instructions.
    pub branch_misses: Option<Comparison>,
    /// The share of cycles in which the CPU's fetch front end delivered nothing.
    pub frontend_stalls: Option<Comparison>,
}

impl Events {
    /// Returns the events of a comparison without counters.
    pub(crate) fn none() -> Self {
        Self {
            source: EventSource::None,
            ipc: None,
            icache_misses: None,
            itlb_misses: None,
            branch_misses: None,
            frontend_stalls: None,
        }
    }
}

/// The source of figures about events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// The CPU's performance counters.
    Pmu,
    /// There are no counters, as in most virtual machines.
    None,
}

/// The verdict on work per CPU second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More with clones: the whole interval lies above 1, and the gain is at least [`crate::LEAST_EFFECT`].
    Better,
    /// Less with clones: the whole interval lies below 1, and the loss is at least [`crate::LEAST_EFFECT`].
    Worse,
    /// No difference: the interval is narrow and contains 1, or the change is too small to count.
    NoDifference,
    /// The figures allow no verdict.
    CannotTell,
}

/// A warning that the reader needs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Warning {
    /// A stable name: `idle`, `no_work`, `uncertain`, `not_steady`, `not_cpu_bound`, `void_pairs`, `drift`.
    pub code: String,
    /// The observation, for display.
    pub text: String,
    /// The advice.
    pub hint: String,
}

pub(crate) fn warning(code: &str, text: String, hint: &str) -> Warning {
    Warning { code: code.to_owned(), text, hint: hint.to_owned() }
}
