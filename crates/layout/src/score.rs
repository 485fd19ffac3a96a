//! The extended travelling-salesman score of a block order.
//!
//! The model and its numbers are those of Newell and Pupyrev, "Improved Basic Block Reordering" (IEEE
//! Transactions on Computers, 2020). A fall-through is worth its whole count. A short jump is worth a tenth
//! of its count, falling linearly with distance. A far jump is worth nothing.

use crate::block_graph::{EdgeKind, Graph};

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
            at = at.saturating_add(bytes(graph.size(b)));
        }
    }
    graph
        .live_edges()
        .map(|e| match (start[e.from], start[e.to]) {
            (Some(from), Some(to)) => {
                jump_value(e.kind, weight(e.count), from + bytes(graph.size(e.from)), to)
            }
            _ => 0.0,
        })
        .sum()
}

/// Converts a size to a signed offset. No real function comes near the limit.
pub(crate) fn bytes(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX).min(1 << 40)
}

/// Converts a count for the score. Counts beyond 2^53 lose their last digits, which no layout depends on.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(crate) fn weight(count: u64) -> f64 {
    count as f64
}
