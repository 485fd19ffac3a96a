//! The instructions of a clone before it has addresses.

use crate::count::Step;
use addr::Avma;
use code::{InstBytes, InstId};
use std::ops::Range;

/// The destination of a branch of the clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A cloned block, by its place in the order.
    Place(u32),
    /// An original address that is no function's entry.
    Original(Avma),
    /// The entry of another function: its clone, if there is one, else the original.
    Outside(Avma),
    /// An item, by its index in [`Plan::labels`].
    Label(u32),
}

/// A branch that is encoded again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// `jmp`.
    Jump,
    /// `jcc`, by its condition's number in the opcode.
    Cond(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The original's bytes.
    Verbatim,
    /// The original's bytes, except for the disp32 at this offset.
    RipRelative { disp_at: u8 },
    /// The original's bytes, except for the rel32 at their end. `through_redirect`: to the original, not to
    /// its clone.
    Call { to: Avma, through_redirect: bool },
    /// A call (else a jump) through a slot; replaces a call or jump to the stub that jumps through this slot.
    Through { slot: Avma, call: bool },
    /// A read of a cloned table; the bytes are in [`Plan::tables`].
    TableLoad { table: u32 },
    /// The original's bytes, a branch over this many of the next items.
    Skip { over: u32 },
    /// A conditional jump over this many of the next items.
    Over { cond: u8, over: u32 },
    /// One instruction of a counter.
    Count { step: Step, offset: u32 },
    /// A comparison of a register with a word of [`Plan::constants`].
    Compare { register: u8, constant: u32 },
    /// A direct call of a function or of its rest, for the call at this place.
    Direct { to: Avma },
    /// An instruction of an inlined callee, from [`Plan::borrowed`].
    Borrowed { index: u32 },
    /// A direct call whose callee is inlined.
    Inlined,
    /// A branch. `long` is set once an 8-bit displacement is known not to reach. Branches to another fragment
    /// are always long.
    Branch { op: Op, to: Target, long: bool },
    /// A jump of the original that leads to the next instruction of the clone, and is left out.
    Dropped,
    /// Nops up to a multiple of `to`.
    Align { to: u32 },
}

/// At most one instruction of the clone (nops count as one).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    /// Its size. Bytes.
    pub(crate) len: u32,
    /// The original instruction that is copied.
    pub(crate) inst: Option<InstId>,
    /// Address of the original instruction for which it stands.
    pub(crate) original: Avma,
}

/// A jump table to be cloned, and the instruction that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedTable {
    /// Its index in `Cfg::tables`.
    pub(crate) index: u32,
    /// The reading instruction, with room for a disp32.
    pub(crate) bytes: InstBytes,
    /// The offset of the disp32 in the bytes.
    pub(crate) disp_at: u8,
}

/// An instruction of an inlined callee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Borrowed {
    pub(crate) bytes: InstBytes,
    /// The offset of its disp32 and the operand's address, if it has a RIP-relative operand.
    pub(crate) operand: Option<(u8, Avma)>,
}

/// A contiguous run of items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FragmentPlan {
    pub(crate) zone: Zone,
    /// Its first item.
    pub(crate) first: u32,
    /// The largest of the fragment's alignment and its blocks' alignments. Bytes.
    pub(crate) align: u32,
}

/// A region of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zone {
    /// The region of hot code.
    Hot,
    /// The region of warm code, behind the hot one.
    Warm,
}

/// A clone without addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) items: Vec<Item>,
    /// For each place of the order, the first item of its block, after the alignment.
    pub(crate) starts: Vec<u32>,
    /// For each block of the graph, its place in the order.
    pub(crate) places: Vec<Option<u32>>,
    pub(crate) tables: Vec<PlannedTable>,
    /// By rising first item; the first fragment begins at item 0.
    pub(crate) fragments: Vec<FragmentPlan>,
    /// Items that are branch targets although no block starts there.
    pub(crate) labels: Vec<u32>,
    /// The [`Function::entrances`](crate::Function::entrances) in cloned blocks, each with the item at which
    /// it is entered. This item is never in a further copy of a loop.
    pub(crate) entrances: Vec<(InstId, u32)>,
    /// Words to compare with.
    pub(crate) constants: Vec<u64>,
    pub(crate) borrowed: Vec<Borrowed>,
    /// Addresses inside other originals, from which on the rest of a callee is called.
    pub(crate) rests: Vec<Avma>,
    /// Addresses of original instructions at which no thread may be moved, rising.
    pub(crate) fixed: Vec<Avma>,
    /// For each unrolled loop, the items behind its first copy; rising.
    pub(crate) again: Vec<Range<usize>>,
    pub(crate) inverted: u32,
}

impl Plan {
    /// Returns whether an item is in a further copy of a loop.
    pub(crate) fn is_again(&self, item: usize) -> bool {
        let next = self.again.partition_point(|r| r.end <= item);
        self.again.get(next).is_some_and(|r| r.contains(&item))
    }
}

/// Returns the size of a branch. Bytes.
pub(crate) fn branch_len(op: Op, long: bool) -> u32 {
    match (op, long) {
        (_, false) => 2,
        (Op::Jump, true) => 5,
        (Op::Cond(_), true) => 6,
    }
}
