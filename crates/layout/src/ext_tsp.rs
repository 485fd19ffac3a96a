//! Block order by the extended travelling-salesman score.

use crate::block_graph::Graph;
use crate::chains;
use crate::score::score;

/// Returns an order of all blocks: the entry, the other hot blocks in the best order found, the cold blocks
/// in their old order. A block is hot if its count, or the count of one of its edges, is above 0.
///
/// Chains of blocks are merged by greatest gain, as in the paper. The result never scores below the given
/// order or the order of greedy fall-through chains, which are also scored.
#[must_use]
pub fn ext_tsp(graph: &Graph) -> Vec<usize> {
    let hot = graph.hot();
    let hot_blocks: Vec<usize> = (0..hot.len()).filter(|&b| hot[b]).collect();
    let mut best = chains::merge(graph, &hot_blocks);
    let mut best_score = score(graph, &best);
    for other in [chains::greedy(graph, &hot_blocks), hot_blocks] {
        let s = score(graph, &other);
        if s > best_score {
            best = other;
            best_score = s;
        }
    }
    best.extend((0..hot.len()).filter(|&b| !hot[b]));
    best
}

#[cfg(test)]
mod tests;
