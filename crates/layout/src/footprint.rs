//! The use of the instruction cache and the instruction TLB by a layout.

use std::collections::BTreeMap;

/// Size of a cache line on every x86-64. Bytes.
pub const LINE_BYTES: u64 = 64;
/// Size of a small page. Bytes.
pub const PAGE_BYTES: u64 = 4096;

/// A run of bytes in the code, with its execution count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its first byte, on any scale on which lines and pages are aligned.
    pub at: u64,
    /// Its size. Bytes.
    pub size: u64,
    /// Execution count; a run with count 0 is not touched.
    pub count: u64,
}

/// The memory that executed code occupies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Distinct 64-byte lines touched.
    pub lines: u64,
    /// Distinct 4 KiB pages touched.
    pub pages: u64,
    /// Bytes that ran (shared bytes once).
    pub bytes: u64,
}

impl Footprint {
    /// Counts the lines, pages and bytes that `spans` touch. Spans may come in any order and overlap.
    #[must_use]
    pub fn of(spans: &[Span]) -> Self {
        let mut ran: Vec<(u64, u64)> = spans
            .iter()
            .filter(|s| s.count > 0 && s.size > 0)
            // The last byte, not the end: a span may reach the top of the scale.
            .map(|s| (s.at, s.at.saturating_add(s.size - 1)))
            .collect();
        ran.sort_unstable();
        Self {
            lines: distinct(&ran, LINE_BYTES),
            pages: distinct(&ran, PAGE_BYTES),
            bytes: distinct(&ran, 1),
        }
    }
}

/// Returns how many units of `unit` bytes sorted `(first, last)` byte runs touch.
fn distinct(ran: &[(u64, u64)], unit: u64) -> u64 {
    let mut sum = 0u64;
    let mut counted: Option<u64> = None;
    for &(first, last) in ran {
        let (first, last) = (first / unit, last / unit);
        let from = counted.map_or(first, |c| first.max(c.saturating_add(1)));
        if from <= last && counted.is_none_or(|c| last > c) {
            sum = sum.saturating_add((last - from).saturating_add(1));
            counted = Some(last);
        }
    }
    sum
}

/// Returns the fewest aligned units of `unit` bytes that together hold `per_10k` ten-thousandths of the
/// executed bytes.
#[must_use]
pub fn hottest(spans: &[Span], unit: u64, per_10k: u64) -> u64 {
    let unit = unit.max(1);
    let mut weights: BTreeMap<u64, u128> = BTreeMap::new();
    for s in spans.iter().filter(|s| s.count > 0 && s.size > 0) {
        let last = s.at.saturating_add(s.size - 1);
        for u in s.at / unit..=last / unit {
            let from = s.at.max(u.saturating_mul(unit));
            let to = last.min(u.saturating_mul(unit).saturating_add(unit - 1));
            *weights.entry(u).or_default() += u128::from(to - from + 1) * u128::from(s.count);
        }
    }
    let mut weights: Vec<u128> = weights.into_values().collect();
    weights.sort_unstable_by(|a, b| b.cmp(a));
    let wanted = weights.iter().sum::<u128>().saturating_mul(per_10k.into());
    let mut held = 0u128;
    let enough = weights.iter().take_while(|&&w| {
        let more = held.saturating_mul(10_000) < wanted;
        held += w;
        more
    });
    enough.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_byte_counts_once() {
        let s = |at, size, count| Span { at, size, count };
        let f = Footprint::of(&[s(60, 8, 1), s(0, 4, 9), s(4096, 1, 1), s(9000, 100, 0), s(62, 2, 5)]);
        assert_eq!(f, Footprint { lines: 3, pages: 2, bytes: 13 });
        assert_eq!(Footprint::of(&[s(u64::MAX, 5, 1)]).lines, 1);
        assert_eq!(Footprint::of(&[]), Footprint::default());
    }

    #[test]
    fn the_hottest_units_hold_most_executions() {
        let s = |at, size, count| Span { at, size, count };
        let spans = [s(0, 64, 90), s(64, 64, 9), s(128, 64, 1), s(4096, 64, 0)];
        let of = |per_10k| hottest(&spans, 64, per_10k);
        assert_eq!([of(0), of(9000), of(9001), of(9900), of(10_000)], [0, 1, 2, 2, 3]);
        assert_eq!(hottest(&[s(60, 8, 5)], 64, 10_000), 2, "both that it is in");
        assert_eq!((hottest(&spans, 4096, 9900), hottest(&[], 64, 9900)), (1, 0));
        assert_eq!(hottest(&[s(u64::MAX, 5, 1)], 64, 10_000), 1);
    }

    proptest! {
        #[test]
        fn equals_a_set(spans in prop::collection::vec((0u64..20_000, 0u64..300, 0u64..3), 0..20)) {
            let spans: Vec<Span> = spans.into_iter().map(|(at, size, count)| Span { at, size, count }).collect();
            let set = |unit: u64| {
                let touched = spans.iter().filter(|s| s.count > 0).flat_map(|s| s.at..s.at + s.size);
                touched.map(|b| b / unit).collect::<BTreeSet<_>>().len() as u64
            };
            let f = Footprint::of(&spans);
            prop_assert_eq!((f.lines, f.pages, f.bytes), (set(LINE_BYTES), set(PAGE_BYTES), set(1)));
        }
    }
}
