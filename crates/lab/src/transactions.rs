//! Response times of transactions, as counts in buckets. Pure.
//!
//! The buckets are fixed: each is 2^(1/64), or 1.1%, wider than the one before. So the times of two moments can
//! be subtracted, and those of many windows added, without loss.

use serde::{Deserialize, Serialize};

/// Buckets for each factor of two.
pub const PER_OCTAVE: u16 = 64;
/// All buckets. The last one begins at 19 hours.
pub const BUCKETS: u16 = 36 * PER_OCTAVE;

/// The response times of a number of transactions.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Transactions {
    /// The sum of all times, µs.
    sum_us: u64,
    /// The buckets that are not empty, ascending, with their counts. Bucket n has the times from 2^(n/64) µs to
    /// 2^((n+1)/64) µs; bucket 0 also has shorter ones, the last bucket also longer ones.
    buckets: Vec<(u16, u64)>,
}

impl Transactions {
    /// Adds up the rows of a file as `timed.lua` writes it: in each, the sum in µs and the counts of all buckets.
    /// A row that is cut off is left out.
    pub fn parse(bytes: &[u8]) -> Self {
        let (numbers, _) = bytes.as_chunks::<8>();
        let row = 1 + usize::from(BUCKETS);
        let mut sums = vec![0.0; row];
        for row in numbers.chunks_exact(row) {
            for (sum, number) in sums.iter_mut().zip(row) {
                *sum += f64::from_ne_bytes(*number);
            }
        }
        let mut sums = sums.into_iter().map(whole);
        Self { sum_us: sums.next().unwrap_or(0), buckets: (0..).zip(sums).filter(|(_, n)| *n > 0).collect() }
    }

    /// Returns the transactions that have ended since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let buckets = self.buckets.iter().map(|(bucket, n)| (*bucket, n.saturating_sub(before.at(*bucket))));
        Self {
            sum_us: self.sum_us.saturating_sub(before.sum_us),
            buckets: buckets.filter(|(_, n)| *n > 0).collect(),
        }
    }

    /// Returns these transactions and others together.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        let mut buckets = self.buckets.clone();
        for (bucket, n) in &others.buckets {
            match buckets.binary_search_by_key(bucket, |b| b.0) {
                Ok(found) => buckets.get_mut(found).into_iter().for_each(|b| b.1 += n),
                Err(place) => buckets.insert(place, (*bucket, *n)),
            }
        }
        Self { sum_us: self.sum_us + others.sum_us, buckets }
    }

    fn at(&self, bucket: u16) -> u64 {
        let found = self.buckets.binary_search_by_key(&bucket, |b| b.0).ok();
        found.and_then(|at| self.buckets.get(at)).map_or(0, |b| b.1)
    }

    /// Returns how many transactions.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.1).sum()
    }

    /// Returns the mean, ms. `None` without transactions.
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
    pub fn mean_ms(&self) -> Option<f64> {
        Some(self.count()).filter(|n| *n > 0).map(|n| self.sum_us as f64 / n as f64 / 1e3)
    }

    /// Returns the time within which this percentage of the transactions ended, ms: the middle of its bucket.
    /// `None` without transactions.
    #[expect(clippy::cast_precision_loss, reason = "transactions of a run")]
    pub fn percentile_ms(&self, percent: f64) -> Option<f64> {
        let wanted = self.count() as f64 * percent / 100.0;
        let mut below = 0;
        let reached = self.buckets.iter().find(|(_, n)| {
            below += n;
            below as f64 >= wanted
        });
        reached.map(|(bucket, _)| border_ms(f64::from(*bucket) + 0.5))
    }

    /// Returns the longest time, ms: the upper end of its bucket. `None` without transactions.
    pub fn max_ms(&self) -> Option<f64> {
        self.buckets.last().map(|(bucket, _)| border_ms(f64::from(*bucket) + 1.0))
    }
}

fn border_ms(bucket: f64) -> f64 {
    (bucket / f64::from(PER_OCTAVE)).exp2() / 1e3
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, or a sum of times")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a row that has these times, as the script writes it.
    fn row(times_us: &[f64]) -> Vec<u8> {
        let mut numbers = vec![0.0; 1 + usize::from(BUCKETS)];
        for time in times_us {
            numbers[0] += time;
            let begins = |bucket: &u16| border_ms(f64::from(*bucket)) * 1e3 <= *time;
            let bucket = (0..BUCKETS).rfind(begins).unwrap();
            numbers[1 + usize::from(bucket)] += 1.0;
        }
        numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    fn near(found: Option<f64>, wanted: f64, by: f64) -> bool {
        found.is_some_and(|found| (found / wanted - 1.0).abs() < by)
    }

    #[test]
    fn figures_are_those_of_the_times() {
        let times: Vec<f64> = (1..=1000).map(|n| f64::from(n) * 20.0 + 0.5).collect();
        let found = Transactions::parse(&row(&times));
        assert_eq!(found.count(), 1000);
        assert!(near(found.mean_ms(), 10.0105, 1e-4), "{:?}", found.mean_ms());
        assert!(near(found.percentile_ms(50.0), 10.0, 0.006), "{:?}", found.percentile_ms(50.0));
        assert!(near(found.percentile_ms(95.0), 19.0, 0.006), "{:?}", found.percentile_ms(95.0));
        assert!((20.0..20.0 * 1.011).contains(&found.max_ms().unwrap()), "{:?}", found.max_ms());
        let none = Transactions::default();
        assert_eq!((none.mean_ms(), none.percentile_ms(95.0), none.max_ms()), (None, None, None));
    }

    /// Threads are added, and so are windows. A maximum of an earlier window is not in a later one.
    #[test]
    fn what_ended_since_a_moment_is_the_difference() {
        let file = |a: &[f64], b: &[f64]| Transactions::parse(&[row(a), row(b), vec![0; 100]].concat());
        let begin = file(&[90_000.0], &[700.0]);
        let end = file(&[90_000.0, 800.0, 900.0], &[700.0, 700.0]);
        let window = end.since(&begin);
        assert_eq!((window.count(), window.sum_us), (3, 2400));
        assert!(near(window.max_ms(), 0.9, 0.011), "{window:?}");
        assert_eq!(begin.and(&window), end);
        assert_eq!(window.and(&begin), end);
        assert_eq!(end.since(&end), Transactions::default());
    }

    /// The form in the raw data of version 1.
    #[test]
    fn the_form_in_the_raw_data() {
        let text = r#"{"sum_us":2400,"buckets":[[604,2],[617,1]]}"#;
        let found: Transactions = serde_json::from_str(text).unwrap();
        assert_eq!((found.count(), serde_json::to_string(&found).unwrap().as_str()), (3, text));
    }
}
