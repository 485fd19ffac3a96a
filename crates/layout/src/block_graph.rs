//! The blocks of one function and the jumps between them, with sizes and counts.

/// The kind of control transfer along an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeKind {
    /// One of the two ways of a conditional branch: a fall-through if its destination comes next.
    Conditional,
    /// The only way out of its block: needs no jump if its destination comes next.
    Unconditional,
    /// One of the ways of an indirect jump: never a fall-through, but gains from a short distance.
    Indirect,
}

/// Control flow from one block to another. Parallel edges are allowed and add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Index of the block it leaves.
    pub from: usize,
    /// Index of the block it enters.
    pub to: usize,
    /// Execution count.
    pub count: u64,
    /// The kind of control transfer.
    pub kind: EdgeKind,
}

/// One block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its size. 0 counts as 1. Bytes.
    pub size: u64,
    /// Execution count.
    pub count: u64,
}

/// One function: block 0 is the entry.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// Jumps between blocks. An edge with an invalid index is ignored.
    pub edges: Vec<Edge>,
}

impl Graph {
    /// Returns the size of block `b`, at least 1 so that no two blocks begin at one place. Bytes.
    pub(crate) fn size(&self, b: usize) -> u64 {
        self.blocks.get(b).map_or(1, |b| b.size.max(1))
    }

    /// Returns the edges with a count above 0 and valid blocks.
    pub(crate) fn live_edges(&self) -> impl Iterator<Item = &Edge> {
        let n = self.blocks.len();
        self.edges.iter().filter(move |e| e.count > 0 && e.from < n && e.to < n)
    }

    /// Returns whether each block takes part in the ordering: the entry, blocks that ran, and both ends of
    /// edges that were taken.
    pub(crate) fn hot(&self) -> Vec<bool> {
        let ran = self.blocks.iter().map(|b| b.count > 0);
        let mut hot: Vec<bool> = ran.enumerate().map(|(b, ran)| b == 0 || ran).collect();
        for e in self.live_edges() {
            hot[e.from] = true;
            hot[e.to] = true;
        }
        hot
    }
}
