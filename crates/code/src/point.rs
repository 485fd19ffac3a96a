//! Points of a function, and the counters that can be placed there without changing live state.

use crate::liveness::{Live, Liveness, Question, STATUS_FLAGS};
use crate::{Block, BlockId, Cfg, Dest, Gpr, Term};
use iced_x86::{Code, FlowControl, RflagsBits};

/// A place in a function that control passes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Point {
    /// A block, by any edge.
    Block(BlockId),
    /// One way out of a block.
    Edge {
        /// The block.
        from: BlockId,
        /// The way, by its index in the order of [`Cfg::successors`].
        index: u32,
    },
}

/// The instructions that increment a counter in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CountBy {
    /// `inc`, which changes all status flags except the carry.
    Inc,
    /// Through a general register, without changing flags.
    Register(Gpr),
}

/// The place of a point's counter, and its instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spot {
    /// The number of the block's instructions before it; 0 on an edge.
    pub skip: u32,
    /// The counter's instructions.
    pub by: CountBy,
}

/// rsp and the callee-saved registers (rbx, rbp, r12 to r15). A landing pad may read these, and the graph has
/// no edge to the landing pad from an instruction that may fault.
const NO_SCRATCH: u16 = 1 << 3 | 1 << 4 | 1 << 5 | 0xf << 12;

impl Point {
    /// Returns a place and instructions for a counter that leave live registers and flags unchanged. Returns
    /// `None` if there are none, and on the edges of jump tables, which have no code of their own.
    ///
    /// In a block, the counter stands at the first place where one instruction suffices, else at the first
    /// possible place. All control that enters the block passes it: it stands before the first call, which
    /// may never return.
    ///
    /// `liveness` must be that of any value ([`Liveness::compute`]) in `cfg`.
    #[must_use]
    pub fn countable(self, cfg: &Cfg, liveness: &Liveness) -> Option<Spot> {
        self.countable_behind(0, cfg, liveness)
    }

    /// Works like [`Point::countable`]; in a block, `skip` or more of its instructions come before the
    /// counter.
    #[must_use]
    pub fn countable_behind(self, skip: u32, cfg: &Cfg, liveness: &Liveness) -> Option<Spot> {
        match self {
            Point::Block(b) => in_block(cfg, cfg.blocks.get(b.index())?, skip, liveness),
            Point::Edge { from, index } => {
                if matches!(cfg.blocks.get(from.index())?.term, Term::Switch { .. }) {
                    return None;
                }
                let live = match self.destination(cfg).filter(|_| index < 2)? {
                    Dest::Block(to) => liveness.live_in(to),
                    Dest::Outside(at) => Question::Value.outside(cfg, at),
                };
                Some(Spot { skip: 0, by: unnoticed(live)? })
            }
        }
    }

    /// Returns the destination of an edge.
    fn destination(self, cfg: &Cfg) -> Option<Dest> {
        let Point::Edge { from, index } = self else { return None };
        let (mut at, mut found) = (0, None);
        cfg.successors(from, |dest| {
            if at == index {
                found = Some(dest);
            }
            at += 1;
        });
        found
    }
}

/// Returns the best spot of a block, behind at least `from` of its instructions.
fn in_block(cfg: &Cfg, block: &Block, from: u32, liveness: &Liveness) -> Option<Spot> {
    let mut best: Option<Spot> = None;
    for (skip, inst) in (0u32..).zip(block.inst_ids()) {
        let i = &cfg.insts.get(inst.index())?.decoded;
        // Direct calls enter behind an `endbr64`.
        let marked = i.code() == Code::Endbr64 && block.insts.len() > 1;
        match unnoticed(liveness.live_before(inst)).filter(|_| !marked && skip >= from) {
            Some(CountBy::Inc) => return Some(Spot { skip, by: CountBy::Inc }),
            Some(by) if best.is_none() => best = Some(Spot { skip, by }),
            _ => {}
        }
        if i.flow_control() != FlowControl::Next {
            break;
        }
    }
    best
}

/// Returns instructions that count without changing this live set, if there are any.
fn unnoticed(live: Live) -> Option<CountBy> {
    if u32::from(live.flags & STATUS_FLAGS) & !RflagsBits::CF == 0 {
        return Some(CountBy::Inc);
    }
    let free = !(live.regs() | NO_SCRATCH);
    let lowest = u8::try_from(free.trailing_zeros()).ok().and_then(Gpr::new);
    lowest.map(CountBy::Register)
}

#[cfg(test)]
#[path = "point_tests.rs"]
mod tests;
