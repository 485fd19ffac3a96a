//! Consistent execution counts of one function.

use crate::flow_graph::{Edge, FlowGraph, UNLIKELY};
use code::{BlockId, Cfg, Dest, Term};

/// How often each block and each edge of a function ran, up to a factor. Consistent: for every block `b`
///
/// `blocks[b] = inflow[b] + edges into b = outflow[b] + sum of edges[b]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// How often the function was entered at its entry: `inflow[0]`.
    pub entry: u64,
    /// By block.
    pub blocks: Vec<u64>,
    /// By block: its edges in the order in which `Cfg::successors` gives them, those to the outside included.
    pub edges: Vec<Vec<u64>>,
    /// By block: entered from outside the graph (the entry, landing pads, targets of unknown jumps; in counts mended
    /// by [`crate::CounterPlan::solve`] any block that threads must have come to unseen).
    pub inflow: Vec<u64>,
    /// By block: left by no edge (returns, unknown jumps, calls that do not return, traps; also one block of a loop
    /// that has no way out, and in mended counts any block that threads must have left unseen, by an exception say).
    pub outflow: Vec<u64>,
}

impl Counts {
    /// The counts of a function that never ran.
    #[must_use]
    pub fn zero(cfg: &Cfg) -> Self {
        let n = cfg.blocks.len();
        let edges = cfg.block_ids().map(|b| {
            let mut degree = 0;
            cfg.successors(b, |_| degree += 1);
            vec![0; degree]
        });
        Self { entry: 0, blocks: vec![0; n], edges: edges.collect(), inflow: vec![0; n], outflow: vec![0; n] }
    }

    /// How often a block ran; 0 where nothing is known of it.
    #[must_use]
    pub fn block(&self, b: BlockId) -> u64 {
        self.blocks.get(b.index()).copied().unwrap_or(0)
    }

    /// Whether the counts have the shape of `cfg` and satisfy the equation above.
    #[must_use]
    pub fn is_consistent(&self, cfg: &Cfg) -> bool {
        let n = cfg.blocks.len();
        if [self.blocks.len(), self.edges.len(), self.inflow.len(), self.outflow.len()] != [n; 4] {
            return false;
        }
        let wide = |v: &[u64]| v.iter().map(|&c| u128::from(c)).collect::<Vec<_>>();
        let (mut entered, mut left) = (wide(&self.inflow), wide(&self.outflow));
        for (b, id) in (0..n).zip(0u32..) {
            let mut counts = self.edges[b].iter();
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
        self.entry == self.inflow.first().copied().unwrap_or(0)
            && wide(&self.blocks) == entered
            && entered == left
    }
}

/// The block a destination names, if it is one of `n`.
fn inside(dest: Dest, n: usize) -> Option<usize> {
    match dest {
        Dest::Block(b) => Some(b.index()).filter(|&b| b < n),
        Dest::Outside(_) => None,
    }
}

/// The consistent counts nearest to measured block weights (see [`crate::weights`]; missing ones are 0), by
/// minimum-cost flow.
#[must_use]
pub fn infer(cfg: &Cfg, weights: &[u64]) -> Counts {
    let (graph, degrees) = graph_of(cfg, weights);
    let flow = graph.infer();
    let unsigned = |v: &[i64]| v.iter().map(|&f| u64::try_from(f).unwrap_or(0)).collect::<Vec<u64>>();
    let mut edges = unsigned(&flow.edges).into_iter();
    let inflow = unsigned(&flow.entrances);
    Counts {
        entry: inflow.first().copied().unwrap_or(0),
        blocks: unsigned(&flow.blocks),
        edges: degrees.into_iter().map(|degree| edges.by_ref().take(degree).collect()).collect(),
        inflow,
        outflow: unsigned(&flow.exits),
    }
}

/// The plain graph of a function, and how many edges each block has.
pub(crate) fn graph_of(cfg: &Cfg, weights: &[u64]) -> (FlowGraph, Vec<usize>) {
    let n = cfg.blocks.len();
    let mut graph = FlowGraph {
        weights: (0..n).map(|b| weights.get(b).copied().unwrap_or(0)).collect(),
        entrances: vec![None; n],
        exits: cfg.blocks.iter().map(|b| exit_cost(&b.term)).collect(),
        edges: Vec::new(),
    };
    let mut degrees = Vec::with_capacity(n);
    let mut entered = vec![false; n];
    for (from, id) in (0..n).zip(0u32..) {
        let before = graph.edges.len();
        let branches = !matches!(cfg.blocks[from].term, Term::Fall { .. } | Term::Jump { .. });
        cfg.successors(BlockId(id), |dest| {
            let to = inside(dest, n);
            // A whole block that only leaves is a tail call; one arm of a branch that leaves goes to code that was
            // split off as cold or not understood. Nor do branches often go where the program ends.
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
        graph.entrances[b] = match b {
            0 => Some(0),
            _ if block.landing_pad => Some(UNLIKELY),
            _ if !entered[b] => Some(0),
            _ => None,
        };
    }
    (graph, degrees)
}

/// The cost of leaving the graph at such an end, if that can be.
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

/// Whether the program ends, or an exception is thrown, at such an end.
fn doomed(term: &Term) -> bool {
    matches!(term, Term::NoReturnCall { .. } | Term::Trap)
}

#[cfg(test)]
mod tests;
