//! Sets of addresses.

use addr::{Avma, AvmaRange};

/// The union of some ranges, as the smallest number of disjoint rising ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ranges(Vec<AvmaRange>);

impl FromIterator<AvmaRange> for Ranges {
    fn from_iter<I: IntoIterator<Item = AvmaRange>>(ranges: I) -> Self {
        let mut ranges: Vec<AvmaRange> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        ranges.sort_unstable();
        let mut union: Vec<AvmaRange> = Vec::new();
        for r in ranges {
            match union.last_mut() {
                Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
                _ => union.push(r),
            }
        }
        Self(union)
    }
}

impl Ranges {
    /// Returns whether an address is in the set.
    #[must_use]
    pub fn contains(&self, at: Avma) -> bool {
        let after = self.0.partition_point(|r| r.start <= at);
        after.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(|r| r.contains(at))
    }

    /// Returns whether any byte of a range is in the set.
    #[must_use]
    pub fn overlaps(&self, range: AvmaRange) -> bool {
        let after = self.0.partition_point(|r| r.end <= range.start);
        self.0.get(after).is_some_and(|r| r.overlaps(&range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_contains_its_ranges() {
        let all = [(8u64, 12), (2, 4), (9, 10), (4, 5), (20, 20), (12, 13)];
        let range = |(from, to): (u64, u64)| AvmaRange::new(Avma(from), Avma(to));
        let union: Ranges = all.into_iter().map(range).collect();
        assert_eq!(union.0, [range((2, 5)), range((8, 13))]);
        let inside = |at| all.iter().any(|&r| range(r).contains(Avma(at)));
        for at in 0..24 {
            assert_eq!(union.contains(Avma(at)), inside(at), "{at}");
            for len in 0..8 {
                let any = (at..at + len).any(inside);
                assert_eq!(union.overlaps(AvmaRange::with_len(Avma(at), len)), any, "{at}+{len}");
            }
        }
    }
}
