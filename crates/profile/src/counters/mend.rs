//! Counts from counters that contradict each other.
//!
//! Counting begins and ends while threads are inside functions, exceptions and `longjmp` leave from the middle of a
//! block, and an increment can be lost: then some flow that follows from the counters is negative. A minimum-cost flow
//! finds the nearest circulation: counters are believed, and threads that came or went unseen are what explains most;
//! only where that explains nothing is a counter taken to be wrong.

use super::Role;
use super::links::{Link, WORLD, counts_of, enter, leave};
use crate::counts::Counts;
use crate::min_cost_flow::{Network, UNBOUNDED};

/// Cost of a thread that came to a block, or left one, unseen.
const UNSEEN: i64 = 2;
/// Cost of one that a counter has too few, or too many.
const MISCOUNTED: i64 = 3;
/// Flows above are cut to this, so that no sum of them overflows.
const FLOW_LIMIT: i64 = 1 << 36;
/// There are few distinct path costs: nothing costs more than to leave unseen, past a miscount, and to come back so.
const PHASES: usize = 50;

/// The consistent counts of `n` blocks nearest to `flows`, which may be negative and not conserved.
pub(super) fn mend(n: usize, links: &[Link], roles: &[Role], flows: &[i128]) -> Counts {
    let (source, sink) = (2 * n + 1, 2 * n + 2);
    let mut net = Network::new(2 * n + 3);
    let base: Vec<i64> =
        flows.iter().map(|&f| i64::try_from(f.clamp(0, FLOW_LIMIT.into())).unwrap_or(0)).collect();
    let mut surplus = vec![0i64; 2 * n + 1];
    let mut arcs = Vec::with_capacity(links.len());
    for ((link, role), &flow) in links.iter().zip(roles).zip(&base) {
        surplus[link.to] += flow;
        surplus[link.from] -= flow;
        let cost = match role {
            Role::Counted => MISCOUNTED,
            Role::Tree | Role::Open { .. } => 0,
        };
        let more = net.arc(link.from, link.to, UNBOUNDED, cost);
        arcs.push((more, net.arc(link.to, link.from, flow, cost)));
    }
    let unseen: Vec<(usize, usize)> = (0..n)
        .map(|b| (net.arc(WORLD, enter(b), UNBOUNDED, UNSEEN), net.arc(leave(b), WORLD, UNBOUNDED, UNSEEN)))
        .collect();
    for (node, &surplus) in surplus.iter().enumerate() {
        if surplus > 0 {
            net.arc(source, node, surplus, 0);
        } else if surplus < 0 {
            net.arc(node, sink, -surplus, 0);
        }
    }
    // Every node is reached from every other over unseen ways and blocks, so all of the surplus finds its want.
    net.solve(source, sink, PHASES);
    let whole = |flow: i64| u64::try_from(flow).unwrap_or(0);
    let mended: Vec<u64> = base
        .iter()
        .zip(&arcs)
        .map(|(&flow, &(more, less))| whole(flow + net.flow(more) - net.flow(less)))
        .collect();
    let mut counts = counts_of(n, links, &mended);
    for (b, &(came, went)) in unseen.iter().enumerate() {
        counts.inflow[b] += whole(net.flow(came));
        counts.outflow[b] += whole(net.flow(went));
    }
    counts.entry = counts.inflow.first().copied().unwrap_or(0);
    counts
}
