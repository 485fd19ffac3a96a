//! The order of the blocks of clones, and which of them are hot: by counts, or at random.

use crate::base::passes::{Pass, Style};
use crate::plan::candidate::Counted;
use crate::plan::laid_out::{BlockOrder, Ordered};
use crate::plan::rare;
use crate::plan::shuffle::Rng;
use crate::plan::split;
use code::{BlockId, Cfg, Dest, Term};
use layout::{Block, Edge, EdgeKind, Graph};
use profile::Counts;

/// Chooses the order of each clone's blocks and which of them are hot.
pub(crate) fn choose(counted: Vec<Counted>, style: Style) -> Vec<Ordered> {
    match style.shuffle {
        Some(seed) => {
            let mut rng = Rng::new(seed);
            counted.into_iter().map(|c| at_random(c, &mut rng)).collect()
        }
        None => {
            let by_counts = style.passes.has(Pass::Blocks);
            let ordered = counted.into_iter().map(|c| measured(c, by_counts)).collect();
            if style.passes.has(Pass::Split) { split::split(ordered) } else { ordered }
        }
    }
}

/// Orders blocks at random behind the entry. Some blocks are left out, so that edges to the original are
/// taken too. A random number of blocks is hot, possibly none or all.
fn at_random(counted: Counted, rng: &mut Rng) -> Ordered {
    let others = counted.analysed.cfg.block_ids().skip(1);
    let mut rest: Vec<BlockId> = others.filter(|_| rng.below(8) != 0).collect();
    rng.shuffle(&mut rest);
    let blocks: Vec<BlockId> = [BlockId(0)].into_iter().chain(rest).collect();
    let hot = rng.below(blocks.len() + 1);
    Ordered { counted, order: BlockOrder::new(blocks, hot) }
}

/// Orders the blocks that run, by counts or as in the original. All of them are hot.
fn measured(counted: Counted, by_counts: bool) -> Ordered {
    let c = &counted;
    let cfg = &c.analysed.cfg;
    let runs = if c.is_counted() { ran(&c.counts, &c.hits) } else { perhaps_hot(cfg, &c.counts, &c.hits) };
    let order = if by_counts { order_blocks(cfg, &c.counts) } else { cfg.block_ids().collect() };
    let runs = |b: &BlockId| runs.get(b.index()).copied().unwrap_or(false);
    let blocks: Vec<BlockId> = order.into_iter().filter(runs).collect();
    let hot = blocks.len();
    Ordered { counted, order: BlockOrder::new(blocks, hot) }
}

/// Returns for each block whether a count or a sample shows that it ran.
fn ran(counts: &Counts, samples: &[u64]) -> Vec<bool> {
    let sampled = |b| samples.get(b).is_some_and(|&s: &u64| s > 0);
    counts.blocks.iter().enumerate().map(|(b, block)| b == 0 || block.count > 0 || sampled(b)).collect()
}

/// Returns for each block whether it may run, judged by inference from few samples.
fn perhaps_hot(cfg: &Cfg, counts: &Counts, samples: &[u64]) -> Vec<bool> {
    let rare = rare::rare_blocks(cfg);
    profile::hot_blocks(cfg, counts, samples).into_iter().zip(rare).map(|(hot, rare)| hot || !rare).collect()
}

/// Returns all blocks, and how many of them are hot. Blocks that ran come first, in their best order. If no
/// block but the entry is known to have run, all blocks are hot, in the original order.
pub fn all_blocks(cfg: &Cfg, counts: &Counts) -> (Vec<BlockId>, usize) {
    let (mut order, cold): (Vec<BlockId>, Vec<BlockId>) =
        order_blocks(cfg, counts).into_iter().partition(|&b| b == BlockId(0) || counts.block(b) > 0);
    if order.len() <= 1 {
        return (cfg.block_ids().collect(), cfg.blocks.len());
    }
    let hot = order.len();
    order.extend(cold);
    (order, hot)
}

/// Returns all blocks in ext-TSP order.
fn order_blocks(cfg: &Cfg, counts: &Counts) -> Vec<BlockId> {
    let order = layout::ext_tsp(&graph(cfg, counts)).into_iter();
    order.filter_map(|b| u32::try_from(b).ok().map(BlockId)).collect()
}

/// Returns the graph by which the blocks of a function are ordered.
#[must_use]
pub fn graph(cfg: &Cfg, counts: &Counts) -> Graph {
    let block = |(id, b): (BlockId, &code::Block)| Block { size: b.range.len(), count: counts.block(id) };
    let blocks = cfg.block_ids().zip(&cfg.blocks).map(block).collect();
    let mut edges = Vec::new();
    for (id, block) in cfg.block_ids().zip(&cfg.blocks) {
        let kind = match block.term {
            Term::Cond { .. } | Term::CondShort { .. } => EdgeKind::Conditional,
            Term::Switch { .. } => EdgeKind::Indirect,
            _ => EdgeKind::Unconditional,
        };
        let mut counts = counts.edges(id).iter();
        cfg.successors(id, |dest| {
            let count = counts.next().copied().unwrap_or(0);
            if let Dest::Block(to) = dest {
                edges.push(Edge { from: id.index(), to: to.index(), count, kind });
            }
        });
    }
    Graph { blocks, edges }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::passes::Passes;
    use crate::plan::test_candidate::{counted, set_edges};

    /// b2 runs always, b3 never, b1 rarely.
    fn mixed() -> Counted {
        let mut c = counted(1, &[100_000, 1, 99_999, 0], 9);
        set_edges(&mut c.measured.counts, &[&[99_999, 1], &[], &[99_999, 0], &[]]);
        c
    }

    #[test]
    fn blocks_that_ran_come_first_and_none_is_missing() {
        let c = mixed();
        let ids = |(order, hot): (Vec<BlockId>, usize)| (order.iter().map(|b| b.0).collect::<Vec<_>>(), hot);
        assert_eq!(ids(all_blocks(&c.analysed.cfg, &c.counts)), (vec![0, 2, 1, 3], 3));
        assert_eq!(ids(all_blocks(&c.analysed.cfg, &Counts::default())), (vec![0, 1, 2, 3], 4));
    }

    #[test]
    fn orders_without_some_passes() {
        let order = |left_out: &[Pass]| {
            let style = Style { passes: Passes::without(left_out), ..Style::default() };
            let order = &choose(vec![mixed()], style)[0].order;
            (order.all().iter().map(|b| b.0).collect::<Vec<_>>(), order.hot().len())
        };
        assert_eq!(order(&[]), (vec![0, 2, 1], 2));
        assert_eq!(order(&[Pass::Blocks]), (vec![0, 2, 1], 2), "split all the same");
        assert_eq!(order(&[Pass::Split]), (vec![0, 2, 1], 3));
        assert_eq!(order(&[Pass::Blocks, Pass::Split]), (vec![0, 1, 2], 3));
    }
}
