//! Chooses the address of a code cache: within reach of its modules, away from regions that grow.

use addr::{Addr, Avma, AvmaRange};

/// Code caches begin at the boundary of a huge page.
pub const ALIGN: u64 = 2 << 20;

/// The end of the addresses at which whet maps memory: without a hint above it the kernel maps nothing there, also with
/// page tables of five levels (Linux, Documentation/arch/x86/x86_64/5level-paging.rst).
pub(crate) const USER_END: Avma = Avma(1 << 47);

/// A 32-bit displacement reaches 2 GiB either way; the rest is a margin for instruction lengths and the bias
/// of `displacement + operand offset` forms.
const REACH: u64 = (2 << 30) - (16 << 20);

/// Room left above the program break: `brk` heaps grow upward, and glibc changes to `mmap` only if they
/// cannot.
const BREAK_ROOM: u64 = 512 << 20;

/// Room left below a stack mapping for its growth beyond the mapping.
const STACK_ROOM: u64 = 256 << 20;

/// How far below libraries a cache is placed. The kernel places mappings from the top down (mmap(2), the
/// default layout of x86-64 Linux). So stacks and heaps of new threads may be mapped right below the
/// libraries while clones are built.
const MAP_ROOM: u64 = 512 << 20;

/// What limits a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// An ordinary mapping.
    Plain,
    /// The program break's mapping (`[heap]`): grows up.
    Heap,
    /// The main stack (`[stack]`): grows down.
    Stack,
    /// A place chosen before, at which something else was mapped meanwhile. It may be free again by now.
    Taken,
}

/// A request for free address space.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// All mappings of the process, and the places that were taken before, by ascending address.
    pub limits: &'a [(AvmaRange, Limit)],
    /// The modules whose code and data the clones refer to.
    pub near: &'a [AvmaRange],
    /// The size. Bytes.
    pub len: u64,
    /// Absolute addresses of the cache must fit a sign-extended 32-bit displacement (non-PIE programs).
    pub low: bool,
}

/// There is no hole of the requested size within reach.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no room for {len} bytes within reach of {near:?}")]
pub struct NoRoom {
    /// The requested size. Bytes.
    pub len: u64,
    /// The hull of the modules.
    pub near: AvmaRange,
}

/// Returns the address for a code cache.
///
/// Prefers the place right below the modules if no other mapping is lower, as below a PIE program: nothing is
/// ever mapped there. Below other modules, the kernel maps more; the preferred place leaves 512 MiB for
/// that. The choice is the free place nearest to the preferred one, but 512 MiB away from each place that was
/// taken before: presumably mappings come and go there. If there is no such place, less distance must do, and
/// in the end a place that was taken.
///
/// # Errors
/// [`NoRoom`].
pub fn place(req: &Request<'_>) -> Result<Avma, NoRoom> {
    let lo = req.near.iter().map(|r| r.start).min().unwrap_or_default();
    let hi = req.near.iter().map(|r| r.end).max().unwrap_or_default();
    let hull = AvmaRange::new(lo, hi);
    let fail = NoRoom { len: req.len, near: hull };
    if req.near.is_empty() || req.len == 0 || req.len > REACH || hull.len() > REACH {
        return Err(fail);
    }
    // The lowest and the highest address of a cache from which every byte reaches every byte of the hull.
    let floor = Avma(hi.0.saturating_sub(REACH).max(1 << 20));
    let mut ceiling = Avma(lo.0.saturating_add(REACH).min(USER_END.0));
    if req.low {
        ceiling = ceiling.min(Avma(1 << 31));
    }
    let (taken, limits): (Vec<_>, Vec<_>) =
        req.limits.iter().copied().partition(|(_, kind)| *kind == Limit::Taken);
    let is_lowest = limits.iter().all(|(m, _)| m.start >= lo);
    let room = if is_lowest { 0 } else { MAP_ROOM };
    let preferred = Avma(lo.0.saturating_sub(req.len).saturating_sub(room));
    // One page stays free on either side, so that no neighbour can be merged with the cache.
    let within = |hole: AvmaRange| {
        let start = hole.start.max(floor).0.saturating_add(4096);
        let end = hole.end.min(ceiling).0.saturating_sub(4096);
        nearest(start, end, req.len, preferred)
    };
    let free: Vec<AvmaRange> = holes(&limits).collect();
    let choose = |holes: Vec<AvmaRange>| {
        holes.into_iter().filter_map(within).min_by_key(|at| at.distance(preferred).unsigned_abs())
    };
    let apart = DISTANCES.into_iter().find_map(|distance| choose(without(free.clone(), &taken, distance)));
    apart.or_else(|| choose(free)).ok_or(fail)
}

/// How far from the places taken before a place is sought, one after the other.
const DISTANCES: [u64; 5] = [MAP_ROOM, MAP_ROOM / 4, MAP_ROOM / 16, MAP_ROOM / 64, 0];

/// Removes from free ranges what is not farther than `distance` from a place taken before.
fn without(free: Vec<AvmaRange>, taken: &[(AvmaRange, Limit)], distance: u64) -> Vec<AvmaRange> {
    taken.iter().fold(free, |free, (taken, _)| {
        let from = Avma(taken.start.0.saturating_sub(distance));
        let to = Avma(taken.end.0.saturating_add(distance));
        let around =
            |r: AvmaRange| [AvmaRange::new(r.start, r.end.min(from)), AvmaRange::new(r.start.max(to), r.end)];
        free.into_iter().flat_map(around).filter(|r| r.start < r.end).collect()
    })
}

/// Returns the free ranges, without those into which the heap and the stack may grow.
fn holes(limits: &[(AvmaRange, Limit)]) -> impl Iterator<Item = AvmaRange> {
    let last = (AvmaRange::new(USER_END, USER_END), Limit::Plain);
    let (mut prev_end, mut prev_kind) = (Avma(0), Limit::Plain);
    limits.iter().copied().chain([last]).map(move |(range, kind)| {
        let (mut start, mut end) = (prev_end, range.start);
        let full = end.0.saturating_sub(start.0);
        if prev_kind == Limit::Heap {
            start = Avma(start.0.saturating_add(BREAK_ROOM.min(full / 2)));
        }
        if kind == Limit::Stack {
            end = Avma(end.0.saturating_sub(STACK_ROOM.min(full / 2)));
        }
        if range.end > prev_end {
            (prev_end, prev_kind) = (range.end, kind);
        }
        AvmaRange::new(start, end.max(start))
    })
}

/// Returns the aligned place in `start..end` nearest to the preferred one.
fn nearest(start: u64, end: u64, len: u64, preferred: Avma) -> Option<Avma> {
    let lowest = start.checked_add(ALIGN - 1)? & !(ALIGN - 1);
    let highest = end.checked_sub(len)? & !(ALIGN - 1);
    (lowest <= highest).then(|| Avma((preferred.0 & !(ALIGN - 1)).clamp(lowest, highest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn r(a: u64, b: u64) -> AvmaRange {
        AvmaRange::new(Avma(a), Avma(b))
    }

    const EXE: AvmaRange = AvmaRange { start: Avma(0x5555_5555_4000), end: Avma(0x5555_5600_0000) };
    const STACK: (AvmaRange, Limit) =
        (AvmaRange { start: Avma(0x7fff_f000_0000), end: Avma(0x7fff_f100_0000) }, Limit::Stack);

    #[test]
    fn pie_goes_right_below() {
        let maps = [
            (EXE, Limit::Plain),
            (r(0x5555_5700_0000, 0x5555_5800_0000), Limit::Heap),
            (r(0x7fff_f000_0000, 0x7fff_f100_0000), Limit::Plain),
        ];
        let at = place(&Request { limits: &maps, near: &[EXE], len: 4 << 20, low: false }).unwrap();
        assert_eq!(at, Avma(0x5555_5500_0000));
    }

    #[test]
    fn libraries_leave_the_kernel_room_for_mappings() {
        let libs = r(0x7f00_4000_0000, 0x7f00_4400_0000);
        let stack = r(0x7f00_3f80_0000, 0x7f00_4000_0000);
        let mut maps = vec![(EXE, Limit::Plain), (stack, Limit::Plain), (libs, Limit::Plain)];
        let len = 4 << 20;
        // Later caches lie beside earlier ones.
        for _ in 0..40 {
            let at = place(&Request { limits: &maps, near: &[libs], len, low: false }).unwrap();
            let got = AvmaRange::with_len(at, len);
            assert!(maps.iter().all(|(m, _)| !m.overlaps(&got)), "{at}");
            let below = libs.start.since(got.end).unwrap();
            assert!((MAP_ROOM / 2..2 * MAP_ROOM).contains(&below), "{below:#x}");
            maps.push((got, Limit::Plain));
            maps.sort_by_key(|m| m.0.start);
        }
    }

    /// Returns four places of 4 MiB, each chosen after something was mapped at all of those before.
    fn places(maps: &[(AvmaRange, Limit)], near: AvmaRange, low: bool) -> Vec<AvmaRange> {
        let (mut maps, mut places) = (maps.to_vec(), Vec::new());
        for _ in 0..4 {
            let at = place(&Request { limits: &maps, near: &[near], len: 4 << 20, low }).unwrap();
            let got = AvmaRange::with_len(at, 4 << 20);
            places.push(got);
            maps.push((got, Limit::Taken));
            maps.sort_by_key(|m| m.0.start);
        }
        places
    }

    /// Returns the shortest distance between two ranges. Bytes.
    fn least_distance(places: &[AvmaRange]) -> u64 {
        let mut sorted = places.to_vec();
        sorted.sort_by_key(|r| r.start);
        sorted.windows(2).map(|w| w[1].start.since(w[0].end).unwrap_or(0)).min().unwrap()
    }

    #[test]
    fn places_that_were_taken_are_left_far_behind() {
        let libs = r(0x7f00_4000_0000, 0x7f00_4400_0000);
        let maps = [
            (EXE, Limit::Plain),
            (r(0x7f00_3f80_0000, 0x7f00_4000_0000), Limit::Plain),
            (libs, Limit::Plain),
            STACK,
        ];
        for near in [libs, EXE] {
            let places = places(&maps, near, false);
            assert!(least_distance(&places) >= MAP_ROOM - ALIGN, "{places:?}");
        }
        // A non-PIE program: there is no room below it, and none above 2 GiB.
        let exe = r(0x40_0000, 0x80_0000);
        let low = places(&[(exe, Limit::Plain), (r(0x120_0000, 0x140_0000), Limit::Heap), STACK], exe, true);
        assert!(least_distance(&low) >= MAP_ROOM / 4 - ALIGN, "{low:?}");
    }

    #[test]
    fn a_place_that_was_taken_counts_only_near_it() {
        let libs = r(0x7f00_4000_0000, 0x7f00_4400_0000);
        let maps = [(EXE, Limit::Plain), (libs, Limit::Plain), STACK];
        let far = [maps[0], (r(0x7f00_2000_0000, 0x7f00_2040_0000), Limit::Taken), maps[1], STACK];
        assert_eq!(places(&far, EXE, false), places(&maps, EXE, false));
        assert_ne!(places(&far, libs, false)[0], places(&maps, libs, false)[0]);
    }

    #[test]
    fn the_only_free_place_is_chosen_again() {
        let libs = r(0x7f00_4000_0000, 0x7f00_4400_0000);
        let hole = r(0x7f00_3000_0000, 0x7f00_3080_0000);
        let maps = [
            (r(0x1000, hole.start.0), Limit::Plain),
            (r(hole.end.0, libs.start.0), Limit::Plain),
            (libs, Limit::Plain),
            (r(libs.end.0, USER_END.0), Limit::Plain),
        ];
        let places = places(&maps, libs, false);
        assert!(places.iter().all(|place| *place == places[0] && hole.contains(place.start)), "{places:?}");
    }

    #[test]
    fn non_pie_leaves_the_heap_room_and_stays_low() {
        let exe = r(0x40_0000, 0x80_0000);
        let maps = [
            (exe, Limit::Plain),
            (r(0x120_0000, 0x140_0000), Limit::Heap),
            (r(0x7fff_f000_0000, 0x7fff_f100_0000), Limit::Plain),
        ];
        let at = place(&Request { limits: &maps, near: &[exe], len: 4 << 20, low: true }).unwrap();
        assert!(at >= Avma(0x80_0000));
        let after_heap = at.0 >= 0x140_0000 + BREAK_ROOM;
        let before_heap = at.0 + (4 << 20) <= 0x120_0000;
        assert!(after_heap || before_heap, "{at}");
        assert!(at.0 + (4 << 20) <= 1 << 31);
    }

    #[test]
    fn nothing_within_reach_is_said() {
        let exe = r(0x1_0000_0000, 0x1_1000_0000);
        let wall = [
            (r(0x1000, 0x1_0000_0000), Limit::Plain),
            (exe, Limit::Plain),
            (r(0x1_1000_0000, 0x10_0000_0000), Limit::Plain),
        ];
        assert!(place(&Request { limits: &wall, near: &[exe], len: 4096, low: false }).is_err());
    }

    proptest! {
        /// In any address space, whatever was taken before, the place is free, aligned and within reach.
        #[test]
        fn always_sound(
            gaps in prop::collection::vec((1u64..3000, 1u64..3000), 1..20),
            taken in prop::collection::vec((0u64..60_000, 1u64..2000), 0..4),
            pick in 0usize..20,
            len in 1u64..64,
        ) {
            let mut at = 0x10_0000_0000u64;
            let mut maps: Vec<_> = gaps.iter().map(|&(gap, size)| {
                let start = at + gap * (1 << 20);
                at = start + size * (1 << 20);
                (r(start, at), Limit::Plain)
            }).collect();
            let near = maps[pick % maps.len()].0;
            maps.extend(taken.iter().map(|&(at, size)| {
                let at = Avma(0x10_0000_0000 + at * (1 << 20));
                (AvmaRange::with_len(at, size << 20), Limit::Taken)
            }));
            maps.sort_by_key(|m| m.0.start);
            let len = len << 20;
            if let Ok(at) = place(&Request { limits: &maps, near: &[near], len, low: false }) {
                let got = AvmaRange::with_len(at, len);
                prop_assert_eq!(at.0 % ALIGN, 0);
                let is_apart = |kind| maps.iter().all(|(m, k)| *k != kind || !m.overlaps(&got));
                prop_assert!(is_apart(Limit::Plain));
                // A place that was taken is chosen only if there is no other.
                let all_plain: Vec<_> = maps.iter().map(|(m, _)| (*m, Limit::Plain)).collect();
                let another = place(&Request { limits: &all_plain, near: &[near], len, low: false });
                prop_assert!(is_apart(Limit::Taken) || another.is_err());
                prop_assert!(got.end.distance(near.start).unsigned_abs() < 2 << 30);
                prop_assert!(near.end.distance(got.start).unsigned_abs() < 2 << 30);
            }
        }
    }
}
