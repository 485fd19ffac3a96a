//! Which shared memory is worth huge pages.

use addr::{Addr, Avma, AvmaRange};
use image::Mapping;
use splice::HUGE;
use std::ops::Range;

/// Smaller mappings are left alone: a TLB of small pages covers a good part of them. Bytes.
pub(super) const LEAST: u64 = 64 << 20;
/// How many bytes of 2 MiB must have pages: seven eighths. The kernel fills the holes of what it moves, so memory grows
/// by at most a seventh.
const DENSE: u64 = HUGE / 8 * 7;

/// 2 MiB that a huge page can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    pub(super) at: Avma,
    /// Bytes without pages.
    pub(super) holes: u64,
}

impl Unit {
    pub(super) fn range(&self) -> AvmaRange {
        AvmaRange::with_len(self.at, HUGE)
    }
}

/// Returns the mappings that may be large shared memory.
pub(super) fn large(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|m| m.perms.shared && m.perms.w && m.range.len() >= LEAST)
}

/// Returns whether 2 MiB of the file lie at multiples of 2 MiB in memory, without which no huge page can be mapped.
pub(super) fn is_aligned(mapping: &Mapping) -> bool {
    mapping.range.start.0 % HUGE == mapping.offset % HUGE
}

/// Returns the parts of an aligned mapping that nearly all have pages. `pages` are offsets in its file.
pub(super) fn dense(mapping: &Mapping, pages: &[Range<u64>]) -> Vec<Unit> {
    let first = mapping.offset.next_multiple_of(HUGE);
    let end = mapping.offset + mapping.range.len();
    let count = usize::try_from(end.saturating_sub(first) / HUGE).unwrap_or(0);
    let mut in_use = vec![0; count];
    for pages in pages {
        let mut from = pages.start.max(first);
        while from < pages.end {
            let unit = (from - first) / HUGE;
            let to = pages.end.min(first + (unit + 1) * HUGE);
            let Some(bytes) = usize::try_from(unit).ok().and_then(|unit| in_use.get_mut(unit)) else { break };
            *bytes += to - from;
            from = to;
        }
    }
    let start = mapping.range.start.add(first - mapping.offset);
    (0..)
        .zip(in_use)
        .filter(|(_, bytes)| *bytes >= DENSE)
        .map(|(i, bytes)| Unit { at: start.add(i * HUGE), holes: HUGE - bytes })
        .collect()
}

/// Joins neighbours, up to so many, as one range each.
pub(super) fn runs(units: &[Unit], most: usize) -> Vec<AvmaRange> {
    let neighbours = units.chunk_by(|a, b| b.at.since(a.at) == Some(HUGE));
    let parts = neighbours.flat_map(|run| run.chunks(most));
    parts.filter_map(|part| Some(AvmaRange::with_len(part.first()?.at, part.len() as u64 * HUGE))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7f00_0000_0000;

    /// A mapping of shared memory, from this offset in its file.
    fn mapping(start: u64, len: u64, offset: u64) -> Mapping {
        let line = format!("{start:x}-{:x} rw-s {offset:x} 00:01 1028 /dev/zero (deleted)\n", start + len);
        image::maps::parse(&line).unwrap().remove(0)
    }

    #[test]
    fn large_shared_writable_mappings() {
        let maps = "\
7f0000000000-7f0004000000 rw-s 0 00:01 7 /dev/zero (deleted)
7f0010000000-7f0014000000 rw-p 0 00:00 0
7f0020000000-7f0024000000 r--s 0 00:01 8 /memfd:code (deleted)
7f0030000000-7f0033fff000 rw-s 0 00:01 9 /SYSV00000000 (deleted)
7f0040000000-7f0050000000 rw-s 0 00:19 9 /dev/shm/one\n";
        let maps = image::maps::parse(maps).unwrap();
        let found: Vec<u64> = large(&maps).map(|m| m.range.start.0).collect();
        assert_eq!(found, [0x7f00_0000_0000, 0x7f00_4000_0000]);
    }

    #[test]
    fn a_mapping_at_no_multiple_of_a_huge_page() {
        assert!(is_aligned(&mapping(AT, HUGE, 0)));
        assert!(!is_aligned(&mapping(AT + 4096, HUGE, 0)));
        assert!(is_aligned(&mapping(AT + 4096, HUGE, 4096)));
    }

    #[test]
    fn holes_keep_memory_where_it_is() {
        let m = mapping(AT, 4 * HUGE + 4096, 0);
        let sparse = HUGE / 8;
        // Full; an eighth is missing, in two holes; a page more is missing; full, but for the end of the mapping.
        let pages = [
            0..HUGE + 4096,
            HUGE + 4096 + sparse / 2..2 * HUGE - sparse / 2,
            2 * HUGE + sparse + 4096..4 * HUGE + 4096,
        ];
        let unit = |i, holes| Unit { at: Avma(AT + i * HUGE), holes };
        assert_eq!(dense(&m, &pages), [unit(0, 0), unit(1, sparse), unit(3, 0)]);
        assert_eq!(dense(&m, &[]), []);
        assert_eq!(dense(&mapping(AT, 4096, 0), &pages), []);
    }

    #[test]
    fn neighbours_are_moved_by_one_call() {
        let unit = |i: u64| Unit { at: Avma(AT + i * HUGE), holes: 0 };
        let units = [0, 1, 2, 5, 6, 9].map(unit);
        let as_units = |most| {
            runs(&units, most).iter().map(|r| ((r.start.0 - AT) / HUGE, r.len() / HUGE)).collect::<Vec<_>>()
        };
        assert_eq!(as_units(2), [(0, 2), (2, 1), (5, 2), (9, 1)]);
        assert_eq!(as_units(32), [(0, 3), (5, 2), (9, 1)]);
        assert_eq!(runs(&[], 2), []);
    }

    /// By brute force, page by page: a mapping of some MiB from any page of its file on.
    #[test]
    fn each_unit_is_counted() {
        arbtest::arbtest(|u| {
            let (offset, len) = (u.int_in_range(0..=600u64)?, u.int_in_range(1..=2600u64)?);
            let cuts: std::collections::BTreeSet<u64> =
                (0..u.int_in_range(0..=12)?).map(|_| u.int_in_range(0..=3300)).collect::<Result<_, _>>()?;
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let pages: Vec<Range<u64>> =
                cuts.as_chunks::<2>().0.iter().map(|[a, b]| a << 12..b << 12).collect();
            let m = mapping(AT + (offset << 12), len << 12, offset << 12);
            let has = |page: u64| pages.iter().any(|r| r.contains(&(page << 12)));
            let expected: Vec<Unit> = (0..12u64)
                .filter(|unit| unit * 512 >= offset && (unit + 1) * 512 <= offset + len)
                .map(|unit| {
                    let holes = (unit * 512..(unit + 1) * 512).filter(|page| !has(*page)).count() as u64;
                    Unit { at: Avma(AT + unit * HUGE), holes: holes << 12 }
                })
                .filter(|unit| unit.holes <= HUGE / 8)
                .collect();
            assert_eq!(dense(&m, &pages), expected);
            Ok(())
        });
    }
}
