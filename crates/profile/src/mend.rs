//! Makes measured counts that contradict each other consistent: a minimum-cost flow finds the nearest
//! circulation. The caller's prices define the distance.

use crate::counts::Counts;
use crate::links::{Link, WORLD, counts_of, enter, leave};
use crate::min_cost_flow::{Network, UNBOUNDED};

/// The cost of changing a measured flow by one: upwards and downwards. At least 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Price {
    pub(crate) more: i64,
    pub(crate) less: i64,
}

/// The most that a flow is taken as: larger flows are reduced to this, so that no sum of them overflows.
const FLOW_LIMIT: i64 = 1 << 36;
/// The most phases of the solver. There are few distinct path costs: no path costs more than to leave unseen,
/// past a link or two, and to come back unseen.
const PHASES: usize = 50;

/// Returns the consistent counts of `n` blocks nearest to `flows`, the measured flows of the links. `flows`
/// may be negative and not conserved. `price` returns the price of a link by its index. `unseen` is the cost
/// of a thread that entered or left a block unseen: more than 0, and small.
pub(crate) fn mend(
    n: usize,
    links: &[Link],
    flows: &[i128],
    price: &dyn Fn(usize) -> Price,
    unseen: i64,
) -> Counts {
    let (source, sink) = (2 * n + 1, 2 * n + 2);
    let mut net = Network::new(2 * n + 3);
    let base: Vec<i64> =
        flows.iter().map(|&f| i64::try_from(f.clamp(0, FLOW_LIMIT.into())).unwrap_or(0)).collect();
    let mut surplus = vec![0i64; 2 * n + 1];
    let mut arcs = Vec::with_capacity(links.len());
    for ((place, link), &flow) in links.iter().enumerate().zip(&base) {
        surplus[link.to] += flow;
        surplus[link.from] -= flow;
        let price = price(place);
        let more = net.arc(link.from, link.to, UNBOUNDED, price.more);
        arcs.push((more, net.arc(link.to, link.from, flow, price.less)));
    }
    let unseen: Vec<(usize, usize)> = (0..n)
        .map(|b| (net.arc(WORLD, enter(b), UNBOUNDED, unseen), net.arc(leave(b), WORLD, UNBOUNDED, unseen)))
        .collect();
    for (node, &surplus) in surplus.iter().enumerate() {
        if surplus > 0 {
            net.arc(source, node, surplus, 0);
        } else if surplus < 0 {
            net.arc(node, sink, -surplus, 0);
        }
    }
    // Every node can be reached from every other by unseen entries and exits and through blocks, so the whole
    // surplus can be balanced.
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
