//! Statistics of samples: medians, bootstrap intervals, the rule for outliers. Pure: the same seed gives the
//! same result.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

/// How often a bootstrap resamples.
pub const RESAMPLES: usize = 4000;
/// Modified z-scores above this are outliers (Iglewicz and Hoaglin, "How to Detect and Handle Outliers",
/// 1993).
pub const OUTLIER_SCORE: f64 = 3.5;

/// A value with its 95% interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A summary of per-second samples.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// How many samples.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Standard deviation of the sample (divided by n - 1).
    pub deviation: f64,
    /// 95th percentile.
    pub p95: f64,
    /// The largest sample.
    pub max: f64,
}

/// Returns a random generator for one purpose. The run's seed and the purpose's name decide its sequence.
pub fn generator(seed: u64, purpose: &str) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed ^ hash(purpose.as_bytes()))
}

/// Returns the FNV-1a hash. The standard library's hasher promises no stable values.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Returns the value below which `share` of the sorted values lie, interpolated linearly between neighbours.
/// `None` for an empty slice.
pub fn quantile_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "numbers of samples are small")]
    let at = share.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index between 0 and last"
    )]
    let below = at.floor() as usize;
    let low = *sorted.get(below)?;
    let high = *sorted.get(below + 1).unwrap_or(&low);
    Some(low + (high - low) * at.fract())
}

/// As [`quantile_sorted`], for values in any order.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_sorted(&sorted, share)
}

/// Returns the median. `None` for an empty slice.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Summarizes samples. `None` for an empty slice.
pub fn summary(values: &[f64]) -> Option<Summary> {
    #[expect(clippy::cast_precision_loss, reason = "numbers of samples are small")]
    let n = values.len() as f64;
    let p95 = quantile(values, 0.95)?;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let deviation = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(Summary { count: values.len(), mean, deviation, p95, max })
}

/// Returns the median with its 95% interval by the percentile bootstrap. The BCa bootstrap is not used: its
/// correction needs the jackknife, which is known not to work for medians.
pub fn bootstrap_median(values: &[f64], seed: u64) -> Option<Estimate> {
    bootstrap_at(values, 0.95, seed)
}

/// As [`bootstrap_median`], with an interval of this level, such as 0.99.
pub fn bootstrap_at(values: &[f64], level: f64, seed: u64) -> Option<Estimate> {
    let value = median(values)?;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut resample = vec![0.0; values.len()];
    let mut medians = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for slot in &mut resample {
            *slot = values.get(rng.random_range(0..values.len())).copied().unwrap_or(value);
        }
        resample.sort_by(f64::total_cmp);
        medians.push(quantile_sorted(&resample, 0.5)?);
    }
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - level) / 2.0;
    Some(Estimate {
        value,
        low: quantile_sorted(&medians, tail)?,
        high: quantile_sorted(&medians, 1.0 - tail)?,
    })
}

/// Returns the ratio of the medians of two independent sets, each resampled by itself. The percentile
/// bootstrap gives its 95% interval.
pub fn bootstrap_ratio(over: &[f64], under: &[f64], seed: u64) -> Option<Estimate> {
    let value = median(over)? / median(under)?;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut draw = |from: &[f64]| {
        let drawn: Vec<f64> =
            from.iter().filter_map(|_| from.get(rng.random_range(0..from.len())).copied()).collect();
        median(&drawn)
    };
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        ratios.push(draw(over)? / draw(under)?);
    }
    ratios.sort_by(f64::total_cmp);
    Some(Estimate { value, low: quantile_sorted(&ratios, 0.025)?, high: quantile_sorted(&ratios, 0.975)? })
}

/// Returns the cost per unit of the second side of all pairs over that of the first. A side is its cost and its units,
/// summed over all pairs, so that coarse costs of single pairs do no harm. Pairs are resampled; the percentile bootstrap
/// gives the 95% interval.
pub fn bootstrap_pooled(pairs: &[[(f64, f64); 2]], seed: u64) -> Option<Estimate> {
    let pooled = |drawn: &mut dyn Iterator<Item = &[(f64, f64); 2]>| {
        let mut sums = [(0.0, 0.0); 2];
        for pair in drawn {
            for (sum, side) in sums.iter_mut().zip(pair) {
                *sum = (sum.0 + side.0, sum.1 + side.1);
            }
        }
        let [first, second] = sums.map(|(cost, units)| cost / units);
        Some(second / first).filter(|r| r.is_finite() && *r > 0.0)
    };
    let value = pooled(&mut pairs.iter())?;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| pooled(&mut pairs.iter().filter_map(|_| pairs.get(rng.random_range(0..pairs.len())))))
        .collect();
    ratios.sort_by(f64::total_cmp);
    Some(Estimate { value, low: quantile_sorted(&ratios, 0.025)?, high: quantile_sorted(&ratios, 0.975)? })
}

/// Returns for each of these positive ratios whether it is an outlier: the modified z-score of its logarithm
/// is above [`OUTLIER_SCORE`]. With fewer than eight ratios, or if more than half are equal, no ratio is an
/// outlier.
pub fn outliers(ratios: &[f64]) -> Vec<bool> {
    let none = vec![false; ratios.len()];
    if ratios.len() < 8 {
        return none;
    }
    let logs: Vec<f64> = ratios.iter().map(|r| r.ln()).collect();
    let Some(middle) = median(&logs) else { return none };
    let away: Vec<f64> = logs.iter().map(|l| (l - middle).abs()).collect();
    match median(&away) {
        Some(spread) if spread > 0.0 => away.iter().map(|a| 0.6745 * a / spread > OUTLIER_SCORE).collect(),
        _ => none,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0], 1.0), Some(2.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn summaries_of_known_values() {
        let s = summary(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((s.mean - 5.0).abs() < 1e-12 && (s.deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert!((s.max - 9.0).abs() < 1e-12 && (s.p95 - 8.3).abs() < 1e-12);
        assert_eq!(summary(&[3.0]).unwrap().deviation, 0.0);
    }

    /// Of many experiments whose true value is 1, about 95% must have 1 in their interval. A method whose
    /// intervals are too narrow, the most common mistake, stays well below 95%.
    #[test]
    fn about_95_percent_of_intervals_hold_the_true_value() {
        let mut rng = generator(7, "coverage");
        let mut held = 0;
        for experiment in 0..100 {
            // Sums of uniforms are close enough to the normal distribution.
            let values: Vec<f64> = (0..40)
                .map(|_| {
                    1.0 + (0..12).map(|_| f64::from(rng.next_u32()) / f64::from(u32::MAX) - 0.5).sum::<f64>()
                        * 0.1
                })
                .collect();
            let e = bootstrap_median(&values, experiment).unwrap();
            assert!(e.low <= e.value && e.value <= e.high);
            held += u32::from(e.low <= 1.0 && 1.0 <= e.high);
        }
        assert!((90..=99).contains(&held), "{held} of 100");
    }

    /// The true gain is 1.25. Ticks of 0.1 are coarse beside the 0.4 and 0.5 seconds of a window.
    #[test]
    fn about_95_percent_of_pooled_intervals_hold_the_true_value() {
        let mut rng = generator(7, "pooled");
        let mut held = 0;
        for experiment in 0..100 {
            let mut side = |seconds: f64| {
                let share = f64::from(rng.next_u32()) / f64::from(u32::MAX);
                (((seconds * 10.0 + share).floor()) / 10.0, 1000.0)
            };
            let pairs: Vec<_> = (0..40).map(|_| [side(0.44), side(0.55)]).collect();
            let e = bootstrap_pooled(&pairs, experiment).unwrap();
            assert!(e.low <= e.value && e.value <= e.high);
            held += u32::from(e.low <= 1.25 && 1.25 <= e.high);
        }
        assert!((90..=99).contains(&held), "{held} of 100");
    }

    #[test]
    fn without_any_work_or_cost_there_is_no_pooled_gain() {
        assert_eq!(bootstrap_pooled(&[], 1), None);
        assert_eq!(bootstrap_pooled(&[[(0.0, 10.0), (0.1, 10.0)]], 1), None);
        assert_eq!(bootstrap_pooled(&[[(0.1, 0.0), (0.1, 10.0)]], 1), None);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values = [1.0, 1.1, 0.9, 1.3, 1.05];
        assert_eq!(bootstrap_median(&values, 3), bootstrap_median(&values, 3));
    }

    #[test]
    fn wild_ratios_are_outliers_and_steady_ratios_are_not() {
        let mut ratios = vec![1.1, 1.12, 1.09, 1.11, 1.1, 1.13, 1.08, 1.1, 1.12];
        assert!(outliers(&ratios).iter().all(|o| !o));
        ratios.push(4.0);
        ratios.push(0.2);
        assert_eq!(outliers(&ratios).iter().filter(|o| **o).count(), 2);
        assert!(outliers(&[1.0, 9.0, 1.0]).iter().all(|o| !o), "too few to tell");
    }
}
