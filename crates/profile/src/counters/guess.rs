//! A guess of how often each link is passed, from the graph alone.

use crate::links::{Link, Place};

/// The flow that enters at an entrance, and at an entrance that is rarely used.
const POUR: u64 = 1 << 20;
const POUR_RARE: u64 = 1 << 10;
/// The weight of a way out of a block, and of a way that is rarely taken. A block's flow is divided in
/// proportion.
const SHARE: u64 = 16;
const SHARE_RARE: u64 = 1;
/// How often the flow is passed through all blocks. A loop with one way out keeps half of its flow in each
/// round, so little is left at the end.
const ROUNDS: usize = 16;

/// Returns the flow on each link if flow enters at all entrances. Each block divides its flow evenly among
/// its ways out, with less on rare ones. Blocks in loops get more, arms of branches less. `links` is as
/// [`crate::links::links_of`] returns it, for `blocks` blocks.
pub(super) fn guess(blocks: usize, links: &[Link]) -> Vec<u64> {
    let mut pending = vec![0u64; blocks];
    let mut shares = vec![0u64; blocks];
    let share = |link: &Link| if link.rare { SHARE_RARE } else { SHARE };
    let mut passed = vec![0u64; links.len()];
    for (link, passed) in links.iter().zip(&mut passed) {
        match link.place {
            Place::Entrance(b) => {
                *passed = if link.rare { POUR_RARE } else { POUR };
                pending[b.index()] = *passed;
            }
            Place::Edge(b, _) | Place::Exit(b) => shares[b.index()] += share(link),
            Place::Block(_) => {}
        }
    }
    for _ in 0..ROUNDS {
        // The flow that came to the block whose ways out come next.
        let mut here = 0;
        for (link, passed) in links.iter().zip(&mut passed) {
            match link.place {
                Place::Entrance(_) => {}
                Place::Block(b) => {
                    here = std::mem::take(&mut pending[b.index()]);
                    *passed = passed.saturating_add(here);
                }
                Place::Edge(b, _) | Place::Exit(b) => {
                    let part = here.saturating_mul(share(link)) / shares[b.index()].max(1);
                    *passed = passed.saturating_add(part);
                    if let Some(to) = link.to.checked_sub(1) {
                        pending[to / 2] = pending[to / 2].saturating_add(part);
                    }
                }
            }
        }
    }
    passed
}
