//! Events that whet models where the hardware shows none, and the cycles that they would take.
//!
//! The model of cycles is simple on purpose: each instruction takes its share of the issue width, and each
//! event adds a fixed penalty. Penalties do not overlap in it, data never misses a cache, and no instruction
//! waits for another. So the figure is not the CPI of a server. It weighs the front-end events of both sides
//! against each other.

use super::counts::Counts;
use serde_json::Value;

/// Operations that can enter the back end in one cycle: Ice Lake, Intel's Optimization Reference Manual.
const WIDTH: f64 = 5.0;

/// A kind of event with its penalty.
#[derive(Clone, Copy, Debug)]
pub struct Penalty {
    /// Its name in whet's answer.
    pub event: &'static str,
    /// Cycles for each event.
    pub cycles: f64,
    /// The source of the figure.
    pub source: &'static str,
}

/// The penalties of the model.
pub const PENALTIES: [Penalty; 7] = [
    Penalty {
        event: "icache_misses",
        cycles: 14.0,
        source: "latency of the second-level cache, Intel's Optimization Reference Manual, Skylake Server; all misses are taken to hit there",
    },
    Penalty {
        event: "itlb_misses",
        cycles: 7.0,
        source: "a hit in the second-level TLB, as in Intel's top-down metrics for data (tma_dtlb_load)",
    },
    Penalty {
        event: "itlb_walks",
        cycles: 30.0,
        source: "assumed: a walk through page tables that are in the caches",
    },
    Penalty {
        event: "btb_misses",
        cycles: 10.0,
        source: "a resteer by the decoder, Intel's top-down metrics for Ice Lake (tma_unknown_branches)",
    },
    Penalty {
        event: "direction_misses",
        cycles: 17.0,
        source: "assumed: Intel publishes no figure; measured ones are 15 to 20",
    },
    Penalty { event: "target_misses", cycles: 17.0, source: "as for directions" },
    Penalty { event: "return_misses", cycles: 17.0, source: "as for directions" },
];

/// Modelled events of one step, by the names of [`mod@super::table`].
#[derive(Clone, PartialEq, Debug)]
pub struct Modelled {
    /// The CPU that is modelled.
    pub cpu: String,
    /// The share of user samples in the functions that are modelled.
    pub coverage: f64,
    /// Events with clones.
    pub with: Counts,
    /// Events without.
    pub without: Counts,
}

impl Modelled {
    /// Reads the `modelled` part of the answer of `whet measure`. `None` if a part of it is missing.
    pub fn parse(answer: &Value) -> Option<Self> {
        Some(Self {
            cpu: answer.get("cpu")?.as_str()?.to_owned(),
            coverage: answer.get("coverage")?.as_f64()?,
            with: counts(answer.get("with")?)?,
            without: counts(answer.get("without")?)?,
        })
    }
}

fn counts(events: &Value) -> Option<Counts> {
    let get = |name: &str| events.get(name)?.as_f64();
    let instructions = get("instructions").filter(|n| *n > 0.0)?;
    let mut cycles = instructions / WIDTH;
    for penalty in PENALTIES {
        cycles += get(penalty.event)? * penalty.cycles;
    }
    let walks = get("itlb_walks")?;
    let named = [
        ("instructions", instructions),
        ("cycles", cycles),
        ("L1-icache-load-misses", get("icache_misses")?),
        ("iTLB-second-level-hits", get("itlb_misses")? - walks),
        ("iTLB-load-misses", walks),
        ("branch-misses", get("direction_misses")? + get("target_misses")? + get("return_misses")?),
        ("taken-branches", get("taken_branches")?),
        ("btb-misses", get("btb_misses")?),
        ("frontend-stalls", cycles - instructions / WIDTH),
        ("frontend-slots", cycles),
    ];
    Some(named.into_iter().map(|(name, count)| (name.to_owned(), count)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::METRICS;
    use super::*;
    use serde_json::json;

    #[test]
    fn cycles_are_the_width_and_the_penalties() {
        let side = |icache: u64| {
            json!({ "instructions": 1000, "taken_branches": 100, "icache_misses": icache, "itlb_misses": 3, "itlb_walks": 1,
                "btb_misses": 2, "direction_misses": 4, "target_misses": 1, "return_misses": 0 })
        };
        let answer =
            json!({ "cpu": "some CPU", "coverage": 0.9, "lost": 0, "with": side(10), "without": side(20) });
        let modelled = Modelled::parse(&answer).unwrap();
        // 1000/5 + 20*14 + 3*7 + 1*30 + 2*10 + 5*17
        assert!((modelled.without["cycles"] - 636.0).abs() < 1e-9, "{modelled:?}");
        let figures: Vec<f64> = METRICS.iter().map(|m| (m.of)(&modelled.with).unwrap()).collect();
        let wanted = [0.496, 10.0, 3.0, 1.0, 5.0, 100.0, 2.0, 296.0 / 4.96];
        for (found, wanted) in figures.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-9, "{figures:?}");
        }
        assert_eq!(Modelled::parse(&json!({ "cpu": "x", "coverage": 1.0, "with": side(1) })), None);
    }
}
