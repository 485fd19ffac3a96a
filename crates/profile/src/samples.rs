//! Sampled addresses, assigned to the blocks of known graphs.

use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg};

/// The weight of one sample in a block of one instruction. It is large enough that a rounded weight keeps two
/// digits for a block of average size.
pub const WEIGHT_SCALE: u64 = 64;

/// An index that finds the block at an address, over many functions.
#[derive(Clone, Debug)]
pub struct BlockIndex {
    /// By start. Blocks of one graph share no byte. If two graphs have a block with the same start, only the
    /// first graph's is listed.
    blocks: Vec<(AvmaRange, u32, BlockId)>,
    /// The number of blocks of each function.
    lens: Vec<usize>,
}

impl BlockIndex {
    /// Returns an index over these graphs. A function's number is its index in `cfgs`. If blocks of two
    /// functions have the same start, the first function has it.
    #[must_use]
    pub fn new(cfgs: &[&Cfg]) -> Self {
        let mut blocks = Vec::new();
        for (function, cfg) in (0u32..).zip(cfgs) {
            for (id, block) in (0u32..).zip(&cfg.blocks) {
                blocks.push((block.range, function, BlockId(id)));
            }
        }
        blocks.sort_by_key(|b| (b.0.start, b.1));
        blocks.dedup_by_key(|b| b.0.start);
        Self { blocks, lens: cfgs.iter().map(|c| c.blocks.len()).collect() }
    }

    /// Returns the function (by its index) and the block at `ip`, which may be inside an instruction.
    #[must_use]
    pub fn find(&self, ip: Avma) -> Option<(usize, BlockId)> {
        let after = self.blocks.partition_point(|b| b.0.start <= ip);
        let (range, function, block) = *self.blocks.get(after.checked_sub(1)?)?;
        range.contains(ip).then_some((function as usize, block))
    }
}

/// Numbers of samples by function and block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockSamples {
    counts: Vec<Vec<u64>>,
    elsewhere: u64,
}

impl BlockSamples {
    /// Returns a value without samples.
    #[must_use]
    pub fn new(index: &BlockIndex) -> Self {
        Self { counts: index.lens.iter().map(|&n| vec![0; n]).collect(), elsewhere: 0 }
    }

    /// Adds a sample. `index` is the index given to [`BlockSamples::new`].
    pub fn add(&mut self, index: &BlockIndex, ip: Avma) {
        let slot = index.find(ip).and_then(|(f, b)| self.counts.get_mut(f)?.get_mut(b.index()));
        let slot = slot.unwrap_or(&mut self.elsewhere);
        *slot = slot.saturating_add(1);
    }

    /// Returns the samples in each block of a function, in the order of `Cfg::blocks`; empty for a function
    /// that is not in the index.
    #[must_use]
    pub fn of(&self, function: usize) -> &[u64] {
        self.counts.get(function).map_or(&[], Vec::as_slice)
    }

    /// Returns the samples in a function.
    #[must_use]
    pub fn total_of(&self, function: usize) -> u64 {
        self.of(function).iter().fold(0, |sum, &n| sum.saturating_add(n))
    }

    /// Returns the samples outside all known blocks.
    #[must_use]
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere
    }
}

/// Returns the estimated executions of each block, up to one factor common to all functions. A block of n
/// instructions gets n times the samples of a block of one instruction that runs as often. So the weight is
/// `samples * WEIGHT_SCALE / n`, rounded, and at least 1 if the block has a sample. `samples` is in the order
/// of `Cfg::blocks`; missing samples are 0.
#[must_use]
pub fn weights(cfg: &Cfg, samples: &[u64]) -> Vec<u64> {
    (0..cfg.blocks.len())
        .map(|b| {
            let n = samples.get(b).copied().unwrap_or(0);
            let insts = u64::from(cfg.blocks[b].insts.end.saturating_sub(cfg.blocks[b].insts.start)).max(1);
            let weight = n.saturating_mul(WEIGHT_SCALE).saturating_add(insts / 2) / insts;
            if n > 0 { weight.max(1) } else { 0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_cfg::{cfg_at, fall, ret};

    #[test]
    fn samples_land_on_blocks() {
        let a = cfg_at(0x1000, &[(4, fall(1)), (1, ret())]);
        let b = cfg_at(0x2000, &[(2, ret())]);
        let index = BlockIndex::new(&[&a, &b]);
        let mut s = BlockSamples::new(&index);
        // Every instruction of a test graph has 4 bytes.
        for ip in [0x1000, 0x100f, 0x1010, 0x1013, 0x1014, 0xfff, 0x2001, 0x2007, 0x2008] {
            s.add(&index, Avma(ip));
        }
        assert_eq!(s.of(0), [2, 2]);
        assert_eq!(s.of(1), [2]);
        assert_eq!((s.total_of(0), s.elsewhere()), (4, 3));
        assert_eq!(s.of(2), [0u64; 0]);
        assert_eq!(index.find(Avma(0x1012)), Some((0, BlockId(1))));
    }

    #[test]
    fn shared_code_belongs_to_the_first() {
        let a = cfg_at(0x1000, &[(4, ret())]);
        let index = BlockIndex::new(&[&a, &a]);
        assert_eq!(index.find(Avma(0x1004)), Some((0, BlockId(0))));
    }

    #[test]
    fn weights_are_per_instruction() {
        let c = cfg_at(0, &[(4, fall(1)), (100, fall(2)), (1000, fall(3)), (1, ret())]);
        assert_eq!(weights(&c, &[8, 100, 1]), [128, 64, 1, 0]);
        assert_eq!(weights(&c, &[u64::MAX, 0, 0, u64::MAX])[3], u64::MAX);
    }
}
