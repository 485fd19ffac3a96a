//! Random layouts.

pub use testkit::Rng;

/// Draws the choices that a layout consists of.
pub trait Layouts {
    /// Returns how many blocks lie in the zone of hot code: all, none or some, each in a third of the cases.
    fn hot(&mut self, blocks: usize) -> usize;

    /// Returns the entry block, then the others in any order, each kept with probability `keep`/8.
    fn order(&mut self, blocks: usize, keep: usize) -> Vec<code::BlockId>;
}

impl Layouts for Rng {
    fn hot(&mut self, blocks: usize) -> usize {
        match self.below(3) {
            0 => blocks,
            1 => 0,
            _ => self.below(blocks + 1),
        }
    }

    fn order(&mut self, blocks: usize, keep: usize) -> Vec<code::BlockId> {
        let mut rest: Vec<usize> = (1..blocks).filter(|_| self.below(8) < keep).collect();
        self.shuffle(&mut rest);
        let id = |b: usize| code::BlockId(u32::try_from(b).unwrap());
        std::iter::once(0).chain(rest).map(id).collect()
    }
}
