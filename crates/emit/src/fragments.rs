//! The address ranges of a clone's bytes.
//!
//! The state problem: a clone is one sequence of instructions, but its hot blocks lie among other functions'
//! hot blocks and its warm blocks lie elsewhere. Rule: a *position* counts the bytes of the clone, fragment
//! after fragment. Statements about the sequence use positions, and statements about the process use
//! addresses. Only this type converts between them. The first byte of a fragment and the end of the fragment
//! before it share a position but have two addresses. A position always means the byte that is there.

use addr::{Addr, Avma, AvmaRange};

/// The runs of bytes that make up a clone, in the order of its blocks. None is empty and none overlap. The
/// clone is entered at the start of the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fragments {
    first: AvmaRange,
    others: Vec<AvmaRange>,
}

impl Fragments {
    /// Accepts ranges in the order of the clone's bytes. Returns `None` if there are none, if any are empty
    /// or overlap, or if their sum reaches 4 GiB.
    #[must_use]
    pub fn new(ranges: &[AvmaRange]) -> Option<Self> {
        let (first, others) = ranges.split_first()?;
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        let apart = sorted.windows(2).all(|w| w[0].end <= w[1].start);
        let len = ranges.iter().try_fold(0u64, |sum, r| sum.checked_add(r.len()))?;
        let sound = apart && ranges.iter().all(|r| r.start < r.end) && u32::try_from(len).is_ok();
        sound.then(|| Self { first: *first, others: others.to_vec() })
    }

    /// Returns the address at which the clone is entered.
    #[must_use]
    pub fn start(&self) -> Avma {
        self.first.start
    }

    /// Returns all ranges, in the order of the clone's bytes.
    pub fn ranges(&self) -> impl Iterator<Item = AvmaRange> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// Returns the ranges, each with the position of its first byte.
    pub fn with_positions(&self) -> impl Iterator<Item = (u32, AvmaRange)> {
        let mut at = 0u32;
        self.ranges().map(move |r| {
            let from = at;
            at = at.saturating_add(u32::try_from(r.len()).unwrap_or(u32::MAX));
            (from, r)
        })
    }

    /// Returns the sum of all sizes. Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.ranges().map(|r| r.len()).sum()
    }

    /// Returns whether a byte of the clone lies at `at`.
    #[must_use]
    pub fn contains(&self, at: Avma) -> bool {
        self.ranges().any(|r| r.contains(at))
    }

    /// Returns the address of the byte at a position. Positions behind the last byte continue from there.
    #[must_use]
    pub fn address(&self, position: u32) -> Avma {
        let (from, range) =
            self.with_positions().take_while(|(from, _)| *from <= position).last().unwrap_or((0, self.first));
        range.start.add(u64::from(position - from))
    }

    /// Returns the position of the byte at an address; `None` outside the clone.
    #[must_use]
    pub fn position(&self, at: Avma) -> Option<u32> {
        let (from, range) = self.with_positions().find(|(_, r)| r.contains(at))?;
        from.checked_add(u32::try_from(at.since(range.start)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AvmaRange {
        AvmaRange::new(Avma(start), Avma(end))
    }

    #[test]
    fn positions_and_addresses() {
        // The second fragment lies below the first.
        let f = Fragments::new(&[range(0x9000, 0x9004), range(0x8000, 0x8002)]).unwrap();
        let at = [0x9000, 0x9001, 0x9002, 0x9003, 0x8000, 0x8001];
        for (position, at) in (0..).zip(at) {
            assert_eq!((f.address(position), f.position(Avma(at))), (Avma(at), Some(position)));
            assert!(f.contains(Avma(at)));
        }
        for outside in [0x7fff, 0x8002, 0x8fff, 0x9004] {
            assert_eq!((f.position(Avma(outside)), f.contains(Avma(outside))), (None, false));
        }
        assert_eq!((f.start(), f.size(), f.address(6)), (Avma(0x9000), 6, Avma(0x8002)));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        assert!(Fragments::new(&[]).is_none());
        assert!(Fragments::new(&[range(5, 5)]).is_none(), "empty");
        assert!(Fragments::new(&[range(5, 9), range(2, 6)]).is_none(), "overlapping");
        assert!(Fragments::new(&[range(5, 9), range(9, 10)]).is_some(), "touching");
        assert!(Fragments::new(&[range(0, 1 << 31), range(1 << 31, 1 << 32)]).is_none(), "too large");
    }
}
