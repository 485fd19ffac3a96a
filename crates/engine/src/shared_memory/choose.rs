//! Which shared memory is worth huge pages.

use addr::{Addr, Avma};
use image::Mapping;
use splice::HUGE;
use tracee::InUse;

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
    /// Bytes in swap space.
    pub(super) swapped: u64,
}

/// What a mapping has.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Bytes with pages.
    pub(super) in_use: u64,
    /// The parts that nearly all have pages.
    pub(super) dense: Vec<Unit>,
}

/// Returns the mappings that may be large shared memory.
pub(super) fn large(maps: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    maps.iter().filter(|m| m.perms.shared && m.perms.w && m.range.len() >= LEAST)
}

/// Returns whether 2 MiB of the file lie at multiples of 2 MiB in memory, without which no huge page can be mapped.
pub(super) fn is_aligned(mapping: &Mapping) -> bool {
    mapping.range.start.0 % HUGE == mapping.offset % HUGE
}

/// Looks through a mapping of a file of this size. Behind its end there is nothing: huge pages there would make it longer.
/// `in_use` tells how much of a part of the file has pages, by offset and length.
///
/// # Errors
/// Errors of `in_use`.
pub(super) fn look<E>(
    mapping: &Mapping,
    size: u64,
    mut in_use: impl FnMut(u64, u64) -> Result<InUse, E>,
) -> Result<Found, E> {
    let mut found = Found { in_use: 0, dense: Vec::new() };
    let (mut from, end) = (mapping.offset, mapping.offset.saturating_add(mapping.range.len()).min(size));
    while from < end {
        // Parts at the ends of the mapping may be smaller.
        let len = (HUGE - from % HUGE).min(end - from);
        let InUse { resident, swapped } = in_use(from, len)?;
        let bytes = resident.saturating_add(swapped).min(len);
        found.in_use += bytes;
        if len == HUGE && bytes >= DENSE {
            let at = mapping.range.start.add(from - mapping.offset);
            found.dense.push(Unit { at, holes: HUGE - bytes, swapped: swapped.min(HUGE) });
        }
        from += len;
    }
    Ok(found)
}

/// Splits off the first units that are neighbours, so many at most.
pub(super) fn neighbours(units: &[Unit], most: usize) -> (&[Unit], &[Unit]) {
    let run = units.chunk_by(|a, b| b.at.since(a.at) == Some(HUGE)).next().map_or(0, <[Unit]>::len);
    units.split_at(run.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

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

    /// Looks through a mapping of a file that has these pages, as offsets.
    fn look_at(mapping: &Mapping, pages: &[Range<u64>]) -> Found {
        let overlap = |r: &Range<u64>, from: u64, to: u64| r.end.min(to).saturating_sub(r.start.max(from));
        let resident = |from, len| pages.iter().map(|r| overlap(r, from, from + len)).sum();
        let found = look(mapping, u64::MAX, |from, len| {
            Ok::<_, ()>(InUse { resident: resident(from, len), swapped: 0 })
        });
        found.unwrap()
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
        let unit = |i, holes| Unit { at: Avma(AT + i * HUGE), holes, swapped: 0 };
        let in_use = 4 * HUGE + 4096 - 2 * sparse - 4096;
        assert_eq!(
            look_at(&m, &pages),
            Found { in_use, dense: vec![unit(0, 0), unit(1, sparse), unit(3, 0)] }
        );
        assert_eq!(look_at(&m, &[]), Found { in_use: 0, dense: Vec::new() });
        assert_eq!(look_at(&mapping(AT, 4096, 0), &pages), Found { in_use: 4096, dense: Vec::new() });
    }

    #[test]
    fn swapped_pages_are_in_use() {
        let m = mapping(AT, HUGE, 0);
        let half = InUse { resident: HUGE / 2, swapped: HUGE / 2 };
        let found = look(&m, u64::MAX, |_, _| Ok::<_, ()>(half)).unwrap();
        assert_eq!(found.dense, [Unit { at: Avma(AT), holes: 0, swapped: HUGE / 2 }]);
        assert_eq!(look(&m, u64::MAX, |_, _| Err(7)), Err(7));
        let found = look(&m, HUGE - 1, |_, len| Ok::<_, ()>(InUse { resident: len, swapped: 0 }));
        assert_eq!(found.unwrap(), Found { in_use: HUGE - 1, dense: Vec::new() });
    }

    #[test]
    fn neighbours_are_split_off() {
        let unit = |i: u64| Unit { at: Avma(AT + i * HUGE), holes: 0, swapped: 0 };
        let units = [0, 1, 2, 5, 6, 9].map(unit);
        assert_eq!(neighbours(&units, 2), units.split_at(2));
        assert_eq!(neighbours(&units, 32), units.split_at(3));
        assert_eq!(neighbours(&units[5..], 32), units[5..].split_at(1));
        assert_eq!(neighbours(&[], 2), (&[][..], &[][..]));
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
                    Unit { at: Avma(AT + unit * HUGE), holes: holes << 12, swapped: 0 }
                })
                .filter(|unit| unit.holes <= HUGE / 8)
                .collect();
            let in_use = (offset..offset + len).filter(|page| has(*page)).count() as u64;
            assert_eq!(look_at(&m, &pages), Found { in_use: in_use << 12, dense: expected });
            Ok(())
        });
    }
}
