//! Which blocks of clones are hot.
//!
//! The first-level instruction cache holds less code than a server runs in a second. Each line with rarely
//! executed code is lost for frequently executed code. Rule, as in compilers' profile summaries: take the
//! blocks of all functions, the most executed first. They are hot until they hold 99.5% of all executed
//! instructions. The others, *warm*, lie behind all hot blocks. A function's entry is warm only if all its
//! blocks are.

use crate::plan::candidate::Measured;
use crate::plan::laid_out::{BlockOrder, Ordered};
use code::BlockId;

/// The share of executed instructions that hot blocks hold.
const HOT_PER_10K: u128 = 9950;

/// Moves the hot blocks of each function before the warm ones, otherwise in the same order.
pub(crate) fn split(ordered: Vec<Ordered>) -> Vec<Ordered> {
    // Inferred counts have another unit than exact counts.
    let least = |counted: bool| {
        let same_unit = ordered.iter().filter(|c| c.is_counted() == counted);
        least_hot(same_unit.flat_map(executed).collect())
    };
    let (counted, inferred) = (least(true), least(false));
    let partition = |c: Ordered| {
        let least = if c.is_counted() { counted } else { inferred };
        Ordered { order: partition(&c, c.order.all(), least), counted: c.counted }
    };
    ordered.into_iter().map(partition).collect()
}

/// Returns for each cloned block how often it ran, and its number of instructions.
fn executed(c: &Ordered) -> impl Iterator<Item = (u64, usize)> {
    c.order.all().iter().map(|&b| (c.counts.block(b), c.analysed.cfg.insts_of(b).len()))
}

/// Returns the count of the last hot block, given counts and numbers of instructions; 0 if no block ran.
fn least_hot(mut blocks: Vec<(u64, usize)>) -> u64 {
    blocks.sort_unstable_by(|a, b| b.cmp(a));
    let weight = |&(count, insts): &(u64, usize)| u128::from(count) * insts as u128;
    let wanted = blocks.iter().map(weight).sum::<u128>().saturating_mul(HOT_PER_10K);
    let mut held = 0u128;
    let last = blocks.iter().find(|b| {
        held += weight(b);
        held.saturating_mul(10_000) >= wanted
    });
    last.map_or(0, |b| b.0)
}

fn partition(c: &Measured, blocks: &[BlockId], least: u64) -> BlockOrder {
    let ran = blocks.iter().any(|&b| c.counts.block(b) > 0);
    if !ran && c.samples > 0 {
        // Threads that entered the function earlier and stayed were sampled but not counted: treat all cloned
        // blocks as hot.
        return BlockOrder::new(blocks.to_vec(), blocks.len());
    }
    let is_hot = |b: &BlockId| c.counts.block(*b) >= least;
    let any = blocks.iter().any(is_hot);
    let entry = blocks.first().copied();
    let (hot, warm): (Vec<BlockId>, Vec<BlockId>) =
        blocks.iter().partition(|b| is_hot(b) || any && entry == Some(**b));
    let first = hot.len();
    BlockOrder::new([hot, warm].concat(), first)
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
