//! The A/A control of a run: pairs of windows in which nothing was changed, measured like all others. Pure.

use crate::stats::{self, Estimate};
use serde::Serialize;

/// The fewest pairs that allow a verdict.
pub const FEWEST: usize = 8;
/// The A/A pairs of a run by default, at least. Some pairs may be void.
pub const USUAL: usize = 10;
/// The level of the control's interval. A sound method passes with this probability.
pub const LEVEL: f64 = 0.99;

/// The control of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Control {
    /// Pairs of windows.
    pub pairs: usize,
    /// Throughput of one half over the other, with its 99% interval.
    pub throughput: Option<Estimate>,
    /// CPU time per unit of work, likewise.
    pub cpu: Option<Estimate>,
    /// The result.
    pub verdict: Verdict,
}

/// The verdict of a control on its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The halves do not differ, as they must not.
    Passed,
    /// The halves differ although nothing was changed. The run's figures are not to be published.
    Failed,
    /// Too few pairs, or none, so the run's figures are not to be published.
    Missing,
}

impl Control {
    /// Judges the ratios of all control pairs of a run.
    pub fn of(throughput: &[f64], cpu: &[f64], seed: u64) -> Self {
        let estimate = |ratios: &[f64]| {
            (ratios.len() >= FEWEST).then(|| stats::bootstrap_at(ratios, LEVEL, seed)).flatten()
        };
        let (rates, costs) = (estimate(throughput), estimate(cpu));
        let differs = |e: &Option<Estimate>| e.is_some_and(|e| e.low > 1.0 || e.high < 1.0);
        let verdict = match rates {
            None => Verdict::Missing,
            Some(_) if differs(&rates) || differs(&costs) => Verdict::Failed,
            Some(_) => Verdict::Passed,
        };
        Self { pairs: throughput.len(), throughput: rates, cpu: costs, verdict }
    }

    /// Returns whether the figures of the run may be published.
    pub fn may_publish(&self) -> bool {
        self.verdict == Verdict::Passed
    }

    /// Describes the control in words.
    pub fn words(&self) -> String {
        let figure = |e: Option<Estimate>| {
            e.map_or_else(
                || "unknown".to_owned(),
                |e| format!("×{:.3} ({:.3}–{:.3})", e.value, e.low, e.high),
            )
        };
        let figures = format!(
            "throughput {}, CPU time {}; {} pairs, 99% intervals",
            figure(self.throughput),
            figure(self.cpu),
            self.pairs
        );
        match self.verdict {
            Verdict::Passed => format!("The A/A control passed: {figures}."),
            Verdict::Failed => format!(
                "The A/A control FAILED: the same server differs from itself ({figures}). Do not publish this run."
            ),
            Verdict::Missing => format!(
                "There is no A/A control: {} pairs, at least {FEWEST} are needed. Do not publish this run.",
                self.pairs
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(middle: f64, pairs: usize) -> Vec<f64> {
        (0..pairs).map(|i| middle * (1.0 + 0.01 * ((i * 7 % 11) as f64 - 5.0) / 5.0)).collect()
    }

    #[test]
    fn equal_halves_pass_and_different_halves_fail() {
        let (equal, apart) = (around(1.0, 40), around(1.03, 40));
        assert_eq!(Control::of(&equal, &equal, 1).verdict, Verdict::Passed);
        assert_eq!(Control::of(&apart, &equal, 1).verdict, Verdict::Failed);
        assert_eq!(Control::of(&equal, &apart, 1).verdict, Verdict::Failed);
        // A server on another host shows no CPU time.
        assert_eq!(Control::of(&equal, &[], 1).verdict, Verdict::Passed);
    }

    #[test]
    fn few_pairs_are_no_control() {
        let control = Control::of(&around(1.0, 7), &[], 1);
        assert!(control.verdict == Verdict::Missing && !control.may_publish());
        assert!(control.words().contains("7 pairs, at least 8"), "{}", control.words());
    }
}
