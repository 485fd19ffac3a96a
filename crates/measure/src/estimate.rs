//! A number with its uncertainty.

use serde::{Deserialize, Serialize};

/// A value with its 95% interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The best estimate.
    pub value: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

impl Estimate {
    /// Returns a value with its interval, by the percentile bootstrap (Efron 1979). `redrawn` holds the same
    /// statistic of resampled data. The interval reaches from its 2.5% quantile to its 97.5% quantile. Sorts
    /// `redrawn`. Returns `None` if any value is not finite.
    pub(crate) fn of(value: f64, redrawn: &mut [f64]) -> Option<Self> {
        redrawn.sort_unstable_by(f64::total_cmp);
        let this = Self { value, low: quantile(redrawn, 0.025), high: quantile(redrawn, 0.975) };
        [this.value, this.low, this.high].iter().all(|v| v.is_finite()).then_some(this)
    }

    /// Returns the interval's upper end divided by its lower end: 1 is certainty. Infinite if the lower end
    /// is not above 0.
    #[must_use]
    pub fn width(&self) -> f64 {
        if self.low > 0.0 { self.high / self.low } else { f64::INFINITY }
    }

    /// Returns whether a value lies in the interval.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Returns the median; for an even number of values, the mean of the two in the middle. Reorders the values.
/// Returns NaN if there are none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    let half = values.len() / 2;
    if values.is_empty() {
        return f64::NAN;
    }
    let is_odd = values.len() % 2 == 1;
    let (below, &mut middle, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    let next = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if is_odd { middle } else { f64::midpoint(middle, next) }
}

/// Returns the value at a share of sorted values, by the nearest index; NaN if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the last index")]
    let at = (share * last as f64).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

/// A small generator of random numbers (splitmix64). The same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Draws an unpredictable seed. It has 32 bits, so JSON readers that have only floating point keep it
    /// exactly.
    pub fn draw_seed() -> u64 {
        use std::hash::{BuildHasher, Hasher};
        std::hash::RandomState::new().build_hasher().finish() >> 32
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`. All numbers are equally likely, to within n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next()) * (n as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_correct() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&mut [7.0]), 7.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn intervals_are_quantiles() {
        let mut redrawn: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let e = Estimate::of(500.0, &mut redrawn).unwrap();
        assert_eq!((e.low, e.high), (25.0, 975.0));
        assert!(e.holds(25.0) && !e.holds(24.9) && e.width() == 39.0);
        assert_eq!(Estimate::of(f64::NAN, &mut [1.0]), None);
        assert_eq!(Estimate::of(1.0, &mut []), None);
        assert_eq!(Estimate { value: 1.0, low: 0.0, high: 2.0 }.width(), f64::INFINITY);
    }

    #[test]
    fn random_numbers_are_spread_and_repeatable() {
        let (mut a, mut b) = (Random(7), Random(7));
        let mut seen = [0u32; 10];
        (0..10_000).for_each(|_| {
            let n = a.below(10);
            assert_eq!(n, b.below(10));
            seen[n] += 1;
        });
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
        assert!(Random::draw_seed() < 1 << 32);
    }
}
