//! The relation between clone instructions and original instructions.
//!
//! The state problem: a thread, a return address, a sample or an unwind rule refers to one instruction of one
//! copy, and must be carried to the other copy. The relation is not a plain bijection. [`Link`] names the
//! cases: most instructions are in both copies; jumps and counters may be in the clone only; a jump may be in
//! the original only; some instructions are in the clone more than once.
//!
//! Rules: from clone to original, an extra instruction maps to the instruction to which it leads. From
//! original to clone, a dropped jump maps to the place to which it would lead, and an instruction with
//! several copies maps to the first. Both are right because the state is the same on either side of a jump,
//! and a counter changes nothing that the program reads.

use crate::Fragments;
use addr::Avma;
use rustc_hash::FxHashSet;

/// The relation between the two sides of an [`Entry`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Link {
    /// The clone instruction is the copy of the original one.
    Copy,
    /// A jump or counter of the clone only; `original` is the instruction to which it leads.
    Extra,
    /// A jump of the original only. The clone's side is the place to which it would lead, and has no bytes
    /// for it. Or: a call of the original whose callee is inlined. The clone's side is then the start of the
    /// inlined code.
    Dropped,
    /// A further copy of an original instruction that is in a [`Link::Copy`] as well.
    Again,
    /// A part of the code for the call at `original`, behind the first instruction of that code. Control
    /// reaches it only from the instruction before it, or, for an out-of-line call, from jumps within this
    /// code. No original instruction has its state.
    Within,
}

/// One instruction of a clone, of its original, or of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Position of the clone instruction in the clone. Bytes.
    pub at: u32,
    /// The original instruction.
    pub original: Avma,
    /// The relation between the two.
    pub link: Link,
    /// Whether a thread may be moved between the two at this instruction. False between the read of a cloned
    /// jump table and the jump: a register then holds an address of one copy.
    pub movable: bool,
}

/// The instructions of one clone and of its original.
///
/// INVARIANT(one-to-one): entries rise by `at`. Only dropped ones share their position, with the entry that
/// follows them. An entry is at the start of each fragment. No original instruction is in two entries that
/// are copies or dropped. Each further copy also has an entry that is a copy. Both the builder and the parser
/// enforce this.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressMap {
    fragments: Fragments,
    entries: Vec<Entry>,
    /// Indices in `entries` of the copies and dropped ones, by rising original address.
    by_original: Vec<u32>,
}

impl AddressMap {
    /// Accepts entries in clone order; returns `None` if they break the invariant above.
    #[must_use]
    pub(crate) fn new(fragments: Fragments, entries: Vec<Entry>) -> Option<Self> {
        let len = u32::try_from(fragments.size()).ok()?;
        let mut open = true;
        let mut next = 0;
        for e in &entries {
            // `next` is the position of the previous entry. The same position is valid only if that entry has
            // no bytes.
            let rises = if open { e.at == next } else { e.at > next };
            if !rises || e.at >= len {
                return None;
            }
            open = e.link == Link::Dropped;
            next = e.at;
        }
        let begun = |at: u32| entries.binary_search_by_key(&at, |e| e.at).is_ok();
        if open || !fragments.with_positions().all(|(at, _)| begun(at)) {
            return None;
        }
        let mut by_original: Vec<u32> = Vec::with_capacity(entries.len());
        for (i, e) in entries.iter().enumerate() {
            if matches!(e.link, Link::Copy | Link::Dropped) {
                by_original.push(u32::try_from(i).ok()?);
            }
        }
        by_original.sort_unstable_by_key(|&i| entries[i as usize].original);
        let unique = by_original
            .windows(2)
            .all(|w| entries[w[0] as usize].original != entries[w[1] as usize].original);
        let map = Self { fragments, entries, by_original };
        let is_copied = |e: &&Entry| map.by_original(e.original).is_some_and(|c| c.link == Link::Copy);
        let again_ok = map.entries.iter().filter(|e| e.link == Link::Again).all(|e| is_copied(&e));
        (unique && again_ok).then_some(map)
    }

    /// Returns the address ranges of the clone's bytes.
    #[must_use]
    pub fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    /// Returns all entries in clone order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the entries of the clone instruction at `clone`: dropped ones that lead there, then its own.
    /// The slice is empty if no instruction of the clone starts there.
    #[must_use]
    pub fn entries_at(&self, clone: Avma) -> &[Entry] {
        let Some(at) = self.fragments.position(clone) else { return &[] };
        let (from, to) = (self.first_from(at), self.entries.partition_point(|e| e.at <= at));
        self.entries.get(from..to).unwrap_or_default()
    }

    /// Returns whether the entry at this index of [`AddressMap::entries`] is the out-of-line call of an
    /// inlined callee's rest. Such a call belongs to the code for a call, but lies apart from it.
    #[must_use]
    pub fn is_aside(&self, place: usize) -> bool {
        let Some((e, before)) = self.entries.get(..=place).and_then(<[Entry]>::split_last) else {
            return false;
        };
        let same = |b: &&Entry| b.original == e.original;
        let goes_on = match before.last().filter(same) {
            Some(last) if last.link == Link::Extra => {
                // A guard's comparison, or a jump to the call from the code before it.
                !before.iter().filter(same).any(|b| matches!(b.link, Link::Within | Link::Dropped))
            }
            last => last.is_some(),
        };
        e.link == Link::Within && !goes_on
    }

    /// Returns whether the entry at this index of [`AddressMap::entries`] is a guard's comparison: no instruction of the
    /// original, but as often executed as the call at its original address.
    #[must_use]
    pub fn is_guard(&self, place: usize) -> bool {
        let Some([e, next]) = self.entries.get(place..).and_then(<[Entry]>::first_chunk) else {
            return false;
        };
        let goes_on = next.link == Link::Within && next.original == e.original;
        e.link == Link::Extra && goes_on && !self.is_aside(place + 1)
    }

    /// Returns the entries that control reaches while guards hold and inlined paths are not left. Behind them, at the
    /// clone's end, is the code for the other cases.
    #[must_use]
    pub fn in_line(&self) -> &[Entry] {
        let is_within = |e: &&Entry| e.link == Link::Within;
        let changed: FxHashSet<Avma> = self.entries.iter().filter(is_within).map(|e| e.original).collect();
        let is_guarded_call = |e: &Entry| e.link == Link::Copy && changed.contains(&e.original);
        let mut places = self.entries.iter().enumerate();
        let end = places.position(|(place, e)| is_guarded_call(e) || self.is_aside(place));
        self.entries.get(..end.unwrap_or(self.entries.len())).unwrap_or_default()
    }

    /// Returns the clone address that stands for the original instruction at `original`; `None` if no cloned
    /// instruction is there.
    #[must_use]
    pub fn to_clone(&self, original: Avma) -> Option<Avma> {
        self.by_original(original).map(|e| self.fragments.address(e.at))
    }

    /// Returns the original instruction for which the clone instruction at `clone` stands. Returns `None`
    /// also inside the code for an inlined or guarded call.
    #[must_use]
    pub fn to_original(&self, clone: Avma) -> Option<Avma> {
        self.at_clone(clone).filter(|e| e.link != Link::Within).map(|e| e.original)
    }

    /// Works like [`AddressMap::to_original`] for an address anywhere in a clone instruction; used for
    /// samples and symbolizers.
    #[must_use]
    pub fn original_of_interior(&self, clone: Avma) -> Option<Avma> {
        self.covering(clone).map(|e| e.original)
    }

    /// Returns the clone address at which a thread may continue that is about to execute the original
    /// instruction at `original`; `None` if there is no such address.
    #[must_use]
    pub fn move_to_clone(&self, original: Avma) -> Option<Avma> {
        let e = self.by_original(original).filter(|e| e.movable)?;
        Some(self.fragments.address(e.at))
    }

    /// Returns the original address at which a thread may continue that is about to execute the clone
    /// instruction at `clone`.
    #[must_use]
    pub fn move_to_original(&self, clone: Avma) -> Option<Avma> {
        self.at_clone(clone).filter(|e| e.movable).map(|e| e.original)
    }

    fn by_original(&self, original: Avma) -> Option<&Entry> {
        let i =
            self.by_original.binary_search_by_key(&original, |&i| self.entries[i as usize].original).ok()?;
        Some(&self.entries[self.by_original[i] as usize])
    }

    /// Returns the entry whose bytes hold `clone`. This is never a dropped entry, as another entry follows at
    /// the same position.
    fn covering(&self, clone: Avma) -> Option<&Entry> {
        let at = self.fragments.position(clone)?;
        let after = self.entries.partition_point(|e| e.at <= at);
        self.entries.get(after.checked_sub(1)?)
    }

    fn at_clone(&self, clone: Avma) -> Option<&Entry> {
        self.entries_at(clone).last()
    }

    /// Returns the index of the first entry at or behind a position.
    fn first_from(&self, position: u32) -> usize {
        self.entries.partition_point(|e| e.at < position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::AvmaRange;

    fn fragments(ranges: &[(u64, u64)]) -> Fragments {
        let ranges: Vec<_> = ranges.iter().map(|&(a, b)| AvmaRange::new(Avma(a), Avma(b))).collect();
        Fragments::new(&ranges).unwrap()
    }

    fn entry(at: u32, original: u64, link: Link, movable: bool) -> Entry {
        Entry { at, original: Avma(original), link, movable }
    }

    #[test]
    fn out_of_line_calls_are_recognized() {
        use Link::{Copy, Dropped, Extra, Within};
        let all = [
            // A guard with a body; a call with a body; the last block's jump to the latter.
            (0, 0x100, Extra, false),
            (7, 0x100, Within, false),
            (13, 0x105, Dropped, false),
            (13, 0x105, Within, false),
            (15, 0x105, Within, false),
            (20, 0x10a, Copy, false),
            (21, 0x105, Extra, false),
            // Calls of rests for both, with jumps back, and the original call.
            (26, 0x105, Within, true),
            (31, 0x10a, Extra, false),
            (36, 0x100, Within, true),
            (41, 0x105, Extra, false),
            (46, 0x105, Within, true),
            (51, 0x10a, Extra, false),
            (56, 0x100, Copy, false),
        ];
        let entries = all.iter().map(|&(at, original, link, _)| entry(at, original, link, false)).collect();
        let map = AddressMap::new(fragments(&[(0x9000, 0x9040)]), entries).unwrap();
        for (i, (at, _, _, aside)) in all.into_iter().enumerate() {
            assert_eq!(map.is_aside(i), aside, "{at}");
            assert_eq!(map.is_guard(i), i == 0, "{at}");
        }
        assert!(!map.is_aside(99));
        assert_eq!(map.in_line(), &map.entries()[..7]);
    }

    #[test]
    fn the_original_call_behind_a_guard_is_not_in_line() {
        use Link::{Copy, Extra, Within};
        let all = [
            (0, 0x100, Extra),
            (7, 0x100, Within),
            (13, 0x100, Within),
            (18, 0x105, Copy),
            (20, 0x100, Copy),
        ];
        let entries = all.into_iter().map(|(at, original, link)| entry(at, original, link, true)).collect();
        let map = AddressMap::new(fragments(&[(0x9000, 0x9020)]), entries).unwrap();
        assert_eq!(map.in_line(), &map.entries()[..4]);
        assert_eq!(sample().in_line(), sample().entries());
    }

    fn sample() -> AddressMap {
        AddressMap::new(
            fragments(&[(0x9000, 0x900c)]),
            vec![
                entry(0, 0x100, Link::Copy, true),
                entry(4, 0x120, Link::Dropped, true),
                entry(4, 0x110, Link::Copy, false),
                entry(7, 0x104, Link::Extra, true),
            ],
        )
        .unwrap()
    }

    #[test]
    fn both_ways() {
        let m = sample();
        assert_eq!(m.to_clone(Avma(0x100)), Some(Avma(0x9000)));
        assert_eq!(m.to_clone(Avma(0x110)), Some(Avma(0x9004)));
        assert_eq!(m.to_clone(Avma(0x120)), Some(Avma(0x9004)), "a dropped jump is where it leads");
        assert_eq!(m.to_clone(Avma(0x104)), None, "an extra jump is no copy of what it leads to");
        assert_eq!(m.to_original(Avma(0x9004)), Some(Avma(0x110)));
        assert_eq!(m.to_original(Avma(0x9007)), Some(Avma(0x104)));
        assert_eq!(m.to_original(Avma(0x9005)), None);
        assert_eq!(m.original_of_interior(Avma(0x9005)), Some(Avma(0x110)));
        assert_eq!(m.original_of_interior(Avma(0x900b)), Some(Avma(0x104)));
        assert_eq!(m.original_of_interior(Avma(0x900c)), None);
        assert_eq!(m.original_of_interior(Avma(0x8fff)), None);
    }

    #[test]
    fn unmovable_instructions_are_not_moved() {
        let m = sample();
        assert_eq!(m.move_to_clone(Avma(0x110)), None);
        assert_eq!(m.move_to_original(Avma(0x9004)), None);
        assert_eq!(m.move_to_clone(Avma(0x120)), Some(Avma(0x9004)));
        assert_eq!(m.move_to_original(Avma(0x9000)), Some(Avma(0x100)));
    }

    #[test]
    fn broken_maps_are_rejected() {
        let r = || fragments(&[(0x9000, 0x9008)]);
        let c = |at, o| entry(at, o, Link::Copy, true);
        assert!(AddressMap::new(r(), vec![]).is_none(), "bytes without instruction");
        assert!(AddressMap::new(r(), vec![c(1, 0x100)]).is_none(), "a gap at the start");
        assert!(AddressMap::new(r(), vec![c(0, 0x100), c(0, 0x101)]).is_none(), "two at one place");
        assert!(AddressMap::new(r(), vec![c(0, 0x100), c(2, 0x100)]).is_none(), "one original twice");
        let again = |at, o| entry(at, o, Link::Again, true);
        assert!(AddressMap::new(r(), vec![c(0, 0x100), again(2, 0x101)]).is_none(), "again without a copy");
        let twice = AddressMap::new(r(), vec![c(0, 0x100), again(2, 0x100)]).unwrap();
        assert_eq!(twice.to_clone(Avma(0x100)), Some(Avma(0x9000)));
        assert_eq!(twice.to_original(Avma(0x9002)), Some(Avma(0x100)));
        assert!(AddressMap::new(r(), vec![c(0, 0x100), c(8, 0x101)]).is_none(), "outside");
        let dropped = entry(4, 0x101, Link::Dropped, true);
        assert!(AddressMap::new(r(), vec![c(0, 0x100), dropped]).is_none(), "leads nowhere");
        assert!(AddressMap::new(r(), vec![c(0, 0x100), dropped, c(5, 0x102)]).is_none(), "not its place");
        let two = fragments(&[(0x9000, 0x9004), (0x8000, 0x8004)]);
        assert!(
            AddressMap::new(two, vec![c(0, 0x100), c(3, 0x101)]).is_none(),
            "an instruction in two fragments"
        );
    }

    #[test]
    fn both_ways_in_two_fragments() {
        let m = AddressMap::new(
            fragments(&[(0x9000, 0x9006), (0x8000, 0x8005)]),
            vec![
                entry(0, 0x100, Link::Copy, true),
                entry(4, 0x110, Link::Extra, true),
                entry(6, 0x120, Link::Dropped, true),
                entry(6, 0x110, Link::Copy, true),
                entry(9, 0x104, Link::Extra, true),
            ],
        )
        .unwrap();
        let ways = [(0x100, 0x9000), (0x120, 0x8000), (0x110, 0x8000)];
        for (original, clone) in ways {
            assert_eq!(m.to_clone(Avma(original)), Some(Avma(clone)));
        }
        let back = [(0x9000, 0x100), (0x9004, 0x110), (0x8000, 0x110), (0x8003, 0x104)];
        for (clone, original) in back {
            assert_eq!(m.to_original(Avma(clone)), Some(Avma(original)));
            assert_eq!(m.original_of_interior(Avma(clone + 1)), Some(Avma(original)));
        }
        for outside in [0x9006, 0x7fff, 0x8005, 0x8fff] {
            assert_eq!((m.to_original(Avma(outside)), m.original_of_interior(Avma(outside))), (None, None));
        }
        assert_eq!(m.entries_at(Avma(0x8000)).len(), 2);
    }
}
