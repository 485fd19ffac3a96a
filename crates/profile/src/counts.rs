//! Consistent execution counts of one function.

use crate::flow_graph::{self, BlockFlow, Edge, FlowGraph, UNLIKELY};
use code::{BlockId, Cfg, Dest, Term};

/// Execution counts of each block and edge of a function, up to a factor. Counts are consistent if for every
/// block
///
/// `count = inflow + edges into it = outflow + sum of edges`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// How often control entered the function at its entry: the inflow of block 0.
    pub entry: u64,
    /// By block.
    pub blocks: Vec<BlockCounts>,
}

/// Execution counts of one block and its edges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockCounts {
    /// How often it ran.
    pub count: u64,
    /// Its edges in the order of `Cfg::successors`, including edges to the outside.
    pub edges: Vec<u64>,
    /// How often control entered from outside the graph (the entry, landing pads, targets of unknown jumps).
    /// In counts that were made consistent ([`crate::CounterPlan::solve`], [`crate::BranchStacks::counts`]),
    /// also how often threads must have entered unseen.
    pub inflow: u64,
    /// How often control left by no edge (returns, unknown jumps, calls that do not return, traps). A loop
    /// without a way out has such a count on one block. In counts that were made consistent, also how often
    /// threads must have left unseen, for example by an exception.
    pub outflow: u64,
}

impl Counts {
    /// Returns the counts of a function that never ran.
    #[must_use]
    pub fn zero(cfg: &Cfg) -> Self {
        let block = |b| {
            let mut edges = Vec::new();
            cfg.successors(b, |_| edges.push(0));
            BlockCounts { edges, ..BlockCounts::default() }
        };
        Self { entry: 0, blocks: cfg.block_ids().map(block).collect() }
    }

    /// Returns how often a block ran; 0 if nothing is known about it.
    #[must_use]
    pub fn block(&self, b: BlockId) -> u64 {
        self.blocks.get(b.index()).map_or(0, |b| b.count)
    }

    /// Returns the counts of a block's edges; nothing if nothing is known about it.
    #[must_use]
    pub fn edges(&self, b: BlockId) -> &[u64] {
        self.blocks.get(b.index()).map_or(&[], |b| &b.edges)
    }

    /// Returns whether any block ran.
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.blocks.iter().any(|b| b.count > 0)
    }

    /// Returns the inflow of block 0.
    pub(crate) fn entered(&self) -> u64 {
        self.blocks.first().map_or(0, |b| b.inflow)
    }

    /// Returns whether the counts have the shape of `cfg` and satisfy the equation of [`Counts`].
    #[must_use]
    pub fn is_consistent(&self, cfg: &Cfg) -> bool {
        let n = cfg.blocks.len();
        if self.blocks.len() != n {
            return false;
        }
        let wide = |of: fn(&BlockCounts) -> u64| self.blocks.iter().map(|b| of(b).into()).collect();
        let ran: Vec<u128> = wide(|b| b.count);
        let mut entered: Vec<u128> = wide(|b| b.inflow);
        let mut left: Vec<u128> = wide(|b| b.outflow);
        for (b, id) in (0..n).zip(0u32..) {
            let mut counts = self.blocks[b].edges.iter();
            let mut sound = true;
            cfg.successors(BlockId(id), |dest| match counts.next() {
                Some(&count) => {
                    left[b] += u128::from(count);
                    if let Some(to) = inside(dest, n) {
                        entered[to] += u128::from(count);
                    }
                }
                None => sound = false,
            });
            if !sound || counts.next().is_some() {
                return false;
            }
        }
        self.entry == self.entered() && ran == entered && entered == left
    }
}

/// Returns the block that a destination names; `None` if it is none of the `n` blocks.
fn inside(dest: Dest, n: usize) -> Option<usize> {
    match dest {
        Dest::Block(b) => Some(b.index()).filter(|&b| b < n),
        Dest::Outside(_) => None,
    }
}

/// Returns the consistent counts nearest to measured block weights (see [`crate::weights`]), by minimum-cost
/// flow. Missing weights are 0.
#[must_use]
pub fn infer(cfg: &Cfg, weights: &[u64]) -> Counts {
    let (graph, degrees) = graph_of(cfg, weights);
    let flow = graph.infer();
    let unsigned = |f: i64| u64::try_from(f).unwrap_or(0);
    let mut edges = flow.edges.iter().map(|&f| unsigned(f));
    let block = |(b, degree): (&BlockFlow, usize)| BlockCounts {
        count: unsigned(b.runs),
        edges: edges.by_ref().take(degree).collect(),
        inflow: unsigned(b.entrance),
        outflow: unsigned(b.exit),
    };
    let blocks = flow.blocks.iter().zip(degrees).map(block).collect();
    let mut counts = Counts { entry: 0, blocks };
    counts.entry = counts.entered();
    counts
}

/// Returns the flow graph of a function, and how many edges each block has.
pub(crate) fn graph_of(cfg: &Cfg, weights: &[u64]) -> (FlowGraph, Vec<usize>) {
    let n = cfg.blocks.len();
    let block = |(b, block): (usize, &code::Block)| flow_graph::Block {
        weight: weights.get(b).copied().unwrap_or(0),
        entrance: None,
        exit: exit_cost(&block.term),
    };
    let blocks = cfg.blocks.iter().enumerate().map(block).collect();
    let mut graph = FlowGraph { blocks, edges: Vec::new() };
    let mut degrees = Vec::with_capacity(n);
    let mut entered = vec![false; n];
    for (from, id) in (0..n).zip(0u32..) {
        let before = graph.edges.len();
        let branches = !matches!(cfg.blocks[from].term, Term::Fall { .. } | Term::Jump { .. });
        cfg.successors(BlockId(id), |dest| {
            let to = inside(dest, n);
            // A block with a jump to the outside as its only way is a tail call. But an arm of a branch that
            // leaves the function leads to code that was split off as cold or not understood, so it is
            // unlikely. An arm to a block where the program ends or throws is unlikely too.
            let cost = match to {
                Some(b) => doomed(&cfg.blocks[b].term),
                None => branches,
            };
            if let Some(b) = to {
                entered[b] = true;
            }
            graph.edges.push(Edge { from, to, cost: if cost { UNLIKELY } else { 0 } });
        });
        degrees.push(graph.edges.len() - before);
    }
    for (b, block) in cfg.blocks.iter().enumerate() {
        graph.blocks[b].entrance = match b {
            0 => Some(0),
            _ if block.landing_pad => Some(UNLIKELY),
            _ if !entered[b] => Some(0),
            _ => None,
        };
    }
    (graph, degrees)
}

/// Returns the cost of leaving the graph at such a block end; `None` if control cannot leave there.
fn exit_cost(term: &Term) -> Option<i64> {
    match term {
        Term::Return | Term::Indirect => Some(0),
        Term::NoReturnCall { .. } | Term::Trap => Some(UNLIKELY),
        Term::Fall { .. }
        | Term::Jump { .. }
        | Term::Cond { .. }
        | Term::CondShort { .. }
        | Term::Switch { .. } => None,
    }
}

/// Returns whether the program ends, or an exception is thrown, at such a block end.
fn doomed(term: &Term) -> bool {
    matches!(term, Term::NoReturnCall { .. } | Term::Trap)
}

#[cfg(test)]
mod tests;
