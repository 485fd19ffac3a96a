//! Makes measured counts that contradict each other consistent: a minimum-cost flow finds the nearest
//! circulation. The caller's prices define the distance.

use crate::counts::Counts;
use crate::links::{Link, WORLD, counts_of, enter, leave};
use crate::min_cost_flow::{Network, UNBOUNDED};

/// A link with its measured flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) link: Link,
    /// May be negative, and need not be conserved.
    pub(crate) flow: i128,
    pub(crate) price: Price,
}

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

/// Returns the consistent counts of `n` blocks nearest to the measured flows of all links, in the order of
/// [`links_of`]. `unseen` is the cost of a thread that entered or left a block unseen: more than 0, and small.
///
/// [`links_of`]: crate::links::links_of
pub(crate) fn mend(n: usize, links: &[Measured], unseen: i64) -> Counts {
    let (source, sink) = (2 * n + 1, 2 * n + 2);
    let mut net = Network::new(2 * n + 3);
    let mut surplus = vec![0i64; 2 * n + 1];
    // The flow of each link, and the arcs by which it is raised and lowered.
    let mut changes = Vec::with_capacity(links.len());
    for Measured { link, flow, price } in links {
        let flow = i64::try_from((*flow).clamp(0, FLOW_LIMIT.into())).unwrap_or(0);
        surplus[link.to] += flow;
        surplus[link.from] -= flow;
        let more = net.arc(link.from, link.to, UNBOUNDED, price.more);
        changes.push((flow, more, net.arc(link.to, link.from, flow, price.less)));
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
    let mended = links.iter().zip(changes).map(|(measured, (flow, more, less))| {
        (measured.link.place, whole(flow + net.flow(more) - net.flow(less)))
    });
    let mut counts = counts_of(n, mended);
    for (block, &(came, went)) in counts.blocks.iter_mut().zip(&unseen) {
        block.inflow += whole(net.flow(came));
        block.outflow += whole(net.flow(went));
    }
    counts.entry = counts.entered();
    counts
}
