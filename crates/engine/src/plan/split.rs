//! Which blocks of clones lie among the hot code.
//!
//! The first-level instruction cache holds less than what a server runs in a second, and each line of it that holds code
//! that runs rarely is one line less for code that runs often. Rule, as in compilers' profile summaries: the blocks of all
//! functions, the most run ones first, are hot until they hold 99.5% of all executed instructions. The others, *warm*, lie
//! behind all hot ones. A function's entry is warm only where all of its blocks are.

use crate::plan::candidate::Candidate;
use code::BlockId;

/// The share of executed instructions that hot blocks hold.
const HOT_PER_10K: u128 = 9950;

/// Puts the hot blocks of each function before the warm ones, with no other change of their order, and tells how many they
/// are.
pub(crate) fn split(chosen: &mut [Candidate]) {
    // Inferred counts are in another unit than counted ones.
    for counted in [true, false] {
        let blocks = chosen.iter().filter(|c| c.counted == counted).flat_map(executed).collect();
        let least = least_hot(blocks);
        chosen.iter_mut().filter(|c| c.counted == counted).for_each(|c| partition(c, least));
    }
}

/// By cloned block how often it ran, and its instructions.
fn executed(c: &Candidate) -> impl Iterator<Item = (u64, usize)> {
    c.order.iter().map(|&b| (c.counts.block(b), c.analysed.cfg.insts_of(b).len()))
}

/// The count of the last block that is hot, of blocks with their instructions; 0 where none ran.
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

fn partition(c: &mut Candidate, least: u64) {
    let ran = c.order.iter().any(|&b| c.counts.block(b) > 0);
    if !ran && c.samples > 0 {
        // Threads that had entered it before and stayed were sampled, but not counted: all that is cloned was sampled.
        c.hot = c.order.len();
        return;
    }
    let is_hot = |b: &BlockId| c.counts.block(*b) >= least;
    let any = c.order.iter().any(is_hot);
    let entry = c.order.first().copied();
    let (hot, warm): (Vec<BlockId>, Vec<BlockId>) =
        c.order.iter().partition(|b| is_hot(b) || any && entry == Some(**b));
    c.hot = hot.len();
    c.order = hot.into_iter().chain(warm).collect();
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
