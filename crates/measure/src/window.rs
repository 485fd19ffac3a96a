//! The measurements of one window.

use serde::{Deserialize, Serialize};

/// One side of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The clones run.
    With,
    /// The original code runs.
    Without,
}

/// One window of one side.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The number of its pair, from 0; with the classic method, of its slice.
    pub pair: u32,
    /// Its side.
    pub side: Side,
    /// Its length, in seconds.
    pub seconds: f64,
    /// Work done in it.
    pub work: f64,
    /// CPU seconds that the target used in it, exact.
    pub cpu: f64,
    /// CPU seconds that the target used in user mode. The kernel splits CPU time coarsely, so only sums are
    /// good.
    pub user: f64,
    /// CPU seconds in which the host had nothing to do, summed over all its CPUs, in steps of 0.01 s.
    pub host_idle: f64,
    /// Events that the CPU counted, if it can count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hardware: Option<HardwareCounts>,
}

/// Events that the CPU counted in user mode. An event is `None` if this CPU cannot count it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Clock cycles.
    pub cycles: Option<f64>,
    /// Retired instructions.
    pub instructions: Option<f64>,
    /// Misses of the first-level instruction cache.
    pub icache_misses: Option<f64>,
    /// Misses of the instruction TLB.
    pub itlb_misses: Option<f64>,
    /// Mispredicted branches.
    pub branch_misses: Option<f64>,
    /// Cycles in which the CPU's fetch front end delivered nothing.
    pub frontend_stalls: Option<f64>,
}

impl Window {
    /// Returns whether the window has nothing to compare: no work, no CPU time or no length.
    pub(crate) fn is_void(&self) -> bool {
        !(self.work > 0.0 && self.cpu > 0.0 && self.seconds > 0.0)
    }

    /// Returns work per second.
    pub(crate) fn rate(&self) -> f64 {
        self.work / self.seconds
    }
}
