//! Loop unrolling.
//!
//! A loop takes its back edge once per iteration, whatever the order of its blocks. With copies of its blocks
//! in a row, it jumps back only behind the last copy. All copies are planned alike; only the block that
//! follows makes a difference (`plan`). The last block of a copy is followed by the first block of the next
//! copy. So its loop branch is inverted there, and leaves the loop.
//!
//! Law 2 holds in each copy: each instruction is the same and leads to a copy of the same instruction.
//! Control from outside the loop enters the first copy.

use crate::plan::has_code_operand;
use crate::request::Function;
use code::{BlockId, Cfg, Dest, InstId, Term};
use iced_x86::FlowControl;

/// The largest unroll factor. More copies would only take more space.
const MOST_COPIES: u32 = 16;

/// A loop to unroll: blocks that are contiguous in a clone's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unroll {
    /// The place of its first block in [`Function::order`].
    pub first: usize,
    /// The number of its blocks.
    pub blocks: usize,
    /// The unroll factor: the number of copies, at most 16.
    pub copies: u32,
}

/// Returns whether these blocks, in this order, are a loop that can be unrolled: each can continue to the
/// next block, and the last to the first.
fn can_unroll(cfg: &Cfg, blocks: &[BlockId]) -> bool {
    let nexts = blocks.iter().cycle().skip(1);
    !blocks.is_empty() && blocks.iter().zip(nexts).all(|(&b, &next)| goes_on(cfg, b, next))
}

/// Returns all loops that are contiguous in an order of blocks and can be unrolled, each with one copy.
#[must_use]
pub fn loops(cfg: &Cfg, order: &[BlockId]) -> Vec<Unroll> {
    let mut places = vec![None; cfg.blocks.len()];
    (0..order.len()).for_each(|place| places[order[place].index()] = Some(place));
    let mut found = Vec::new();
    for (last, &id) in order.iter().enumerate() {
        cfg.successors(id, |to| {
            let Dest::Block(to) = to else { return };
            let Some(first) = places[to.index()].filter(|&first| first <= last) else { return };
            if can_unroll(cfg, &order[first..=last]) {
                found.push(Unroll { first, blocks: last + 1 - first, copies: 1 });
            }
        });
    }
    found
}

fn goes_on(cfg: &Cfg, id: BlockId, next: BlockId) -> bool {
    let (Some(block), next) = (cfg.blocks.get(id.index()), Dest::Block(next)) else { return false };
    let insts = cfg.insts_of(id);
    let plain = match (&block.term, insts.split_last()) {
        (Term::Fall { next: to }, _) if *to == next => insts,
        (Term::Cond { taken, fall, .. }, Some((last, others)))
            if (*taken == next) != (*fall == next) && last.decoded.is_jcc_short_or_near() =>
        {
            others
        }
        _ => return false,
    };
    // An inlined or guarded call and a table read with its window need one clone address for each original
    // one, so they are excluded.
    let of_table = |i: InstId| {
        let mut loads = cfg.tables.iter().filter_map(|t| t.cloneable);
        loads.any(|l| l.inst == i || (l.differs.0..l.differs.1).contains(&i))
    };
    plain.iter().all(|i| i.decoded.flow_control() == FlowControl::Next && !has_code_operand(&i.decoded))
        && !block.inst_ids().any(of_table)
}

impl Function<'_> {
    /// Returns how many blocks from a place of the order on are copied together, and how often: one block,
    /// once, if no unrolling is requested or possible there.
    pub(crate) fn unrolled(&self, first: usize) -> (usize, u32) {
        let counts = !self.counters.is_empty() || !self.watches.is_empty();
        let found = self.unrolls.iter().find(|r| r.first == first && !counts);
        let can = |r: &&Unroll| {
            let end = first.saturating_add(r.blocks);
            let in_one = self.hot <= first || end <= self.hot;
            in_one && self.order.get(first..end).is_some_and(|blocks| can_unroll(self.cfg, blocks))
        };
        found.filter(can).map_or((1, 1), |r| (r.blocks, r.copies.clamp(1, MOST_COPIES)))
    }
}
