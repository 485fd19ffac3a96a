//! Predicts the direction of conditional branches, by tables indexed by address and path.

use crate::cpu::Direction;
use addr::Avma;

/// Bits of a tag.
const TAG_BITS: u32 = 11;
/// Highest value of a tagged table's counter. Values in the upper half predict "taken".
const MOST: u8 = 7;
/// Highest value of a counter in the table by address alone.
const BASE_MOST: u8 = 3;
/// Highest value of an entry's usefulness.
const USEFUL: u8 = 3;

/// A direction predictor.
#[derive(Clone, Debug)]
pub(crate) struct Predictor {
    base: Vec<u8>,
    tables: Vec<Table>,
    path: Path,
}

#[derive(Clone, Debug)]
struct Table {
    ways: usize,
    sets: u64,
    entries: Vec<Entry>,
    index: Folded,
    tag: Folded,
}

#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    /// 0 marks an empty entry.
    tag: u16,
    counter: u8,
    useful: u8,
}

/// A ring of the latest taken branches. Each is held as two bits of a hash of its address and destination.
#[derive(Clone, Debug)]
struct Path {
    ring: Vec<u8>,
    at: usize,
}

/// A hash of the last `length` taken branches of a path, folded to `width` bits.
#[derive(Clone, Copy, Debug)]
struct Folded {
    value: u64,
    length: usize,
    width: u32,
}

impl Folded {
    fn new(length: u16, width: u32) -> Self {
        Self { value: 0, length: usize::from(length), width: width.clamp(2, 32) }
    }

    fn rotated(&self, value: u64, by: u32) -> u64 {
        let by = by % self.width;
        ((value << by) | (value >> (self.width - by))) & ((1 << self.width) - 1)
    }

    /// Adds `new` and removes `old`, the branch that is now more than `length` branches back.
    fn push(&mut self, new: u8, old: u8) {
        let gone = u32::try_from(self.length).unwrap_or(0).wrapping_mul(2);
        self.value = self.rotated(self.value, 2) ^ u64::from(new) ^ self.rotated(u64::from(old), gone);
    }
}

impl Path {
    fn back(&self, n: usize) -> u8 {
        let len = self.ring.len();
        self.ring.get((self.at + len - n % len) % len).copied().unwrap_or(0)
    }

    fn push(&mut self, new: u8) {
        self.at = (self.at + 1) % self.ring.len();
        if let Some(place) = self.ring.get_mut(self.at) {
            *place = new;
        }
    }
}

/// Mixes the bits of a number (the finalizer of splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Table {
    fn set(&self, at: Avma) -> usize {
        let set = (mix(at.0) ^ self.index.value) % self.sets;
        usize::try_from(set).unwrap_or(0) * self.ways
    }

    fn tag(&self, at: Avma) -> u16 {
        let tag = (mix(at.0) >> 32 ^ self.tag.value) & ((1 << TAG_BITS) - 1);
        u16::try_from(tag).unwrap_or(0).max(1)
    }

    /// Returns the index of the branch's entry, if the table has one.
    fn find(&self, at: Avma) -> Option<usize> {
        let (set, tag) = (self.set(at), self.tag(at));
        (set..set + self.ways).find(|&i| self.entries.get(i).is_some_and(|e| e.tag == tag))
    }

    /// Makes an entry for the branch in place of an entry with usefulness 0, and returns true. If the set has
    /// none, lowers the usefulness of all entries of the set by 1 and returns false.
    fn learn(&mut self, at: Avma, taken: bool) -> bool {
        let (set, tag) = (self.set(at), self.tag(at));
        let Some(ways) = self.entries.get_mut(set..set + self.ways) else { return false };
        match ways.iter_mut().find(|e| e.useful == 0) {
            Some(free) => {
                *free = Entry { tag, counter: MOST / 2 + u8::from(taken), useful: 0 };
                true
            }
            None => {
                ways.iter_mut().for_each(|e| e.useful -= 1);
                false
            }
        }
    }
}

impl Predictor {
    pub(crate) fn new(shape: &Direction) -> Self {
        let (sets, ways) = (shape.tagged.sets.max(1), shape.tagged.ways.max(1));
        let width = sets.ilog2().max(2);
        let table = |&length: &u16| Table {
            ways: ways as usize,
            sets: u64::from(sets),
            entries: vec![Entry::default(); sets as usize * ways as usize],
            index: Folded::new(length, width),
            tag: Folded::new(length, TAG_BITS),
        };
        let longest = shape.history.iter().copied().max().unwrap_or(0);
        Self {
            base: vec![BASE_MOST / 2; shape.base.max(1) as usize],
            tables: shape.history.iter().map(table).collect(),
            path: Path { ring: vec![0; usize::from(longest) + 1], at: 0 },
        }
    }

    /// Predicts whether the conditional branch at `at` is taken, then trains the predictor with the actual
    /// direction `taken`. Returns the prediction.
    pub(crate) fn predict(&mut self, at: Avma, taken: bool) -> bool {
        let found: Vec<(usize, usize)> =
            self.tables.iter().enumerate().filter_map(|(t, table)| Some((t, table.find(at)?))).collect();
        let bases = self.base.len() as u64;
        let base = usize::try_from(at.0 % bases).unwrap_or(0);
        let of_base = self.base.get(base).is_some_and(|&c| c > BASE_MOST / 2);
        let says = |place: Option<&(usize, usize)>| match place {
            Some(&(t, i)) => self.tables[t].entries[i].counter > MOST / 2,
            None => of_base,
        };
        let said = says(found.last());
        let other = says(found.len().checked_sub(2).and_then(|i| found.get(i)));
        match found.last() {
            Some(&(t, i)) => {
                let e = &mut self.tables[t].entries[i];
                e.counter = counted(e.counter, taken, MOST);
                if said != other {
                    e.useful = counted(e.useful, said == taken, USEFUL);
                }
            }
            None => {
                if let Some(c) = self.base.get_mut(base) {
                    *c = counted(*c, taken, BASE_MOST);
                }
            }
        }
        if said != taken {
            let longer = found.last().map_or(0, |(t, _)| t + 1);
            for table in self.tables.iter_mut().skip(longer) {
                if table.learn(at, taken) {
                    break;
                }
            }
        }
        said
    }

    /// Adds a taken branch of any kind to the path.
    pub(crate) fn passed(&mut self, at: Avma, to: Avma) {
        let new = u8::try_from(mix(at.0 ^ to.0.rotate_left(7)) & 3).unwrap_or(0);
        for table in &mut self.tables {
            for folded in [&mut table.index, &mut table.tag] {
                let old = self.path.back(folded.length.saturating_sub(1));
                folded.push(new, old);
            }
        }
        self.path.push(new);
    }

    /// Returns a hash of the path to here: of as many taken branches as the first table uses.
    pub(crate) fn path(&self) -> u64 {
        self.tables.first().map_or(0, |t| t.tag.value << 32 | t.index.value)
    }
}

fn counted(counter: u8, up: bool, most: u8) -> u8 {
    if up { counter.saturating_add(1).min(most) } else { counter.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ICE_LAKE_SERVER;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_folded_path_depends_on_its_last_branches_alone(
            length in 1u16..40, width in 2u32..14, news in prop::collection::vec(0u8..4, 0..200),
        ) {
            let mut folded = Folded::new(length, width);
            let mut path = Path { ring: vec![0; usize::from(length) + 1], at: 0 };
            for &new in &news {
                folded.push(new, path.back(usize::from(length) - 1));
                path.push(new);
            }
            let mut wanted = 0;
            for &new in &news[news.len().saturating_sub(usize::from(length))..] {
                wanted = folded.rotated(wanted, 2) ^ u64::from(new);
            }
            prop_assert_eq!(folded.value, wanted);
        }
    }

    /// Counts the wrong predictions in the second half of `rounds` repetitions of a pattern.
    fn wrong(pattern: &[bool], rounds: usize) -> usize {
        let mut p = Predictor::new(&ICE_LAKE_SERVER.direction);
        let mut wrong = 0;
        for round in 0..rounds {
            for &taken in pattern {
                let said = p.predict(Avma(0x1234), taken);
                wrong += usize::from(round >= rounds / 2 && said != taken);
                if taken {
                    p.passed(Avma(0x1234), Avma(0x1200));
                }
                // The branch back. Its address depends on the direction that was taken.
                p.passed(Avma(0x1300 + u64::from(taken)), Avma(0x1230));
            }
        }
        wrong
    }

    #[test]
    fn repeated_patterns_are_learned() {
        assert_eq!(wrong(&[true], 100), 0);
        assert_eq!(wrong(&[true, false], 200), 0);
        assert_eq!(wrong(&[true, true, false, true, false, false, false], 400), 0);
    }

    #[test]
    fn random_directions_are_not_learned() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state) & 1 == 1
        };
        let pattern: Vec<bool> = (0..20_000).map(|_| next()).collect();
        let wrong = wrong(&pattern, 2);
        assert!((8_000..12_000).contains(&wrong), "{wrong}");
    }
}
