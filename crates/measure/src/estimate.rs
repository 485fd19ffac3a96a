//! A number and how far it can be trusted.

use serde::{Deserialize, Serialize};

/// A value with its 95% interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The best single number.
    pub value: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

/// How many samples are drawn anew for an interval.
pub const RESAMPLES: usize = 4000;

impl Estimate {
    /// A statistic of `n` observations, which is given the indices of those to take, with the percentile bootstrap's
    /// interval (Efron 1979): the statistic of as many observations drawn with repetition, again and again.
    pub(crate) fn bootstrap(n: usize, random: &mut Random, statistic: impl Fn(&[usize]) -> f64) -> Self {
        let mut drawn: Vec<usize> = (0..n).collect();
        let value = statistic(&drawn);
        let mut seen: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                drawn.iter_mut().for_each(|i| *i = random.below(n));
                statistic(&drawn)
            })
            .collect();
        seen.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| quantile(&seen, share);
        Self { value, low: at(0.025), high: at(0.975) }
    }

    /// The median with its interval.
    pub(crate) fn of_median(values: &[f64], random: &mut Random) -> Self {
        Self::bootstrap(values.len(), random, |drawn| {
            let mut taken: Vec<f64> = drawn.iter().map(|&i| values[i]).collect();
            median(&mut taken)
        })
    }

    /// How many times its lower end the interval's upper end is: 1 is certainty.
    #[must_use]
    pub fn width(&self) -> f64 {
        if self.low > 0.0 { self.high / self.low } else { f64::INFINITY }
    }

    /// Whether a value lies in the interval.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The middle value, the mean of the two where there are two; reorders. Zero of none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    let half = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    let (below, &mut middle, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    if below.len() < half || values.len() % 2 == 1 {
        return middle;
    }
    let next = values[..half].iter().copied().fold(f64::NEG_INFINITY, f64::max);
    f64::midpoint(middle, next)
}

/// The value below which a share of sorted values lies.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the last index")]
    let at = (share * last as f64).round() as usize;
    sorted.get(at.min(last)).copied().unwrap_or(0.0)
}

/// A small generator (splitmix64): the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A seed that nobody knows beforehand.
    pub fn draw_seed() -> u64 {
        use std::hash::{BuildHasher, Hasher};
        // 32 bits: so that it survives readers of JSON that have only floating point.
        std::hash::RandomState::new().build_hasher().finish() >> 32
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, each as likely as the others to within n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = u128::from(self.next()) * (n as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }
}
