//! What was seen in one window.

use serde::{Deserialize, Serialize};

/// One of the two that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// whet's code runs.
    With,
    /// The original code runs.
    Without,
}

/// One window of one side.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Which pair it belongs to, from 0.
    pub pair: u32,
    /// Whose it is.
    pub side: Side,
    /// How long it was.
    pub seconds: f64,
    /// Work done in it.
    pub work: f64,
    /// CPU seconds that the target used in it, exact.
    pub cpu: f64,
    /// Of those in user mode, by the kernel's coarse split: good only in sums.
    pub user: f64,
    /// CPU seconds in which the host had nothing to do, over all its CPUs, to a hundredth.
    pub host_idle: f64,
    /// What the CPU counted, where it counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hardware: Option<HardwareCounts>,
}

/// What the CPU counted in user mode; None what this one cannot count.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Clock cycles.
    pub cycles: Option<f64>,
    /// Instructions that retired.
    pub instructions: Option<f64>,
    /// Misses of the first-level instruction cache.
    pub icache_misses: Option<f64>,
    /// Misses of the instruction TLB.
    pub itlb_misses: Option<f64>,
    /// Branches that went where the CPU had not expected.
    pub branch_misses: Option<f64>,
    /// Cycles in which the front end delivered nothing.
    pub frontend_stalls: Option<f64>,
}

impl Window {
    /// Whether nothing was done in it that could be compared.
    pub(crate) fn is_void(&self) -> bool {
        !(self.work > 0.0 && self.cpu > 0.0 && self.seconds > 0.0)
    }

    /// Work per second.
    pub(crate) fn rate(&self) -> f64 {
        self.work / self.seconds
    }
}
