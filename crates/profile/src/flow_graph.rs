//! Flow inference on a plain graph.
//!
//! After He, Mestre, Pupyrev, Wang and Yu, "Profile Inference Revisited" (POPL 2022). Of all consistent
//! flows, the flow that changes the measured weights at least cost is chosen. Lowering a weight costs more
//! than raising it, because a sampled profile misses executions more often than it invents them. Raising a
//! block without a sample costs a little more than raising a block with samples.

use crate::min_cost_flow::{Network, UNBOUNDED};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Cost of one execution more than measured, for a block with samples.
const RAISE: i64 = 10;
/// Cost of one execution less than measured.
const LOWER: i64 = 20;
/// Cost of one execution of a block without a sample.
const RAISE_ZERO: i64 = 11;
/// Cost of passing an edge, an entrance or an exit that is rarely used.
pub(crate) const UNLIKELY: i64 = 5;
/// Cost of an added entrance or exit. These are added until every block has a way in and a way out.
const MADE_UP: i64 = 15;
/// The most that a weight is taken as: larger weights are reduced to this, so that no sum of them overflows.
const WEIGHT_LIMIT: u64 = 1 << 36;
/// The most phases of the solver. Path costs are small integers, so far fewer phases suffice; the limit
/// bounds the time for unusual graphs.
const PHASES: usize = 400;

/// An edge. `to` is a block, or `None` for the outside.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: Option<usize>,
    pub(crate) cost: i64,
}

/// A block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    /// Its measured executions.
    pub(crate) weight: u64,
    /// The cost of entering the graph there; `None` if control cannot enter there.
    pub(crate) entrance: Option<i64>,
    /// The cost of leaving the graph there by no edge; `None` if control cannot leave there.
    pub(crate) exit: Option<i64>,
}

impl Block {
    fn weight(&self) -> i64 {
        i64::try_from(self.weight.min(WEIGHT_LIMIT)).unwrap_or(0)
    }
}

/// A graph with measured weights.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowGraph {
    pub(crate) blocks: Vec<Block>,
    pub(crate) edges: Vec<Edge>,
}

/// The flow of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockFlow {
    /// Its executions.
    pub(crate) runs: i64,
    /// The flow that enters the graph there.
    pub(crate) entrance: i64,
    /// The flow that leaves the graph there by no edge.
    pub(crate) exit: i64,
}

/// A flow that is conserved in every block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Flow {
    pub(crate) blocks: Vec<BlockFlow>,
    /// By edge of the graph.
    pub(crate) edges: Vec<i64>,
}

impl FlowGraph {
    /// Returns the consistent flow nearest to the weights.
    pub(crate) fn infer(mut self) -> Flow {
        self.open_closed_parts();
        let mut flow = self.cheapest();
        self.join_islands(&mut flow);
        self.share_equal_arms(&mut flow);
        flow
    }

    /// Adds entrances and exits until every block can be reached and left. They are needed for code that only
    /// an unknown indirect jump reaches, and for loops that never end.
    pub(crate) fn open_closed_parts(&mut self) {
        let n = self.blocks.len();
        let mut forward = vec![Vec::new(); n];
        let mut backward = vec![Vec::new(); n];
        let mut leaves: Vec<bool> = self.blocks.iter().map(|b| b.exit.is_some()).collect();
        for e in &self.edges {
            match e.to {
                Some(to) => {
                    forward[e.from].push(to);
                    backward[to].push(e.from);
                }
                None => leaves[e.from] = true,
            }
        }
        let mut seen = vec![false; n];
        for b in (0..n).filter(|&b| self.blocks[b].entrance.is_some()) {
            flood(&forward, b, &mut seen);
        }
        for b in 0..n {
            if !seen[b] {
                self.blocks[b].entrance = Some(MADE_UP);
                flood(&forward, b, &mut seen);
            }
        }
        seen.fill(false);
        for b in (0..n).filter(|&b| leaves[b]) {
            flood(&backward, b, &mut seen);
        }
        // The last block of an endless loop is the likeliest place of its exit.
        for b in (0..n).rev() {
            if !seen[b] {
                self.blocks[b].exit = Some(MADE_UP);
                flood(&backward, b, &mut seen);
            }
        }
    }

    /// Returns the flow of least cost. Every block is an arc. A measured weight is flow that is already
    /// there. It leaves a surplus at one end of the block and a demand at the other, and the network balances
    /// them. So no cost is negative.
    pub(crate) fn cheapest(&self) -> Flow {
        let n = self.blocks.len();
        let (enter, leave) = (|b: usize| 2 * b, |b: usize| 2 * b + 1);
        let (world, source, sink) = (2 * n, 2 * n + 1, 2 * n + 2);
        let mut net = Network::new(2 * n + 3);
        // The arcs of each block by which its weight is raised and lowered.
        let mut changes = Vec::with_capacity(n);
        for (b, block) in self.blocks.iter().enumerate() {
            let w = block.weight();
            let raise = net.arc(enter(b), leave(b), UNBOUNDED, if w > 0 { RAISE } else { RAISE_ZERO });
            let lower = (w > 0).then(|| {
                net.arc(source, leave(b), w, 0);
                net.arc(enter(b), sink, w, 0);
                net.arc(leave(b), enter(b), w, LOWER)
            });
            changes.push((raise, lower));
        }
        let edges: Vec<usize> = self
            .edges
            .iter()
            .map(|e| net.arc(leave(e.from), e.to.map_or(world, enter), UNBOUNDED, e.cost))
            .collect();
        let mut door = |from, to, cost: Option<i64>| cost.map(|c| net.arc(from, to, UNBOUNDED, c));
        let blocks = || self.blocks.iter().enumerate();
        let entrances: Vec<_> = blocks().map(|(b, block)| door(world, enter(b), block.entrance)).collect();
        let exits: Vec<_> = blocks().map(|(b, block)| door(leave(b), world, block.exit)).collect();
        net.solve(source, sink, PHASES);
        let maybe = |arc: Option<usize>| arc.map_or(0, |a| net.flow(a));
        let flow_of = |(b, block): (usize, &Block)| {
            let (raise, lower) = changes[b];
            let runs = block.weight() + net.flow(raise) - maybe(lower);
            BlockFlow { runs, entrance: maybe(entrances[b]), exit: maybe(exits[b]) }
        };
        Flow { blocks: blocks().map(flow_of).collect(), edges: edges.iter().map(|&a| net.flow(a)).collect() }
    }

    /// Connects islands: loops whose flow is consistent in itself although no flow enters them. One execution
    /// is sent from outside through each island and out again.
    fn join_islands(&self, flow: &mut Flow) {
        let n = self.blocks.len();
        let mut running = vec![Vec::new(); n];
        for (e, &f) in self.edges.iter().zip(&flow.edges) {
            if let (Some(to), true) = (e.to, f > 0) {
                running[e.from].push(to);
            }
        }
        let mut reached = vec![false; n];
        for b in (0..n).filter(|&b| flow.blocks[b].entrance > 0) {
            flood(&running, b, &mut reached);
        }
        let islands: Vec<usize> = (0..n).filter(|&b| flow.blocks[b].runs > 0 && !reached[b]).collect();
        if islands.is_empty() {
            return;
        }
        let (ways_in, ways_out) = (self.ways(flow, true), self.ways(flow, false));
        for b in islands {
            if reached[b] {
                continue;
            }
            flow.blocks[b].runs += 1;
            for (ways, inward) in [(&ways_in, true), (&ways_out, false)] {
                let mut at = b;
                while let Some(edge) = ways[at] {
                    flow.edges[edge] += 1;
                    let e = &self.edges[edge];
                    let next = if inward { Some(e.from) } else { e.to };
                    let Some(next) = next else { break };
                    flow.blocks[next].runs += 1;
                    if inward {
                        running[e.from].extend(e.to);
                    }
                    at = next;
                }
                // The walk ended at a block with an entrance, or with an exit that is no edge.
                if ways[at].is_none() {
                    let last = &mut flow.blocks[at];
                    *(if inward { &mut last.entrance } else { &mut last.exit }) += 1;
                }
            }
            flood(&running, b, &mut reached);
        }
    }

    /// Returns for each block the edge by which the cheapest path from outside comes in, or, if not `inward`,
    /// by which the cheapest path to the outside continues. `None` means that the block itself has the
    /// entrance or exit. Links that already carry flow cost nothing.
    fn ways(&self, flow: &Flow, inward: bool) -> Vec<Option<usize>> {
        let n = self.blocks.len();
        let mut touching = vec![Vec::new(); n];
        for (id, e) in self.edges.iter().enumerate() {
            if let Some(to) = e.to {
                touching[if inward { e.from } else { to }].push(id);
            }
        }
        let price = |used: i64, cost: i64| if used > 0 { 0 } else { RAISE + cost };
        let mut distance = vec![i64::MAX; n];
        let mut way = vec![None; n];
        let mut heap = BinaryHeap::new();
        let mut offer = |b: usize, d: i64, by: Option<usize>, heap: &mut BinaryHeap<_>, way: &mut Vec<_>| {
            if d < distance[b] {
                distance[b] = d;
                way[b] = by;
                heap.push(Reverse((d, b)));
            }
        };
        for (b, (block, used)) in self.blocks.iter().zip(&flow.blocks).enumerate() {
            let (door, used) = if inward { (block.entrance, used.entrance) } else { (block.exit, used.exit) };
            if let Some(cost) = door {
                offer(b, price(used, cost), None, &mut heap, &mut way);
            }
        }
        if !inward {
            for (id, e) in self.edges.iter().enumerate().filter(|(_, e)| e.to.is_none()) {
                offer(e.from, price(flow.edges[id], e.cost), Some(id), &mut heap, &mut way);
            }
        }
        let mut done = vec![false; n];
        while let Some(Reverse((d, b))) = heap.pop() {
            if std::mem::replace(&mut done[b], true) {
                continue;
            }
            for &id in &touching[b] {
                let e = &self.edges[id];
                let next = if inward { e.to } else { Some(e.from) };
                if let Some(next) = next.filter(|&b| !done[b]) {
                    offer(next, d + price(flow.edges[id], e.cost), Some(id), &mut heap, &mut way);
                }
            }
        }
        way
    }

    /// Shares flow evenly among equal arms. The least cost does not decide which of two unmeasured arms of a
    /// branch ran, and the solver picks one arbitrarily. Arms that cost the same and meet again in the same
    /// block cannot be distinguished, so they get equal shares.
    fn share_equal_arms(&self, flow: &mut Flow) {
        let n = self.blocks.len();
        let mut out = vec![Vec::new(); n];
        let mut entering = vec![0usize; n];
        for (id, e) in self.edges.iter().enumerate() {
            out[e.from].push(id);
            if let Some(to) = e.to {
                entering[to] += 1;
            }
        }
        // An arm's inner blocks have one way in, one way out and no sample.
        let inner = |b: usize, flow: &Flow| {
            self.blocks[b].weight == 0
                && entering[b] == 1
                && out[b].len() == 1
                && flow.blocks[b].entrance == 0
                && flow.blocks[b].exit == 0
        };
        for b in (0..n).filter(|&b| out[b].len() > 1) {
            let mut arms: BTreeMap<(Option<usize>, i64), Vec<Vec<usize>>> = BTreeMap::new();
            for &first in &out[b] {
                let mut arm = vec![first];
                let mut cost = self.edges[first].cost;
                let mut end = self.edges[first].to;
                while let Some(at) = end.filter(|&at| at != b && inner(at, flow) && arm.len() <= n) {
                    let edge = out[at][0];
                    arm.push(edge);
                    cost += RAISE_ZERO + self.edges[edge].cost;
                    end = self.edges[edge].to;
                }
                arms.entry((end, cost)).or_default().push(arm);
            }
            for arms in arms.into_values().filter(|arms| arms.len() > 1) {
                let total: i64 = arms.iter().map(|arm| flow.edges[arm[0]]).sum();
                let ways = i64::try_from(arms.len()).unwrap_or(i64::MAX);
                for (i, arm) in (0i64..).zip(&arms) {
                    let part = total / ways + i64::from(i < total % ways);
                    for &edge in arm {
                        flow.edges[edge] = part;
                    }
                    for &edge in &arm[1..] {
                        flow.blocks[self.edges[edge].from].runs = part;
                    }
                }
            }
        }
    }

    /// Returns the cost of a flow, which for extreme weights exceeds the range of `i64`.
    #[cfg(test)]
    pub(crate) fn cost(&self, flow: &Flow) -> i128 {
        let blocks = self.blocks.iter().zip(&flow.blocks).map(|(block, flow)| {
            let (w, f) = (block.weight(), flow.runs);
            let unit = if f < w {
                -LOWER
            } else if w > 0 {
                RAISE
            } else {
                RAISE_ZERO
            };
            let door = |cost: Option<i64>, flow| i128::from(cost.unwrap_or(0)) * i128::from(flow);
            i128::from(f - w) * i128::from(unit)
                + door(block.entrance, flow.entrance)
                + door(block.exit, flow.exit)
        });
        let edges = self.edges.iter().zip(&flow.edges).map(|(e, &f)| i128::from(e.cost) * i128::from(f));
        blocks.sum::<i128>() + edges.sum::<i128>()
    }
}

/// Marks all blocks that can be reached from `start`.
fn flood(next: &[Vec<usize>], start: usize, seen: &mut [bool]) {
    let mut stack = vec![start];
    while let Some(b) = stack.pop() {
        if !std::mem::replace(&mut seen[b], true) {
            stack.extend(next[b].iter().filter(|&&b| !seen[b]));
        }
    }
}

#[cfg(test)]
mod tests;
