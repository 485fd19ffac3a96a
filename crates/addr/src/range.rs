//! Half-open address ranges.

use crate::{Addr, Avma, Svma};
use std::fmt;

/// The addresses `start..end`; empty if `end <= start`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct AddrRange<A> {
    /// The first address inside the range.
    pub start: A,
    /// The first address after the range.
    pub end: A,
}

/// A range of process addresses.
pub type AvmaRange = AddrRange<Avma>;
/// A range of a file's stated addresses.
pub type SvmaRange = AddrRange<Svma>;

impl<A: Addr> AddrRange<A> {
    /// Returns the range `start..end`.
    pub fn new(start: A, end: A) -> Self {
        Self { start, end }
    }

    /// Returns the range of `len` bytes from `start`, cut off at the end of the address space.
    pub fn with_len(start: A, len: u64) -> Self {
        Self { start, end: A::from_raw(start.raw().saturating_add(len)) }
    }

    /// Returns the size in bytes; 0 for an empty range.
    pub fn len(&self) -> u64 {
        self.end.raw().saturating_sub(self.start.raw())
    }

    /// Returns whether the range contains no address.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Returns whether `at` is inside the range.
    pub fn contains(&self, at: A) -> bool {
        self.start <= at && at < self.end
    }

    /// Returns whether all of `other` is inside. A range `at..at`, without bytes, counts as inside if `at` is
    /// inside or is the end.
    pub fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns whether some address is in both ranges.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end && !self.is_empty() && !other.is_empty()
    }
}

impl<A: fmt::Debug> fmt::Debug for AddrRange<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}..{:?}", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(a: u64, b: u64) -> AvmaRange {
        AvmaRange::new(Avma(a), Avma(b))
    }

    #[test]
    fn half_open() {
        assert!(r(4, 8).contains(Avma(4)));
        assert!(!r(4, 8).contains(Avma(8)));
        assert!(!r(4, 8).overlaps(&r(8, 9)));
        assert!(r(4, 8).overlaps(&r(7, 9)));
        assert!(!r(4, 8).overlaps(&r(6, 6)));
        assert!(r(4, 8).covers(&r(4, 8)));
        assert_eq!(r(8, 4).len(), 0);
        assert_eq!(AvmaRange::with_len(Avma(u64::MAX - 1), 16).len(), 1);
    }
}
