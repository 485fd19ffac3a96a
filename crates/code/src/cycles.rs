//! Finds the blocks that can run again before the function is left.

use crate::{Cfg, Dest};

/// Returns for each block whether the graph's edges lead from it back to it. Control flow outside the graph
/// is ignored.
///
/// These are the components of more than one block, and blocks with an edge to themselves (Tarjan,
/// *Depth-first search and linear graph algorithms*, 1972). The search is not recursive, as a graph may be
/// one long path.
#[must_use]
pub fn in_cycles(cfg: &Cfg) -> Vec<bool> {
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); cfg.blocks.len()];
    for (out, b) in edges.iter_mut().zip(cfg.block_ids()) {
        cfg.successors(b, |to| {
            if let Dest::Block(to) = to {
                out.push(to.index());
            }
        });
    }
    let mut search = Search { blocks: vec![Block::default(); edges.len()], next: 0, open: Vec::new() };
    (0..edges.len()).for_each(|b| search.run(&edges, b));
    search.blocks.iter().map(|b| b.in_cycle).collect()
}

/// The state of one block in a search.
#[derive(Clone, Default)]
struct Block {
    /// Its number in the order of discovery; `usize::MAX` once its component is complete.
    found: Option<usize>,
    /// The lowest number of an open block that it is known to reach.
    lowest: usize,
    in_cycle: bool,
}

struct Search {
    blocks: Vec<Block>,
    /// The number of the next block to be found.
    next: usize,
    /// Blocks whose component is not complete yet, in the order of discovery.
    open: Vec<usize>,
}

impl Search {
    fn run(&mut self, edges: &[Vec<usize>], start: usize) {
        // The path to the current block, with the number of followed edges of each block.
        let mut path: Vec<(usize, usize)> = Vec::new();
        self.enter(start, &mut path);
        while let Some((b, gone)) = path.last_mut() {
            let b = *b;
            if let Some(&to) = edges[b].get(*gone) {
                *gone += 1;
                self.blocks[b].in_cycle |= to == b;
                match self.blocks[to].found {
                    None => self.enter(to, &mut path),
                    Some(found) => self.lower(b, found),
                }
                continue;
            }
            path.pop();
            if let Some(&(before, _)) = path.last() {
                self.lower(before, self.blocks[b].lowest);
            }
            if self.blocks[b].found == Some(self.blocks[b].lowest) {
                self.complete(b);
            }
        }
    }

    fn enter(&mut self, b: usize, path: &mut Vec<(usize, usize)>) {
        let block = &mut self.blocks[b];
        if block.found.is_none() {
            (block.found, block.lowest) = (Some(self.next), self.next);
            self.next += 1;
            self.open.push(b);
            path.push((b, 0));
        }
    }

    /// Notes that a block reaches the open block of this number.
    fn lower(&mut self, b: usize, found: usize) {
        let block = &mut self.blocks[b];
        block.lowest = block.lowest.min(found);
    }

    /// Completes the component that was entered by `first`: all open blocks found since.
    fn complete(&mut self, first: usize) {
        let from = self.open.iter().rposition(|b| *b == first).unwrap_or(0);
        let component = self.open.split_off(from);
        for &b in &component {
            let block = &mut self.blocks[b];
            block.found = Some(usize::MAX);
            block.in_cycle |= component.len() > 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use proptest::prelude::*;

    /// Returns a graph of blocks with one jump or branch each, by their destinations; a number past the last
    /// block is outside.
    fn graph(edges: &[(usize, Option<usize>)]) -> Cfg {
        let at = |b: usize| 0x1000 + 2 * b;
        let name = |b: usize| if b < edges.len() { format!("b{b}") } else { format!("{:#x}", at(b)) };
        let mut text = format!("function 0x1000\npart 0x1000..{:#x}\n", at(edges.len()));
        for (b, &(to, other)) in edges.iter().enumerate() {
            let (opcode, way) = match other {
                Some(other) => ("75", format!("cond ne {} else {}", name(to), name(other))),
                None => ("eb", format!("jump {}", name(to))),
            };
            text += &format!("block b{b} {:#x}\n  {opcode} 00\n  {way}\n", at(b));
        }
        parse(&text).unwrap()
    }

    fn reaches_itself(edges: &[(usize, Option<usize>)], b: usize) -> bool {
        let (mut seen, mut left) = (vec![false; edges.len()], vec![b]);
        while let Some(from) = left.pop() {
            let (to, other) = edges[from];
            for to in [Some(to), other].into_iter().flatten().filter(|&to| to < edges.len()) {
                if !std::mem::replace(&mut seen[to], true) {
                    left.push(to);
                }
            }
        }
        seen[b]
    }

    #[test]
    fn blocks_between_loops_are_in_no_cycle() {
        let edges = [(1, None), (1, Some(2)), (3, None), (4, Some(5)), (3, None), (9, None)];
        assert_eq!(in_cycles(&graph(&edges)), [false, true, false, true, true, false]);
    }

    #[test]
    fn a_long_path_takes_no_stack() {
        let edges: Vec<_> = (0..60_000).map(|b| (b + 1, None)).collect();
        assert!(!in_cycles(&graph(&edges)).contains(&true));
    }

    proptest! {
        #[test]
        fn as_by_brute_force(edges in (1..12usize).prop_flat_map(|n| prop::collection::vec((0..n + 1, prop::option::of(0..n + 1)), n))) {
            let expected: Vec<bool> = (0..edges.len()).map(|b| reaches_itself(&edges, b)).collect();
            prop_assert_eq!(in_cycles(&graph(&edges)), expected);
        }
    }
}
