//! Computes how many pairs of windows find a difference of a given size, on a machine with the noise of a
//! run. Pure.
//!
//! The ratios of a run's pairs, divided by their median, are the noise. An experiment draws pairs from it and
//! computes the lab's own 95% interval. A true gain multiplies all ratios, and so the interval. So one
//! experiment answers for all sizes: a gain is found if the lower end, multiplied by it, lies above 1.

use crate::stats;
use rand::RngExt;
use serde::Serialize;

/// The numbers of pairs that are tried.
pub const PAIRS: [usize; 9] = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
/// The sizes of gains.
pub const GAINS: [f64; 3] = [0.01, 0.03, 0.10];
/// Experiments for each number of pairs.
const EXPERIMENTS: usize = 200;
/// Resamples of an interval. The lab takes more, which hardly changes the result.
const RESAMPLES: usize = 400;

/// The result for one number of pairs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Pairs.
    pub pairs: usize,
    /// The share of experiments without a gain whose interval excludes 1. A sound method has about 5%.
    pub false_alarms: f64,
    /// The share of experiments that find each of [`GAINS`].
    pub found: [f64; 3],
}

/// Simulates experiments with the noise of `ratios`. Returns nothing for fewer than eight ratios.
pub fn study(ratios: &[f64], seed: u64) -> Vec<Row> {
    let Some(middle) = stats::median(ratios).filter(|m| *m > 0.0 && ratios.len() >= 8) else {
        return Vec::new();
    };
    let noise: Vec<f64> = ratios.iter().map(|r| r / middle).collect();
    let mut rows = Vec::new();
    for pairs in PAIRS {
        rows.push(row(&noise, pairs, seed));
        // A larger number of pairs finds what a smaller number finds. The rows up to 40 are computed all the
        // same, for their false alarms.
        if pairs >= 40 && enough(&rows, 0).is_some() {
            break;
        }
    }
    rows
}

fn row(noise: &[f64], pairs: usize, seed: u64) -> Row {
    let mut rng = stats::generator(seed, &format!("power {pairs}"));
    let mut draw = |from: &[f64], n: usize| -> Vec<f64> {
        (0..n).filter_map(|_| from.get(rng.random_range(0..from.len())).copied()).collect()
    };
    let (mut alarms, mut found) = (0, [0; 3]);
    for _ in 0..EXPERIMENTS {
        let sample = draw(noise, pairs);
        let mut medians: Vec<f64> = (0..RESAMPLES).map(|_| middle_of(draw(&sample, pairs))).collect();
        medians.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) =
            (stats::quantile_sorted(&medians, 0.025), stats::quantile_sorted(&medians, 0.975))
        else {
            continue;
        };
        alarms += usize::from(low > 1.0 || high < 1.0);
        for (count, gain) in found.iter_mut().zip(GAINS) {
            *count += usize::from(low * (1.0 + gain) > 1.0);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "hundreds")]
    let share = |n: usize| n as f64 / EXPERIMENTS as f64;
    Row { pairs, false_alarms: share(alarms), found: found.map(share) }
}

/// Returns the median, without sorting all values.
fn middle_of(mut values: Vec<f64>) -> f64 {
    let at = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(at, f64::total_cmp);
    let upper = *upper;
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| even).unwrap_or(upper);
    f64::midpoint(lower, upper)
}

/// Returns the fewest pairs of [`PAIRS`] that find a gain in at least eight of ten experiments. `gain` is an
/// index in [`GAINS`].
pub fn enough(rows: &[Row], gain: usize) -> Option<usize> {
    rows.iter().find(|r| r.found.get(gain).is_some_and(|f| *f >= 0.8)).map(|r| r.pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert!((middle_of(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((middle_of(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }

    /// The spread of a median of n normal values is 1.2533·σ/√n. A gain of 3% with σ = 4% needs about
    /// (1.96 + 0.84)²·1.2533²·(4/3)² = 22 pairs for a power of 80%.
    #[test]
    fn as_many_pairs_are_enough_as_the_formula_says() {
        let mut rng = stats::generator(3, "noise");
        let noise: Vec<f64> = (0..600)
            .map(|_| {
                let normal: f64 = (0..12).map(|_| rng.random::<f64>() - 0.5).sum();
                1.2 * (1.0 + 0.04 * normal)
            })
            .collect();
        let rows: Vec<Row> = [10, 22, 40].into_iter().map(|n| row(&centred(&noise), n, 1)).collect();
        let power: Vec<f64> = rows.iter().map(|r| r.found[1]).collect();
        assert!(power[0] < 0.75 && (0.65..0.95).contains(&power[1]) && power[2] > 0.9, "{rows:?}");
        assert!(rows.iter().all(|r| r.found[0] <= r.found[1] && r.found[1] <= r.found[2]), "{rows:?}");
        assert!(rows.iter().all(|r| r.false_alarms < 0.12), "{rows:?}");
    }

    fn centred(noise: &[f64]) -> Vec<f64> {
        let middle = stats::median(noise).unwrap();
        noise.iter().map(|r| r / middle).collect()
    }

    #[test]
    fn a_study_needs_noise() {
        assert_eq!(study(&[1.0; 7], 1), []);
        let rows = vec![
            Row { pairs: 5, false_alarms: 0.0, found: [0.1, 0.5, 0.9] },
            Row { pairs: 10, false_alarms: 0.0, found: [0.2, 0.8, 1.0] },
        ];
        assert_eq!([0, 1, 2].map(|g| enough(&rows, g)), [None, Some(10), Some(5)]);
    }
}
