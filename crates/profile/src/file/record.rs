//! Conversion between counts on a graph and a function's profile.

use super::hash::offset;
use super::{BlockProfile, FunctionProfile};
use crate::{BlockCounts, Counts};
use addr::Addr;
use code::{Block, BlockId, Cfg, Dest};
use std::collections::{BTreeMap, HashMap};

impl FunctionProfile {
    /// Returns a profile with the counts of all blocks and edges that ran. The caller adds its name, its
    /// calls and all other fields.
    #[must_use]
    pub fn record(cfg: &Cfg, counts: &Counts) -> Self {
        let mut blocks = BTreeMap::new();
        for (block, id) in cfg.blocks.iter().zip(0u32..) {
            let b = BlockId(id);
            let count = counts.block(b);
            if count == 0 {
                continue;
            }
            let mut edges: BTreeMap<i64, u64> = BTreeMap::new();
            let mut each = counts.edges(b).iter();
            cfg.successors(b, |dest| {
                let n = each.next().copied().unwrap_or(0);
                if n > 0 {
                    let sum = edges.entry(offset(cfg, dest)).or_default();
                    *sum = sum.saturating_add(n);
                }
            });
            blocks.insert(
                block.range.start.distance(cfg.entry),
                BlockProfile { last: last(cfg, b, block), count, edges },
            );
        }
        let size = cfg.parts.first().map_or(0, |p| p.len());
        Self { size, entered: counts.entry, blocks, ..Self::default() }
    }

    /// Returns the counts on a graph with the same [`super::hash()`]. They are the counts that were given to
    /// [`FunctionProfile::record`], except that two edges from one block to one destination come back as one
    /// edge. The counts are always consistent: if the profile's numbers contradict each other, the largest is
    /// used, and the difference enters from or leaves to the outside.
    ///
    /// After [`super::Profile::tame`], sums of the counts do not overflow.
    #[must_use]
    pub fn counts(&self, cfg: &Cfg) -> Counts {
        let n = cfg.blocks.len();
        let mut blocks = Vec::with_capacity(n);
        let (mut entered, mut left) = (vec![0u64; n], vec![0u64; n]);
        for (b, id) in (0..n).zip(0u32..) {
            let stored = self.blocks.get(&cfg.blocks[b].range.start.distance(cfg.entry));
            let mut edges: HashMap<i64, u64> =
                stored.into_iter().flat_map(|s| &s.edges).map(|(&to, &n)| (to, n)).collect();
            let mut of_block = Vec::new();
            cfg.successors(BlockId(id), |dest| {
                let count = edges.remove(&offset(cfg, dest)).unwrap_or(0);
                left[b] = left[b].saturating_add(count);
                if let Dest::Block(to) = dest
                    && let Some(sum) = entered.get_mut(to.index())
                {
                    *sum = sum.saturating_add(count);
                }
                of_block.push(count);
            });
            let count = stored.map_or(0, |s| s.count);
            blocks.push(BlockCounts { count, edges: of_block, ..BlockCounts::default() });
        }
        for ((block, entered), left) in blocks.iter_mut().zip(entered).zip(left) {
            block.count = block.count.max(entered).max(left);
            block.inflow = block.count - entered;
            block.outflow = block.count - left;
        }
        let mut counts = Counts { entry: 0, blocks };
        counts.entry = counts.entered();
        counts
    }
}

/// Returns the offset of a block's last instruction that is not a `nop`. Other tools take it as the source of
/// the block's edges.
fn last(cfg: &Cfg, b: BlockId, block: &Block) -> i64 {
    let insts = cfg.insts_of(b);
    let last = insts.iter().rev().find(|i| !is_nop(i.bytes.as_slice())).or(insts.first());
    last.map_or(block.range.start, |i| i.at).distance(cfg.entry)
}

/// Returns whether these are the bytes of a `nop` that compilers fill gaps with.
fn is_nop(bytes: &[u8]) -> bool {
    let prefixes = bytes.iter().take_while(|b| matches!(b, 0x66 | 0x2e)).count();
    matches!(bytes.get(prefixes..), Some([0x90] | [0x0f, 0x1f, ..]))
}
