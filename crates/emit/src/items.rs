//! What does a clone consist of before it has addresses?

use crate::count::Step;
use addr::Avma;
use code::InstBytes;
use std::ops::Range;

/// Where a branch of the clone goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// To a cloned block, by its place in the order.
    Place(u32),
    /// To an original address that is no function's entry.
    Original(Avma),
    /// Out of the function: to the clone of the function that has its entry there, if there is one.
    Outside(Avma),
    /// To an item, by its place in [`Plan::labels`].
    Label(u32),
}

/// A branch that is encoded anew.
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
    /// The original's bytes but for the disp32 at this offset.
    RipRelative { disp_at: u8 },
    /// The original's bytes but for the rel32 at their end. `through_redirect`: to the original, not to its clone.
    Call { to: Avma, through_redirect: bool },
    /// A call (or else a jump) through a slot, for one to the stub that jumps through it.
    Through { slot: Avma, call: bool },
    /// Reads a cloned table: [`Plan::tables`] has the bytes.
    TableLoad { table: u32 },
    /// The original's bytes, a branch over so many of the next items.
    Skip { over: u32 },
    /// A conditional jump over so many of the next items.
    Over { cond: u8, over: u32 },
    /// One instruction of a counter.
    Count { step: Step, offset: u32 },
    /// Compares a register with a word of [`Plan::constants`].
    Compare { register: u8, constant: u32 },
    /// A direct call of a function, or of what follows of one, for the call at this place.
    Direct { to: Avma },
    /// An instruction of a callee that runs in place, of [`Plan::borrowed`].
    Borrowed { index: u32 },
    /// A direct call whose callee runs in place.
    Inlined,
    /// A branch; `long` once it is known that an 8-bit displacement does not reach. To another fragment it never does.
    Branch { op: Op, to: Target, long: bool },
    /// A jump of the original that leads to what follows anyway.
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
    /// Index of the original instruction of which it is the copy.
    pub(crate) inst: Option<u32>,
    /// Address of the original instruction for which it stands.
    pub(crate) original: Avma,
}

/// A jump table to be cloned, and its reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedTable {
    /// Its place in `Cfg::tables`.
    pub(crate) index: u32,
    /// The reading instruction with room for a disp32.
    pub(crate) bytes: InstBytes,
    /// Where in the bytes the disp32 is.
    pub(crate) disp_at: u8,
}

/// An instruction of a callee that runs in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Borrowed {
    pub(crate) bytes: InstBytes,
    /// Where its disp32 is, if it has a RIP-relative operand, and the operand's address.
    pub(crate) operand: Option<(u8, Avma)>,
}

/// A run of items that lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FragmentPlan {
    pub(crate) zone: Zone,
    /// Its first item.
    pub(crate) first: u32,
    /// The largest of its own and its blocks' alignments. Bytes.
    pub(crate) align: u32,
}

/// A part of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zone {
    /// Where code lies that runs often.
    Hot,
    /// Behind it.
    Warm,
}

/// A clone without addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) items: Vec<Item>,
    /// For each place of the order the item that the block starts with, after its alignment.
    pub(crate) starts: Vec<u32>,
    /// For each block of the graph its place in the order.
    pub(crate) places: Vec<Option<u32>>,
    pub(crate) tables: Vec<PlannedTable>,
    /// By rising first item, which of the first is 0.
    pub(crate) fragments: Vec<FragmentPlan>,
    /// Items that are branched to although no block starts there.
    pub(crate) labels: Vec<u32>,
    /// Of [`crate::Function::entrances`] those in cloned blocks, each with the item by which it is entered; not in a further
    /// copy of a loop.
    pub(crate) entrances: Vec<(u32, u32)>,
    /// Words to compare with.
    pub(crate) constants: Vec<u64>,
    pub(crate) borrowed: Vec<Borrowed>,
    /// Addresses in the midst of other originals, of which what follows is called.
    pub(crate) rests: Vec<Avma>,
    /// Addresses of the original's instructions at which no thread may be moved, rising.
    pub(crate) fixed: Vec<Avma>,
    /// Of each loop that is there more than once the items behind its first copy; rising.
    pub(crate) again: Vec<Range<usize>>,
    pub(crate) inverted: u32,
}

impl Plan {
    /// Whether an item is in a further copy of a loop.
    pub(crate) fn is_again(&self, item: usize) -> bool {
        let next = self.again.partition_point(|r| r.end <= item);
        self.again.get(next).is_some_and(|r| r.contains(&item))
    }
}

/// Bytes of a branch.
pub(crate) fn branch_len(op: Op, long: bool) -> u32 {
    match (op, long) {
        (_, false) => 2,
        (Op::Jump, true) => 5,
        (Op::Cond(_), true) => 6,
    }
}
