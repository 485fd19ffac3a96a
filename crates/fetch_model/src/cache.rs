//! A set-associative cache with least-recently-used replacement.

use crate::Geometry;

/// Values by key. The ways of a set are ordered by their last use, the most recent first.
#[derive(Clone, Debug)]
pub(crate) struct Cache<V> {
    sets: u64,
    ways: usize,
    entries: Vec<Option<(u64, V)>>,
}

impl<V: Copy> Cache<V> {
    /// Makes an empty cache with at least one entry.
    pub(crate) fn new(shape: Geometry) -> Self {
        let (sets, ways) = (shape.sets.max(1), shape.ways.max(1));
        let entries = vec![None; sets as usize * ways as usize];
        Self { sets: u64::from(sets), ways: ways as usize, entries }
    }

    /// Stores `value` for `key` as the most recently used entry of its set. Returns the key's earlier value,
    /// or `None` if the key was not in the cache.
    pub(crate) fn put(&mut self, key: u64, value: V) -> Option<V> {
        let set = usize::try_from(key % self.sets).unwrap_or(0);
        let ways = self.entries.get_mut(set * self.ways..(set + 1) * self.ways)?;
        let found = ways.iter().position(|e| e.is_some_and(|(k, _)| k == key));
        let depth = found.unwrap_or(self.ways - 1);
        let old = found.and_then(|i| ways.get(i).copied().flatten());
        if let Some(upper) = ways.get_mut(..=depth) {
            upper.rotate_right(1);
        }
        if let Some(first) = ways.first_mut() {
            *first = Some((key, value));
        }
        old.map(|(_, v)| v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reference implementation, which records the time of the last use of each key.
    #[derive(Default)]
    struct Slow {
        used: Vec<(u64, u64, u32)>,
        now: u64,
    }

    impl Slow {
        fn put(&mut self, shape: Geometry, key: u64, value: u32) -> Option<u32> {
            self.now += 1;
            if let Some(e) = self.used.iter_mut().find(|e| e.0 == key) {
                e.1 = self.now;
                return Some(std::mem::replace(&mut e.2, value));
            }
            let set = key % u64::from(shape.sets);
            let same = |e: &(u64, u64, u32)| e.0 % u64::from(shape.sets) == set;
            if self.used.iter().filter(|e| same(e)).count() == shape.ways as usize {
                let oldest = self.used.iter().filter(|e| same(e)).map(|e| e.1).min().unwrap();
                self.used.retain(|e| e.1 != oldest);
            }
            self.used.push((key, self.now, value));
            None
        }
    }

    proptest! {
        #[test]
        fn the_cache_agrees_with_times_of_last_use(sets in 1u32..9, ways in 1u32..6, keys in prop::collection::vec(0u64..40, 0..300)) {
            let shape = Geometry { sets, ways };
            let (mut fast, mut slow) = (Cache::new(shape), Slow::default());
            for (value, key) in (0u32..).zip(keys) {
                prop_assert_eq!(fast.put(key, value), slow.put(shape, key, value));
            }
        }
    }

    #[test]
    fn a_sweep_over_one_way_too_many_never_hits() {
        let mut cache = Cache::new(Geometry { sets: 4, ways: 2 });
        for _ in 0..3 {
            assert!([0, 4, 8].iter().all(|&k| cache.put(k, ()).is_none()));
        }
        for round in 0..2 {
            assert!([1, 5].iter().all(|&k| cache.put(k, ()).is_some() == (round > 0)));
        }
        assert!(cache.put(1, ()).is_some());
    }
}
