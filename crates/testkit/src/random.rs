//! Random numbers that are the same for the same seed, and all orders of few elements.

/// `SplitMix64` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The field
/// is the seed.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, of the same type.
    ///
    /// # Panics
    /// Panics if `n` is 0 or negative.
    pub fn below<T: TryFrom<u64>>(&mut self, n: T) -> T
    where
        u64: TryFrom<T>,
    {
        let n = u64::try_from(n).ok().expect("a limit is not negative");
        T::try_from(self.bits() % n).ok().expect("below a number of the type")
    }

    /// Returns true in half of the cases.
    pub fn coin(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// Puts items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// Visits every order of the elements from index `k` on.
pub fn permutations(order: &mut Vec<usize>, k: usize, visit: &mut dyn FnMut(&[usize])) {
    if k == order.len() {
        visit(order);
    }
    for i in k..order.len() {
        order.swap(k, i);
        permutations(order, k + 1, visit);
        order.swap(k, i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_stream_and_orders() {
        // First outputs for seed 0, as published with the algorithm.
        let mut rng = Rng(0);
        assert_eq!([rng.bits(), rng.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut items: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());

        let mut seen = std::collections::BTreeSet::new();
        permutations(&mut vec![0, 1, 2, 3], 0, &mut |order| assert!(seen.insert(order.to_vec())));
        assert_eq!(seen.len(), 24);
    }
}
