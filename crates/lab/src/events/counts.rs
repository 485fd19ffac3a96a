//! Counts of events by name, and the figures that are made of them.

use std::collections::BTreeMap;

/// Counts by the names in [`mod@super::table`].
pub type Counts = BTreeMap<String, f64>;

/// A figure of a front end.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in charts and tables.
    pub name: &'static str,
    /// Its unit, for the axis.
    pub unit: &'static str,
    /// Computes it. `None` if an event that it needs was not counted.
    pub of: fn(&Counts) -> Option<f64>,
}

/// The inverse of the first figure of [`METRICS`]. Charts of counted events have it in place of that figure. The
/// model's cycles are not those of a server, so there is no such figure of the model.
pub const IPC: Metric = Metric {
    name: "instructions per cycle",
    unit: "IPC",
    of: |c| Some(instructions(c)? / get(c, "cycles").filter(|n| *n > 0.0)?),
};

/// All figures, in the order of the report.
pub const METRICS: [Metric; 8] = [
    Metric {
        name: "cycles per instruction",
        unit: "CPI",
        of: |c| Some(get(c, "cycles")? / instructions(c)?),
    },
    Metric {
        name: "instruction cache misses",
        unit: "per 1000 instructions",
        of: |c| per_1000(c, &["L1-icache-load-misses"]),
    },
    Metric {
        name: "first-level ITLB misses",
        unit: "per 1000 instructions",
        of: |c| per_1000(c, &["iTLB-second-level-hits", "iTLB-load-misses"]),
    },
    Metric {
        name: "ITLB misses that walk the page tables",
        unit: "per 1000 instructions",
        of: |c| per_1000(c, &["iTLB-load-misses"]),
    },
    Metric {
        name: "branch mispredictions",
        unit: "per 1000 instructions",
        of: |c| per_1000(c, &["branch-misses"]),
    },
    Metric {
        name: "taken branches",
        unit: "per 1000 instructions",
        of: |c| per_1000(c, &["taken-branches"]),
    },
    Metric {
        name: "branch target buffer misses",
        unit: "per 1000 instructions",
        of: |c| per_1000(c, &["btb-misses"]),
    },
    Metric {
        name: "front-end stalls",
        unit: "share of slots or cycles, %",
        of: |c| Some(get(c, "frontend-stalls")? / get(c, "frontend-slots")? * 100.0),
    },
];

fn get(counts: &Counts, name: &str) -> Option<f64> {
    counts.get(name).copied()
}

fn instructions(counts: &Counts) -> Option<f64> {
    get(counts, "instructions").filter(|n| *n > 0.0)
}

fn per_1000(counts: &Counts, events: &[&str]) -> Option<f64> {
    let sum = events.iter().map(|e| get(counts, e)).sum::<Option<f64>>()?;
    Some(sum * 1e3 / instructions(counts)?)
}
