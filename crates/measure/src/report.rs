//! The answer, as data. Its JSON is stable.

use crate::Estimate;
use crate::window::Window;
use engine::StopMs;
use serde::{Deserialize, Serialize};

/// What a comparison has shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The target.
    pub pid: i32,
    /// The program.
    pub exe: String,
    /// How it was compared: `paired` or `classic`.
    pub method: Method,
    /// Which work was counted.
    pub work: WorkName,
    /// Work per second. None where nothing could be compared.
    pub qps: Option<Comparison>,
    /// CPU seconds that the target used per second: 1.5 is one CPU and a half.
    pub cpu_usage: Option<Comparison>,
    /// Change of work per second over change of CPU usage, which is the change of work per CPU second: 1.25 is a quarter
    /// more work of the same CPU time. The one figure to quote: it holds whether or not the CPU is the bottleneck.
    pub combined_improvement_factor: Option<Estimate>,
    /// The same of user mode alone, over all windows together: the kernel's split of user and system time is too coarse
    /// for single ones. None where the kernel saw no user time.
    pub user_cpu_factor: Option<Estimate>,
    /// What the CPU's own counters say.
    pub events: Events,
    /// What a model of a named CPU says where there are no counters: not measured, and for the caller to fill in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modelled: Option<engine::FetchReport>,
    /// What the figures say.
    pub verdict: Verdict,
    /// Whether they say anything: there was load enough, and the interval is narrow enough.
    pub can_tell: bool,
    /// Whether the load was about the same throughout.
    pub steady: bool,
    /// Whether the CPU was the bottleneck; if not, work per second stays the same however much CPU time is saved.
    pub cpu_bound: bool,
    /// What the reader must know to read the figures right.
    pub warnings: Vec<Warning>,
    /// Pairs that were compared; with the classic method, slices of each side.
    pub pairs: u32,
    /// Pairs left out as one of their windows saw no work.
    pub void_pairs: u32,
    /// The windows' length.
    pub window_seconds: f64,
    /// What the order and the intervals were drawn by.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// How often the target was switched.
    pub switches: u32,
    /// How long it stood still for that, each time.
    pub stop_ms: StopMs,
    /// All windows, in the order in which they were taken.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub windows: Vec<Window>,
}

/// A way to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Short windows in pairs.
    Paired,
    /// A minute with, a minute without.
    Classic,
}

/// Which work was counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkName {
    /// A stable word: `mysql`, `command`, `system_calls`, `reads_and_writes`.
    pub kind: String,
    /// For people.
    pub what: String,
}

/// One figure on both sides.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// With the original code.
    pub without: Estimate,
    /// With whet's.
    pub with: Estimate,
    /// With over without, within pairs: 1 is no change.
    pub change: Estimate,
}

/// Events in the CPU, user mode alone.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Events {
    /// Where the figures come from.
    pub source: EventSource,
    /// Instructions per cycle.
    pub ipc: Option<Comparison>,
    /// Misses of the first-level instruction cache, of a thousand instructions.
    pub icache_misses: Option<Comparison>,
    /// Misses of the instruction TLB, of a thousand instructions.
    pub itlb_misses: Option<Comparison>,
    /// Branches mispredicted, of a thousand instructions.
    pub branch_misses: Option<Comparison>,
    /// The share of cycles in which the front end delivered nothing.
    pub frontend_stalls: Option<Comparison>,
}

impl Events {
    /// Where nothing counts.
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

/// Where figures about events come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventSource {
    /// The CPU's performance counters.
    Pmu,
    /// There are none here, as in most virtual machines.
    None,
}

/// What the figures say about work per CPU second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More with whet's code: the whole interval lies above 1.
    Better,
    /// Less with whet's code: the whole interval lies below 1.
    Worse,
    /// The interval holds 1.
    NoDifference,
    /// There is no figure that could be trusted.
    CannotTell,
}

/// Something the reader must know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Warning {
    /// A stable name: `idle`, `no_work`, `uncertain`, `not_steady`, `not_cpu_bound`, `void_pairs`, `drift`.
    pub code: String,
    /// What was seen.
    pub text: String,
    /// What can be done.
    pub hint: String,
}

pub(crate) fn warning(code: &str, text: String, hint: &str) -> Warning {
    Warning { code: code.to_owned(), text, hint: hint.to_owned() }
}
