//! Where control passes, and how a counter can be put there without anyone noticing.

use crate::liveness::{Live, Liveness, Question, STATUS_FLAGS};
use crate::{Block, BlockId, Cfg, Dest, Term};
use iced_x86::{Code, FlowControl, RflagsBits};

/// A place of a function that control passes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Point {
    /// A block, however it is reached.
    Block(BlockId),
    /// One way out of a block.
    Edge {
        /// The block.
        from: BlockId,
        /// The way, by its place in the order of [`Cfg::successors`].
        index: u32,
    },
}

/// How one is added to a counter in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CountBy {
    /// By `inc`, which changes all status flags but the carry.
    Inc,
    /// Through a general register (by its number), without touching flags.
    Register(u8),
}

/// Where a counter of a point stands, and how it counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spot {
    /// How many instructions of the block come before it; 0 on an edge.
    pub skip: u32,
    /// How it counts.
    pub by: CountBy,
}

/// rsp, and the registers that a callee keeps (rbx, rbp, r12 to r15): a landing pad may expect those, and the graph has no
/// edge to it from an instruction that may fault.
const NO_SCRATCH: u16 = 1 << 3 | 1 << 4 | 1 << 5 | 0xf << 12;

impl Point {
    /// Where and how a counter can be put here such that registers and flags that may still be read stay as they are;
    /// `None` where that cannot be, and on the edges of jump tables, which lie in no code.
    ///
    /// In a block it stands as early as one instruction can count, or else as early as can be; always where
    /// everyone passes who comes into the block: before the first call, which may never come back.
    ///
    /// `liveness` is that of any value ([`Liveness::compute`]) in `cfg`.
    #[must_use]
    pub fn countable(self, cfg: &Cfg, liveness: &Liveness) -> Option<Spot> {
        self.countable_behind(0, cfg, liveness)
    }

    /// As [`Point::countable`]; in a block, behind so many of its instructions or later.
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

    /// Where an edge leads.
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

/// The best spot of a block, behind the first `from` instructions.
fn in_block(cfg: &Cfg, block: &Block, from: u32, liveness: &Liveness) -> Option<Spot> {
    let mut best: Option<Spot> = None;
    for (skip, inst) in (0u32..).zip(block.insts.clone()) {
        let i = &cfg.insts.get(inst as usize)?.decoded;
        // Direct calls come in behind the mark.
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

/// How one can count where this is live, if at all.
fn unnoticed(live: Live) -> Option<CountBy> {
    if u32::from(live.flags & STATUS_FLAGS) & !RflagsBits::CF == 0 {
        return Some(CountBy::Inc);
    }
    let free = !(live.regs() | NO_SCRATCH);
    (free != 0).then(|| CountBy::Register(u8::try_from(free.trailing_zeros()).unwrap_or(0)))
}

#[cfg(test)]
#[path = "point_tests.rs"]
mod tests;
