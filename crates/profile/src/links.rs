//! A function as a closed circulation of control.
//!
//! Each block is a link from the node where it begins to the node where it ends. Each edge of the function is
//! a link between blocks. One more node, the world, closes the circulation. From it, a link leads to each
//! block that is entered from outside. To it, a link leads from each place where control leaves. The flow
//! into each node equals the flow out of it.

use crate::counts::{BlockCounts, Counts, graph_of};
use code::{BlockId, Cfg, Point};

/// The node for all code outside the function.
pub(crate) const WORLD: usize = 0;

/// Returns the node where a block begins.
pub(crate) fn enter(b: usize) -> usize {
    1 + 2 * b
}

/// Returns the node where a block ends.
pub(crate) fn leave(b: usize) -> usize {
    2 + 2 * b
}

/// The part of the function that a link stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Entering a block from outside.
    Entrance(BlockId),
    /// Passing through a block.
    Block(BlockId),
    /// An edge, by its index in the order of `Cfg::successors`.
    Edge(BlockId, u32),
    /// Leaving a block by no edge.
    Exit(BlockId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) place: Place,
    /// Whether the shape of the code suggests that control rarely passes the link.
    pub(crate) rare: bool,
}

impl Link {
    /// Returns the place of the link's counter. `None` for an entrance and an exit, where no counter can be
    /// placed.
    pub(crate) fn point(&self) -> Option<Point> {
        match self.place {
            Place::Block(b) => Some(Point::Block(b)),
            Place::Edge(from, index) => Some(Point::Edge { from, index }),
            Place::Entrance(_) | Place::Exit(_) => None,
        }
    }

    /// Returns how often control passed the link according to these counts; 0 if they have no number for it.
    pub(crate) fn of(&self, counts: &Counts) -> u64 {
        match self.place {
            Place::Entrance(b) => counts.blocks.get(b.index()).map_or(0, |b| b.inflow),
            Place::Block(b) => counts.block(b),
            Place::Edge(b, index) => counts.edges(b).get(index as usize).copied().unwrap_or(0),
            Place::Exit(b) => counts.blocks.get(b.index()).map_or(0, |b| b.outflow),
        }
    }
}

/// Returns the links of a function, block by block: its entrance, the block, its edges in order, its exit.
/// Every block can be reached from the world and leads back to it, because closed parts are opened as for
/// flow inference.
pub(crate) fn links_of(cfg: &Cfg) -> Vec<Link> {
    let (mut graph, degrees) = graph_of(cfg, &[]);
    graph.open_closed_parts();
    let mut edges = graph.edges.iter();
    let mut links = Vec::new();
    for ((at, id), degree) in (0..).zip(0u32..).zip(degrees) {
        let b = BlockId(id);
        let mut link = |from, to, place, cost: i64| links.push(Link { from, to, place, rare: cost > 0 });
        if let Some(cost) = graph.blocks[at].entrance {
            link(WORLD, enter(at), Place::Entrance(b), cost);
        }
        link(enter(at), leave(at), Place::Block(b), 0);
        for (index, edge) in (0u32..).zip(edges.by_ref().take(degree)) {
            link(leave(at), edge.to.map_or(WORLD, enter), Place::Edge(b, index), edge.cost);
        }
        if let Some(cost) = graph.blocks[at].exit {
            link(leave(at), WORLD, Place::Exit(b), cost);
        }
    }
    links
}

/// Returns the counts of `n` blocks from the flows of all links, in the order of [`links_of`].
pub(crate) fn counts_of(n: usize, flows: impl IntoIterator<Item = (Place, u64)>) -> Counts {
    let mut blocks = vec![BlockCounts::default(); n];
    for (place, flow) in flows {
        match place {
            Place::Entrance(b) => blocks[b.index()].inflow = flow,
            Place::Block(b) => blocks[b.index()].count = flow,
            Place::Edge(b, _) => blocks[b.index()].edges.push(flow),
            Place::Exit(b) => blocks[b.index()].outflow = flow,
        }
    }
    let mut counts = Counts { entry: 0, blocks };
    counts.entry = counts.entered();
    counts
}
