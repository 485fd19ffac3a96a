//! How often each copy of an unrolled loop runs.
//!
//! The counts show how often a loop was entered and how often it iterated, but not where it was left. The
//! model assumes the same chance of a further iteration each time, independent of earlier iterations. So
//! figures of single copies are modelled.

use addr::Avma;
use emit::{AddressMap, Link};
use rustc_hash::FxHashMap;

/// Execution counts of the original; blocks are identified by their starts.
pub(crate) trait Flows {
    /// Returns the block that contains an instruction.
    fn block_of(&self, at: Avma) -> Option<Avma>;
    /// Returns how often a block ran.
    fn ran(&self, block: Avma) -> u64;
    /// Returns how often control went from one block to another.
    fn goes(&self, from: Avma, to: Avma) -> u64;
}

/// The loops of a clone, visited from first to last.
#[derive(Debug, Default)]
pub(crate) struct LoopCopies {
    /// For each address of an original instruction, the copy that comes next.
    copies: FxHashMap<Avma, LoopCopy>,
}

/// One copy of a loop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LoopCopy {
    /// The index of the copy, from 0.
    copy: u32,
    of: u32,
    /// The chance of a further iteration.
    chance: f64,
}

impl LoopCopies {
    pub(crate) fn new(map: &AddressMap, flows: &dyn Flows) -> Self {
        let mut loops = Self::default();
        let placed = map.entries().iter().filter(|e| e.link != Link::Extra);
        for again in placed.collect::<Vec<_>>().chunk_by(|a, b| a.link == b.link) {
            if again.first().is_some_and(|e| e.link == Link::Again) {
                let mut blocks: Vec<Avma> = again.iter().filter_map(|e| flows.block_of(e.original)).collect();
                blocks.dedup();
                let chance = chance(&blocks, flows);
                for e in again {
                    loops.copies.entry(e.original).or_insert(LoopCopy { copy: 0, of: 1, chance }).of += 1;
                }
            }
        }
        loops
    }

    /// Returns the copy of a loop that contains the next copy of an original instruction; `None` outside of
    /// loops.
    pub(crate) fn next(&mut self, original: Avma) -> Option<LoopCopy> {
        let next = self.copies.get_mut(&original)?;
        next.copy += 1;
        Some(LoopCopy { copy: next.copy - 1, ..*next })
    }
}

/// Returns the chance of a further iteration for a loop with these copies of its blocks.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn chance(copies: &[Avma], flows: &dyn Flows) -> f64 {
    let again = copies.iter().skip(1).position(|b| Some(b) == copies.first());
    let blocks = &copies[..again.map_or(copies.len(), |n| n + 1)];
    let (iterations, entered) = loop_trips(blocks, |b| flows.ran(b), |from, to| flows.goes(from, to));
    iterations as f64 / iterations.saturating_add(entered).max(1) as f64
}

/// Returns how often a loop with these blocks, in this order, iterates, and how often it is entered.
///
/// Every transfer other than to the next block, or from the last block to the first, enters the first copy.
/// This includes transfers from within the loop.
pub(crate) fn loop_trips<B: Copy>(
    blocks: &[B],
    ran: impl Fn(B) -> u64,
    goes: impl Fn(B, B) -> u64,
) -> (u64, u64) {
    let predecessors = blocks.last().into_iter().chain(blocks);
    let entries = |(&from, &to)| ran(to).saturating_sub(goes(from, to));
    let entered = predecessors.zip(blocks).map(entries).fold(0, u64::saturating_add);
    let iterations = blocks.last().zip(blocks.first()).map_or(0, |(&last, &first)| goes(last, first));
    (iterations, entered)
}

impl LoopCopy {
    /// Returns this copy's part of `of` executions. The parts of all copies sum up to `of`.
    pub(crate) fn part(self, of: u64) -> u64 {
        self.before(self.copy + 1, of) - self.before(self.copy, of)
    }

    /// Returns how many executions fall on the first `n` copies.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "between 0 and the count"
    )]
    fn before(self, n: u32, all: u64) -> u64 {
        let Self { of, chance, .. } = self;
        if n >= of {
            return all;
        }
        let share = if chance < 1.0 {
            (1.0 - chance.powf(f64::from(n))) / (1.0 - chance.powf(f64::from(of)))
        } else {
            f64::from(n) / f64::from(of)
        };
        ((all as f64 * share).round() as u64).min(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_iterations_enter_the_first_copy() {
        let ran = |b: usize| [100u64, 500, 100][b];
        let goes = |from: usize, to: usize| [[0u64, 100, 0], [0, 400, 100], [90, 0, 0]][from][to];
        assert_eq!(loop_trips(&[0, 1, 2], ran, goes), (90, 10 + 400));
        assert_eq!(loop_trips(&[1], ran, goes), (400, 100));
        assert_eq!(loop_trips(&[0], |_| u64::MAX, |_, _| 0), (0, u64::MAX));
        assert_eq!(loop_trips::<usize>(&[], ran, goes), (0, 0));
    }

    #[test]
    fn nothing_is_lost_between_copies() {
        for (of, chance) in [(4, 0.9), (3, 0.99), (2, 0.0), (4, 1.0), (3, 1.0 - 1e-12)] {
            for all in [0, 1, 7, 80, 1000, u64::MAX / 2] {
                let parts: Vec<u64> = (0..of).map(|copy| LoopCopy { copy, of, chance }.part(all)).collect();
                assert_eq!(parts.iter().sum::<u64>(), all, "{of} {chance}");
                let slack = 1 + (all >> 50);
                assert!(parts.windows(2).all(|p| p[0] + slack >= p[1]), "{of} {chance}: {parts:?}");
            }
        }
        let four = |chance| [0, 1, 2, 3].map(|copy| LoopCopy { copy, of: 4, chance }.part(1000));
        assert_eq!(four(0.0), [1000, 0, 0, 0]);
        assert_eq!(four(0.5), [533, 267, 133, 67]);
        assert_eq!(four(1.0), [250; 4]);
    }
}
