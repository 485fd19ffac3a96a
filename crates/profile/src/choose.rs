//! The choice of functions and blocks that are hot enough for a clone.

use crate::counts::Counts;
use code::{BlockId, Cfg, Dest};

/// A block is cold if it was inferred to run less often than once in this many calls and has no sample.
const CALLS_PER_RARE_RUN: u64 = 1000;
/// Largest size of a cold block that stays in the clone if it leads back into hot code. Leaving the clone for
/// such a block would cost the rest of the call in the original.
const SMALL_BYTES: u64 = 32;

/// The share of all samples that the chosen functions cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// Functions are chosen, hottest first, until they hold this many of each 10,000 samples (9,990 is
    /// 99.9%).
    pub per_10k: u32,
    /// Further functions are chosen if they have at least this many samples, however little they add.
    /// `u64::MAX` turns this off.
    pub at_least: u64,
}

impl Default for Coverage {
    /// 99.9%, and every function with 4 samples: one sample may be chance, but a function with 4 samples runs
    /// often.
    fn default() -> Self {
        Self { per_10k: 9990, at_least: 4 }
    }
}

/// Returns the functions to clone, by their indices, hottest first; ties by index. `samples` holds the
/// samples of each function. Functions without a sample are never chosen.
#[must_use]
pub fn choose(samples: &[u64], coverage: Coverage) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples.len()).filter(|&f| samples[f] > 0).collect();
    order.sort_by_key(|&f| (std::cmp::Reverse(samples[f]), f));
    let total: u128 = samples.iter().map(|&n| u128::from(n)).sum();
    let mut covered = 0u128;
    order
        .into_iter()
        .take_while(|&f| {
            let enough = covered * 10_000 >= total * u128::from(coverage.per_10k);
            covered += u128::from(samples[f]);
            !enough || samples[f] >= coverage.at_least
        })
        .collect()
}

/// Returns which blocks of a function belong in its clone. These are the entry, every block with a sample,
/// and every block that is inferred to run at least once in 1000 calls. A small block that leads from hot
/// code only back into hot code belongs there too. All other blocks are left to the original.
///
/// `samples` is in the order of `Cfg::blocks`; missing samples and counts are 0.
#[must_use]
pub fn hot_blocks(cfg: &Cfg, counts: &Counts, samples: &[u64]) -> Vec<bool> {
    let n = cfg.blocks.len();
    let calls = counts.entry;
    let hot: Vec<bool> = (0..n)
        .map(|b| {
            let count = counts.blocks.get(b).map_or(0, |b| b.count);
            let often = count > 0 && count >= calls.div_ceil(CALLS_PER_RARE_RUN);
            b == 0 || samples.get(b).is_some_and(|&s| s > 0) || often
        })
        .collect();
    let ids = || (0..n).zip(0u32..);
    let is_hot = |d: Dest| matches!(d, Dest::Block(b) if hot.get(b.index()) == Some(&true));
    let mut after_hot = vec![false; n];
    for (_, id) in ids().filter(|&(b, _)| hot[b]) {
        cfg.successors(BlockId(id), |d| {
            if let Dest::Block(to) = d
                && let Some(a) = after_hot.get_mut(to.index())
            {
                *a = true;
            }
        });
    }
    ids()
        .map(|(b, id)| {
            let (mut ways, mut back) = (0, 0);
            cfg.successors(BlockId(id), |d| {
                ways += 1;
                back += u32::from(is_hot(d));
            });
            let small = cfg.blocks[b].range.len() <= SMALL_BYTES;
            hot[b] || (small && after_hot[b] && ways > 0 && ways == back)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::BlockCounts;
    use crate::test_cfg::{cfg_at, cond, fall, ret};
    use proptest::prelude::*;

    #[test]
    fn hottest_first_until_enough() {
        let only = |per_10k| Coverage { per_10k, at_least: u64::MAX };
        let s = [5, 0, 80, 15, 0];
        assert_eq!(choose(&s, only(8000)), [2]);
        assert_eq!(choose(&s, only(8001)), [2, 3]);
        assert_eq!(choose(&s, only(10_000)), [2, 3, 0]);
        assert_eq!(choose(&s, Coverage { per_10k: 100, at_least: 6 }), [2, 3]);
        assert!(choose(&s, only(0)).is_empty());
        assert_eq!(choose(&[u64::MAX, u64::MAX], only(9999)), [0, 1]);
        assert!(choose(&[0, 0], Coverage::default()).is_empty());
    }

    /// Returns counts of blocks and of entries, and no counts of edges.
    fn entered(entry: u64, blocks: &[u64]) -> Counts {
        let block = |&count: &u64| BlockCounts { count, ..BlockCounts::default() };
        Counts { entry, blocks: blocks.iter().map(block).collect() }
    }

    #[test]
    fn rare_and_unsampled_is_cold() {
        let c = cfg_at(0, &[(1, cond(1, 2)), (20, ret()), (1, cond(3, 4)), (20, ret()), (20, ret())]);
        let counts = |rare: u64| entered(10_000, &[10_000, rare, 10_000 - rare, 0, 10_000 - rare]);
        assert_eq!(hot_blocks(&c, &counts(9), &[]), [true, false, true, false, true]);
        assert_eq!(hot_blocks(&c, &counts(10), &[]), [true, true, true, false, true]);
        assert_eq!(hot_blocks(&c, &counts(9), &[0, 1, 0, 0, 0]), [true, true, true, false, true]);
        // Nothing is known, so only the entry is hot.
        assert_eq!(hot_blocks(&c, &Counts::default(), &[]), [true, false, false, false, false]);
    }

    #[test]
    fn small_blocks_back_to_hot_code_stay() {
        // 0 -> 1 or 2. Block 1, which leads to 2, is small and cold. Block 3 is as small, but leads to no hot
        // block.
        let blocks = [(1, cond(1, 2)), (8, fall(2)), (4, cond(3, 4)), (1, ret()), (4, ret())];
        let counts = entered(100, &[100, 0, 100, 0, 100]);
        assert_eq!(hot_blocks(&cfg_at(0, &blocks), &counts, &[]), [true, true, true, false, true]);
        let mut large = blocks;
        large[1].0 = 9;
        assert_eq!(hot_blocks(&cfg_at(0, &large), &counts, &[]), [true, false, true, false, true]);
    }

    proptest! {
        #[test]
        fn chosen_functions_cover(samples in prop::collection::vec(0u64..50, 0..40), per_10k in 0u32..=10_000) {
            let chosen = choose(&samples, Coverage { per_10k, at_least: u64::MAX });
            let total: u64 = samples.iter().sum();
            let covered: u64 = chosen.iter().map(|&f| samples[f]).sum();
            prop_assert!(covered * 10_000 >= total * u64::from(per_10k));
            // Without the last function the coverage would be too small.
            if let Some(&last) = chosen.last() {
                prop_assert!((covered - samples[last]) * 10_000 < total * u64::from(per_10k));
            }
        }
    }
}
