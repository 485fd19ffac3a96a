//! Merges chains of blocks.
//!
//! Each hot block begins as a chain. The algorithm repeatedly makes the join with the greatest gain in score,
//! over all pairs of chains and ways to join them, until no join has a gain. A chain of up to [`SPLIT_LIMIT`]
//! blocks may be cut in two by the other. Gains of pairs are kept in a heap. After a join, only the joined
//! chain's pairs are computed again. Few pairs are computed at once. Many pairs (of the chain of a large
//! switch) are computed when they reach the top of the heap, as growing distances have lowered most gains.
//!
//! The gain of a pair needs no walk over its blocks. Cutting X into X1 and X2 with Y between moves X2 by |Y|
//! relative to X1, wherever the cut is. Swapping X1 and X2 moves X1 by |X| relative to X2, wherever the cut
//! is. So a jump inside X loses the same at all cuts that it spans, and the losses of all cuts are one
//! running sum.

use crate::block_graph::{EdgeKind, Graph};
use crate::score::{bytes, jump_value, weight};
use std::collections::{BTreeMap, BinaryHeap};

/// The longest chain that is cut. Blocks.
const SPLIT_LIMIT: usize = 128;
/// If a chain has jumps to more chains than this, the pairs' gains are computed when they come up.
const EAGER_LIMIT: usize = 64;

/// One block. All its fields are read together when a join is weighed, so they lie together.
struct Node {
    size: i64,
    chain: usize,
    /// The position of its first byte, from its chain's start.
    offset: i64,
    /// Its index in its chain.
    place: usize,
}

struct Jump {
    from: usize,
    to: usize,
    count: f64,
    kind: EdgeKind,
}

#[derive(Default)]
struct Chain {
    /// Empty once the chain has been joined to another.
    nodes: Vec<usize>,
    size: i64,
    count: f64,
    /// Jumps with both ends here.
    inside: Vec<usize>,
    /// Jumps to and from each other chain.
    across: BTreeMap<usize, Vec<usize>>,
    /// Raised by each join: heap entries of an older version are out of date.
    version: u32,
    /// Whether out-of-date heap entries may be the only ones of some pair.
    lazy: bool,
}

impl Chain {
    fn cuttable(&self) -> bool {
        (2..=SPLIT_LIMIT).contains(&self.nodes.len())
    }
}

/// The ways to join X (cut in two at some node) and Y. Uncut X followed by Y is `Between` with X2 empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Form {
    /// X1 · Y · X2
    Between,
    /// Y · X2 · X1
    Before,
    /// X2 · X1 · Y
    After,
}

#[derive(Clone, Copy)]
struct Join {
    x: usize,
    y: usize,
    cut: usize,
    form: Form,
}

struct Candidate {
    gain: f64,
    join: Join,
    versions: (u32, u32),
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The highest gain first; equal gains by place, so that the result never depends on the heap.
        let key = |c: &Candidate| (c.join.x.min(c.join.y), c.join.x.max(c.join.y));
        self.gain.total_cmp(&other.gain).then_with(|| key(other).cmp(&key(self)))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Candidate {}

struct Merger {
    nodes: Vec<Node>,
    jumps: Vec<Jump>,
    /// By their first nodes: a chain that is joined to another leaves an empty one.
    chains: Vec<Chain>,
    heap: BinaryHeap<Candidate>,
    /// Buffers of [`Merger::best`].
    scratch: (Vec<f64>, Vec<f64>),
    /// The gains of all joins so far.
    #[cfg(test)]
    promised: f64,
}

/// Returns the order of the hot blocks (ascending, 0 first) that merging finds.
pub(crate) fn merge(graph: &Graph, hot: &[usize]) -> Vec<usize> {
    let mut m = Merger::new(graph, hot);
    m.run();
    m.order().into_iter().map(|node| hot[node]).collect()
}

impl Merger {
    fn new(graph: &Graph, hot: &[usize]) -> Self {
        let mut node_of = vec![usize::MAX; graph.blocks.len()];
        for (node, &b) in hot.iter().enumerate() {
            node_of[b] = node;
        }
        let node = |(chain, &b)| Node { size: bytes(graph.size(b)), chain, offset: 0, place: 0 };
        let nodes: Vec<Node> = hot.iter().enumerate().map(node).collect();
        let mut chains: Vec<Chain> = nodes
            .iter()
            .zip(hot)
            .map(|(node, &b)| Chain {
                nodes: vec![node.chain],
                size: node.size,
                count: weight(graph.blocks[b].count),
                ..Chain::default()
            })
            .collect();
        let mut jumps = Vec::new();
        for e in graph.live_edges() {
            let (from, to) = (node_of[e.from], node_of[e.to]);
            // A one-block loop has the same length wherever the block is.
            if from != to {
                chains[from].across.entry(to).or_default().push(jumps.len());
                chains[to].across.entry(from).or_default().push(jumps.len());
                jumps.push(Jump { from, to, count: weight(e.count), kind: e.kind });
            }
        }
        Self {
            nodes,
            jumps,
            chains,
            heap: BinaryHeap::new(),
            scratch: Default::default(),
            #[cfg(test)]
            promised: 0.0,
        }
    }

    fn run(&mut self) {
        for a in 0..self.chains.len() {
            let others: Vec<usize> = self.chains[a].across.range(a + 1..).map(|(&b, _)| b).collect();
            for b in others {
                self.offer(a, b);
            }
        }
        while let Some(best) = self.heap.pop() {
            let join = best.join;
            // A chain has the number of its first node, so this also finds chains that were joined to others.
            let (x, y) = (self.nodes[join.x].chain, self.nodes[join.y].chain);
            if x == y {
                continue;
            }
            if best.versions != (self.chains[join.x].version, self.chains[join.y].version) {
                if self.chains[x].lazy || self.chains[y].lazy {
                    self.offer(x, y);
                }
            } else {
                #[cfg(test)]
                {
                    self.promised += best.gain;
                }
                self.join(join);
            }
        }
    }

    /// Puts the best join of two chains on the heap, if any has a gain.
    fn offer(&mut self, a: usize, b: usize) {
        let (a, b) = (a.min(b), a.max(b));
        let first = self.best(a, b);
        let second = self.best(b, a);
        let best = match (first, second) {
            (Some(p), Some(q)) => Some(if q.0 > p.0 { q } else { p }),
            (p, q) => p.or(q),
        };
        if let Some((gain, join)) = best {
            let versions = (self.chains[join.x].version, self.chains[join.y].version);
            self.heap.push(Candidate { gain, join, versions });
        }
    }

    /// Returns the best way to join Y with a possibly cut X, and its gain, if above 0.
    fn best(&mut self, x: usize, y: usize) -> Option<(f64, Join)> {
        // The cost of a cut before each node, in jumps inside X: with Y between the halves, and with the
        // halves swapped.
        let (mut between, mut swapped) = std::mem::take(&mut self.scratch);
        self.cut_costs(x, self.chains[y].size, &mut between, &mut swapped);
        let best = self.best_given(x, y, &between, &swapped);
        self.scratch = (between, swapped);
        best
    }

    fn best_given(&self, x: usize, y: usize, between: &[f64], swapped: &[f64]) -> Option<(f64, Join)> {
        let (cx, cy) = (&self.chains[x], &self.chains[y]);
        let n = cx.nodes.len();
        let across = cx.across.get(&y)?;
        // The entry always stays the first block.
        let (entry_x, entry_y) = (cx.nodes[0] == 0, cy.nodes[0] == 0);

        let mut best: Option<(f64, Join)> = None;
        let mut try_join = |cut: usize, form: Form, base: f64, shifts: (i64, i64, i64)| {
            let gain = base + self.across_value(across, x, cut, shifts);
            if gain > 1e-9 && best.as_ref().is_none_or(|b| gain > b.0) {
                best = Some((gain, Join { x, y, cut, form }));
            }
        };
        if !entry_y {
            try_join(n, Form::Between, 0.0, (0, 0, cx.size));
        }
        if cx.cuttable() {
            for cut in 1..n {
                let head = self.nodes[cx.nodes[cut]].offset;
                let tail = cx.size - head;
                if !entry_y {
                    try_join(cut, Form::Between, between[cut], (0, cy.size, head));
                }
                if !entry_x {
                    try_join(cut, Form::Before, swapped[cut], (cy.size + tail, cy.size - head, 0));
                }
                if !entry_x && !entry_y {
                    try_join(cut, Form::After, swapped[cut], (tail, -head, cx.size));
                }
            }
        }
        best
    }

    /// Returns the change in value of the jumps between X and Y when X1, X2 and Y move by `shifts`.
    fn across_value(&self, across: &[usize], x: usize, cut: usize, shifts: (i64, i64, i64)) -> f64 {
        let at = |node: &Node| {
            let shift = if node.chain != x {
                shifts.2
            } else if node.place < cut {
                shifts.0
            } else {
                shifts.1
            };
            node.offset + shift
        };
        across
            .iter()
            .map(|&j| {
                let j = &self.jumps[j];
                let (from, to) = (&self.nodes[j.from], &self.nodes[j.to]);
                jump_value(j.kind, j.count, at(from) + from.size, at(to))
            })
            .sum()
    }

    /// Computes for each cut the change in value of jumps inside `chain`, when `gap` bytes come between its
    /// halves and when its halves are swapped. The head of this file explains why one number per jump is
    /// enough.
    fn cut_costs(&self, chain: usize, gap: i64, between: &mut Vec<f64>, swapped: &mut Vec<f64>) {
        let chain = &self.chains[chain];
        if !chain.cuttable() {
            return;
        }
        let n = chain.nodes.len();
        for costs in [&mut *between, &mut *swapped] {
            costs.clear();
            costs.resize(n + 1, 0.0);
        }
        for &j in &chain.inside {
            let j = &self.jumps[j];
            let (from, to) = (&self.nodes[j.from], &self.nodes[j.to]);
            let (p, q) = (from.place, to.place);
            let (end, start) = (from.offset + from.size, to.offset);
            // The half with the jump's source is the reference; the other half moves relative to it.
            let (apart, swap) = if p < q { (gap, -chain.size) } else { (-gap, chain.size) };
            let now = jump_value(j.kind, j.count, end, start);
            let far = jump_value(j.kind, j.count, end, start + apart) - now;
            let turned = jump_value(j.kind, j.count, end, start + swap) - now;
            let (low, high) = (p.min(q) + 1, p.max(q) + 1);
            between[low] += far;
            between[high] -= far;
            swapped[low] += turned;
            swapped[high] -= turned;
        }
        for cut in 1..=n {
            between[cut] += between[cut - 1];
            swapped[cut] += swapped[cut - 1];
        }
    }

    /// Joins two chains; the joined chain keeps X's place.
    fn join(&mut self, join: Join) {
        let Join { x, y, cut, form } = join;
        let gone = std::mem::take(&mut self.chains[y]);
        self.chains[y].version = gone.version + 1;
        let old = std::mem::take(&mut self.chains[x].nodes);
        let (x1, x2) = old.split_at(cut);
        let parts: [&[usize]; 3] = match form {
            Form::Between => [x1, &gone.nodes, x2],
            Form::Before => [&gone.nodes, x2, x1],
            Form::After => [x2, x1, &gone.nodes],
        };
        let nodes = parts.concat();
        let mut at = 0;
        for (place, &node) in nodes.iter().enumerate() {
            let node = &mut self.nodes[node];
            (node.chain, node.offset, node.place) = (x, at, place);
            at += node.size;
        }
        let chain = &mut self.chains[x];
        chain.nodes = nodes;
        chain.size = at;
        chain.count += gone.count;
        chain.version += 1;
        chain.inside.extend(gone.inside);
        chain.inside.extend(chain.across.remove(&y).unwrap_or_default());
        let mut common = Vec::new();
        for (other, jumps) in gone.across {
            if other != x {
                let ours = self.chains[x].across.entry(other).or_default();
                if !ours.is_empty() {
                    common.push(other);
                }
                ours.extend(&jumps);
                let theirs = &mut self.chains[other].across;
                theirs.remove(&y);
                theirs.entry(x).or_default().extend(jumps);
            }
        }
        let chain = &mut self.chains[x];
        chain.lazy = chain.across.len() > EAGER_LIMIT;
        // A pair that had jumps with both chains may gain more than either gain on the heap.
        let others = if chain.lazy { common } else { chain.across.keys().copied().collect() };
        for other in others {
            self.offer(x, other);
        }
    }

    /// Returns the chain of the entry, then the others by executions per byte.
    fn order(&self) -> Vec<usize> {
        let mut left: Vec<&Chain> = self.chains.iter().filter(|c| !c.nodes.is_empty()).collect();
        // Chains are in order of age, so the stable sort makes ties deterministic.
        left.sort_by(|a, b| {
            let entry = |c: &Chain| c.nodes[0] == 0;
            entry(b).cmp(&entry(a)).then_with(|| density(b).total_cmp(&density(a)))
        });
        left.iter().flat_map(|c| &c.nodes).copied().collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for sorting")]
fn density(c: &Chain) -> f64 {
    c.count / c.size.max(1) as f64
}

/// Returns the order of greedy fall-through chains (Pettis and Hansen, PLDI 1990): the most frequent edge
/// that can still become a fall-through becomes one.
pub(crate) fn greedy(graph: &Graph, hot: &[usize]) -> Vec<usize> {
    let n = graph.blocks.len();
    let mut edges: Vec<_> =
        graph.live_edges().filter(|e| e.kind != EdgeKind::Indirect && e.from != e.to && e.to != 0).collect();
    edges.sort_by_key(|e| (std::cmp::Reverse(e.count), e.from, e.to));
    let (mut next, mut has_prev) = (vec![None; n], vec![false; n]);
    // The other end of the chain, correct for both ends of every chain.
    let mut other_end: Vec<usize> = (0..n).collect();
    for e in edges {
        if next[e.from].is_none() && !has_prev[e.to] && other_end[e.from] != e.to {
            next[e.from] = Some(e.to);
            has_prev[e.to] = true;
            let (head, tail) = (other_end[e.from], other_end[e.to]);
            other_end[head] = tail;
            other_end[tail] = head;
        }
    }
    let mut order = Vec::with_capacity(hot.len());
    for &head in hot.iter().filter(|&&b| !has_prev[b]) {
        let mut at = Some(head);
        while let Some(b) = at {
            order.push(b);
            at = next[b];
        }
    }
    order
}

/// Returns the sum of the gains that merging expected, and the final value of the jumps inside chains.
#[cfg(test)]
pub(crate) fn promise_and_score(graph: &Graph, hot: &[usize]) -> (f64, f64) {
    let mut m = Merger::new(graph, hot);
    m.run();
    let inside = m.chains.iter().flat_map(|c| &c.inside).map(|&j| {
        let j = &m.jumps[j];
        let (from, to) = (&m.nodes[j.from], &m.nodes[j.to]);
        jump_value(j.kind, j.count, from.offset + from.size, to.offset)
    });
    (m.promised, inside.sum())
}
