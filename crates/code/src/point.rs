//! Where control passes, and how a counter can be put there without anyone noticing.

use crate::liveness::{Live, Liveness, STATUS_FLAGS};
use crate::{BlockId, Cfg, Dest, Term};
use iced_x86::RflagsBits;

/// A point of a function that control passes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Point {
    /// The start of a block, however it is reached.
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

/// rsp, and the registers that a callee keeps (rbx, rbp, r12 to r15): a landing pad may expect those, and the graph has no
/// edge to it from an instruction that may fault.
const NO_SCRATCH: u16 = 1 << 3 | 1 << 4 | 1 << 5 | 0xf << 12;

impl Point {
    /// How a counter can be put here such that registers and flags that may still be read stay as they are; `None`
    /// where that cannot be, and on the edges of jump tables, which lie in no code.
    ///
    /// `liveness` is that of any value ([`Liveness::compute`]) in `cfg`.
    #[must_use]
    pub fn countable(self, cfg: &Cfg, liveness: &Liveness) -> Option<CountBy> {
        let live = match self {
            Point::Block(b) => {
                cfg.blocks.get(b.index())?;
                liveness.live_in(b)
            }
            Point::Edge { from, index } => {
                if matches!(cfg.blocks.get(from.index())?.term, Term::Switch { .. }) {
                    return None;
                }
                match self.destination(cfg).filter(|_| index < 2)? {
                    Dest::Block(to) => liveness.live_in(to),
                    Dest::Outside(_) => Live::ALL,
                }
            }
        };
        if u32::from(live.flags & STATUS_FLAGS) & !RflagsBits::CF == 0 {
            return Some(CountBy::Inc);
        }
        let free = !(live.regs | NO_SCRATCH);
        (free != 0).then(|| CountBy::Register(u8::try_from(free.trailing_zeros()).unwrap_or(0)))
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

#[cfg(test)]
#[path = "point_tests.rs"]
mod tests;
