//! Block order by the extended travelling-salesman score.
//!
//! The model and its numbers are those of Newell and Pupyrev, "Improved Basic Block Reordering" (IEEE
//! Transactions on Computers, 2020). A fall-through is worth its whole count. A short jump is worth a tenth
//! of its count, falling linearly with distance. A far jump is worth nothing.

use crate::chains;

/// Value of a fall-through of a block with another successor.
const FALL_CONDITIONAL: f64 = 1.0;
/// Value of a fall-through that saves an unconditional jump instruction.
const FALL_UNCONDITIONAL: f64 = 1.05;
/// Value of a short jump at distance 0.
const NEAR: f64 = 0.1;
/// The distance from which on a forward jump is worth nothing. Bytes.
const FORWARD_BYTES: f64 = 1024.0;
/// The distance from which on a backward jump is worth nothing. Bytes.
const BACKWARD_BYTES: f64 = 640.0;

/// The kind of control transfer along an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeKind {
    /// One of the two ways of a conditional branch: a fall-through if its destination comes next.
    Conditional,
    /// The only way out of its block: needs no jump if its destination comes next.
    Unconditional,
    /// One of the ways of an indirect jump: never a fall-through, but gains from a short distance.
    Indirect,
}

/// Control flow from one block to another. Parallel edges are allowed and add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Index of the block it leaves.
    pub from: usize,
    /// Index of the block it enters.
    pub to: usize,
    /// Execution count.
    pub count: u64,
    /// The kind of control transfer.
    pub kind: EdgeKind,
}

/// One block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its size. 0 counts as 1. Bytes.
    pub size: u64,
    /// Execution count.
    pub count: u64,
}

/// One function: block 0 is the entry.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// Jumps between blocks. An edge with an invalid index is ignored.
    pub edges: Vec<Edge>,
}

impl Graph {
    /// Returns the size of block `b`, at least 1 so that no two blocks begin at one place. Bytes.
    pub(crate) fn size(&self, b: usize) -> u64 {
        self.blocks.get(b).map_or(1, |b| b.size.max(1))
    }

    /// Returns the edges with a count above 0 and valid blocks.
    pub(crate) fn live_edges(&self) -> impl Iterator<Item = &Edge> {
        let n = self.blocks.len();
        self.edges.iter().filter(move |e| e.count > 0 && e.from < n && e.to < n)
    }

    /// Returns whether each block takes part in the ordering: the entry, blocks that ran, and both ends of
    /// edges that were taken.
    fn hot(&self) -> Vec<bool> {
        let ran = self.blocks.iter().map(|b| b.count > 0);
        let mut hot: Vec<bool> = ran.enumerate().map(|(b, ran)| b == 0 || ran).collect();
        for e in self.live_edges() {
            hot[e.from] = true;
            hot[e.to] = true;
        }
        hot
    }
}

/// Returns the value of one jump from a block that ends at `end` to a block that starts at `start` (bytes on
/// one scale).
#[expect(clippy::cast_precision_loss, reason = "distances that matter are below 1024")]
pub(crate) fn jump_value(kind: EdgeKind, count: f64, end: i64, start: i64) -> f64 {
    let distance = start - end;
    if distance == 0 {
        return count
            * match kind {
                EdgeKind::Conditional => FALL_CONDITIONAL,
                EdgeKind::Unconditional => FALL_UNCONDITIONAL,
                EdgeKind::Indirect => NEAR,
            };
    }
    let (bytes, limit) =
        if distance > 0 { (distance as f64, FORWARD_BYTES) } else { (-distance as f64, BACKWARD_BYTES) };
    if bytes >= limit { 0.0 } else { NEAR * (1.0 - bytes / limit) * count }
}

/// Returns the ext-TSP score of an order: higher is better, 0 if no jump is short. Blocks absent from `order`
/// are far away; a repeated index counts at its last place.
#[must_use]
pub fn score(graph: &Graph, order: &[usize]) -> f64 {
    let mut start: Vec<Option<i64>> = vec![None; graph.blocks.len()];
    let mut at = 0i64;
    for &b in order {
        if let Some(s) = start.get_mut(b) {
            *s = Some(at);
            at = at.saturating_add(chains::bytes(graph.size(b)));
        }
    }
    graph
        .live_edges()
        .map(|e| match (start[e.from], start[e.to]) {
            (Some(from), Some(to)) => {
                jump_value(e.kind, chains::weight(e.count), from + chains::bytes(graph.size(e.from)), to)
            }
            _ => 0.0,
        })
        .sum()
}

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
