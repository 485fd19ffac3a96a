//! Loops that go round several times between two jumps back.
//!
//! A loop jumps back each time it goes round, in whatever order its blocks lie. With copies of them one behind the other it does so
//! only behind the last. All copies are made alike; what lies behind a block makes the difference (`plan`): behind the last block
//! of a copy that is the first of the next copy, so that the branch which goes round there is turned, and leaves the loop.
//!
//! Law 2 holds in each copy, as each instruction is the same and leads to a copy of the same. Whoever comes from elsewhere comes to
//! the first copy.

use crate::plan::has_code_operand;
use crate::request::Function;
use code::{BlockId, Cfg, Dest, Term};
use iced_x86::FlowControl;

/// More would only be larger.
const MOST_COPIES: u32 = 16;

/// A loop to unroll: blocks that lie side by side in a clone, and all of them several times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unroll {
    /// The place of the first in [`Function::order`].
    pub first: usize,
    /// How many there are.
    pub blocks: usize,
    /// How many times they are there; at most 16.
    pub copies: u32,
}

/// Whether these blocks, in this order, are a loop that can lie in a clone several times: each can run on to the next one, and the
/// last to the first.
fn can_unroll(cfg: &Cfg, blocks: &[BlockId]) -> bool {
    let nexts = blocks.iter().cycle().skip(1);
    !blocks.is_empty() && blocks.iter().zip(nexts).all(|(&b, &next)| goes_on(cfg, b, next))
}

/// All loops that lie in one piece in an order of blocks and can be there several times, each with one copy.
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
    // A call may be inlined or guarded, and the read of a table has a window: those are one place of the clone for one of the original.
    let of_table = |i: u32| {
        let mut loads = cfg.tables.iter().filter_map(|t| t.cloneable);
        loads.any(|l| l.inst == i || (l.differs.0..l.differs.1).contains(&i))
    };
    plain.iter().all(|i| i.decoded.flow_control() == FlowControl::Next && !has_code_operand(&i.decoded))
        && !block.insts.clone().any(of_table)
}

impl Function<'_> {
    /// How many blocks lie side by side from a place of the order on, and how often: one, once, where nothing else is asked for
    /// or can be.
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
