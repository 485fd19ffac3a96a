//! A function as one closed circulation.
//!
//! Each block is a link from where it is entered to where it is left, each edge of the function a link between
//! blocks; a node for the world outside closes it: where code is entered from outside a link comes from there, and
//! where control leaves a link goes there. As much flows into each node as out of it.

use crate::counts::{Counts, graph_of};
use code::{BlockId, Cfg, Point};

/// The node for everything outside the function.
pub(crate) const WORLD: usize = 0;

/// The node where a block begins.
pub(crate) fn enter(b: usize) -> usize {
    1 + 2 * b
}

/// The node where a block ends.
pub(crate) fn leave(b: usize) -> usize {
    2 + 2 * b
}

/// What a link stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Coming into a block from outside.
    Entrance(BlockId),
    /// Passing through a block.
    Block(BlockId),
    /// An edge, by its place in the order of `Cfg::successors`.
    Edge(BlockId, u32),
    /// Leaving a block by no edge.
    Exit(BlockId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) place: Place,
    /// Whether control rarely passes it, as the code looks.
    pub(crate) rare: bool,
}

impl Link {
    /// Where its counter would be; no counter can see control enter or leave by no edge.
    pub(crate) fn point(&self) -> Option<Point> {
        match self.place {
            Place::Block(b) => Some(Point::Block(b)),
            Place::Edge(from, index) => Some(Point::Edge { from, index }),
            Place::Entrance(_) | Place::Exit(_) => None,
        }
    }

    /// How often it was passed by these counts; 0 where they do not say.
    pub(crate) fn of(&self, counts: &Counts) -> u64 {
        let at = |v: &[u64], b: BlockId| v.get(b.index()).copied().unwrap_or(0);
        match self.place {
            Place::Entrance(b) => at(&counts.inflow, b),
            Place::Block(b) => at(&counts.blocks, b),
            Place::Edge(b, index) => {
                let edge = counts.edges.get(b.index()).and_then(|edges| edges.get(index as usize));
                edge.copied().unwrap_or(0)
            }
            Place::Exit(b) => at(&counts.outflow, b),
        }
    }
}

/// The links of a function, block by block: its entrance, the block, its edges in order, its exit. Every block can be
/// reached from the world and gets back there: closed parts are opened the way inference opens them.
pub(crate) fn links_of(cfg: &Cfg) -> Vec<Link> {
    let (mut graph, degrees) = graph_of(cfg, &[]);
    graph.open_closed_parts();
    let mut edges = graph.edges.iter();
    let mut links = Vec::new();
    for ((at, id), degree) in (0..).zip(0u32..).zip(degrees) {
        let b = BlockId(id);
        let mut link = |from, to, place, cost: i64| links.push(Link { from, to, place, rare: cost > 0 });
        if let Some(cost) = graph.entrances[at] {
            link(WORLD, enter(at), Place::Entrance(b), cost);
        }
        link(enter(at), leave(at), Place::Block(b), 0);
        for (index, edge) in (0u32..).zip(edges.by_ref().take(degree)) {
            link(leave(at), edge.to.map_or(WORLD, enter), Place::Edge(b, index), edge.cost);
        }
        if let Some(cost) = graph.exits[at] {
            link(leave(at), WORLD, Place::Exit(b), cost);
        }
    }
    links
}

/// Counts of `n` blocks from the flows of all their links, in the order of [`links_of`].
pub(crate) fn counts_of(n: usize, links: &[Link], flows: &[u64]) -> Counts {
    let mut counts = Counts {
        entry: 0,
        blocks: vec![0; n],
        edges: vec![Vec::new(); n],
        inflow: vec![0; n],
        outflow: vec![0; n],
    };
    for (link, &flow) in links.iter().zip(flows) {
        match link.place {
            Place::Entrance(b) => counts.inflow[b.index()] = flow,
            Place::Block(b) => counts.blocks[b.index()] = flow,
            Place::Edge(b, _) => counts.edges[b.index()].push(flow),
            Place::Exit(b) => counts.outflow[b.index()] = flow,
        }
    }
    counts.entry = counts.inflow.first().copied().unwrap_or(0);
    counts
}
