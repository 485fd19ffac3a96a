//! Reproducible random numbers.

/// A small generator (splitmix64): the same seed gives the same test.
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Returns how many blocks lie in the zone of hot code: all, none or some, each in a third of the cases.
    pub fn hot(&mut self, blocks: usize) -> usize {
        match self.below(3) {
            0 => blocks,
            1 => 0,
            _ => self.below(blocks + 1),
        }
    }

    /// Returns the entry block, then the others in any order, each kept with probability `keep`/8.
    pub fn order(&mut self, blocks: usize, keep: usize) -> Vec<code::BlockId> {
        let mut rest: Vec<usize> = (1..blocks).filter(|_| self.below(8) < keep).collect();
        for i in (1..rest.len()).rev() {
            rest.swap(i, self.below(i + 1));
        }
        let id = |b: usize| code::BlockId(u32::try_from(b).unwrap());
        std::iter::once(0).chain(rest).map(id).collect()
    }
}
