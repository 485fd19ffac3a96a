//! Sampled addresses, put on the blocks of known graphs.

use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg};

/// Weight of a block of one instruction for one sample. Large enough that a rounded weight keeps two digits for a
/// block of average size.
pub const WEIGHT_SCALE: u64 = 64;

/// Finds the block that holds an address, over many functions.
#[derive(Clone, Debug)]
pub struct BlockIndex {
    /// By start. Blocks of one graph share no byte; where two graphs do, the first one's block comes first.
    blocks: Vec<(AvmaRange, u32, BlockId)>,
    /// Blocks of each function.
    lens: Vec<usize>,
}

impl BlockIndex {
    /// An index over these graphs; their places in `cfgs` name the functions. Where two functions share a block's
    /// start, the first has it.
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

    /// The function (by its place) and the block that hold `ip`, which may be inside an instruction.
    #[must_use]
    pub fn find(&self, ip: Avma) -> Option<(usize, BlockId)> {
        let after = self.blocks.partition_point(|b| b.0.start <= ip);
        let (range, function, block) = *self.blocks.get(after.checked_sub(1)?)?;
        range.contains(ip).then_some((function as usize, block))
    }
}

/// Samples by function and block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockSamples {
    counts: Vec<Vec<u64>>,
    elsewhere: u64,
}

impl BlockSamples {
    /// No samples yet.
    #[must_use]
    pub fn new(index: &BlockIndex) -> Self {
        Self { counts: index.lens.iter().map(|&n| vec![0; n]).collect(), elsewhere: 0 }
    }

    /// Counts a sample. `index` is the one given to [`BlockSamples::new`].
    pub fn add(&mut self, index: &BlockIndex, ip: Avma) {
        let slot = index.find(ip).and_then(|(f, b)| self.counts.get_mut(f)?.get_mut(b.index()));
        let slot = slot.unwrap_or(&mut self.elsewhere);
        *slot = slot.saturating_add(1);
    }

    /// Samples in each block of a function, in the order of `Cfg::blocks`; empty for a function that is not indexed.
    #[must_use]
    pub fn of(&self, function: usize) -> &[u64] {
        self.counts.get(function).map_or(&[], Vec::as_slice)
    }

    /// Samples in a function.
    #[must_use]
    pub fn total_of(&self, function: usize) -> u64 {
        self.of(function).iter().fold(0, |sum, &n| sum.saturating_add(n))
    }

    /// Samples that hit no known block.
    #[must_use]
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere
    }
}

/// Estimated executions of each block, up to one factor common to all functions: a block of n instructions catches
/// n times the samples of a block of one, so the weight is `samples * WEIGHT_SCALE / n`, rounded, and at least 1
/// where there was a sample. `samples` is in the order of `Cfg::blocks`; missing ones are 0.
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
