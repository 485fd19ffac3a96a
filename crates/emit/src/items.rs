//! The instructions of a clone before it has addresses.

use crate::count::Step;
use addr::Avma;
use code::{BlockId, Gpr, InstBytes, InstId, Refusal, TableId};
use std::ops::Range;

/// An item of a plan, by its index in [`Plan::items`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ItemId(pub(crate) u32);

/// A place in the order of blocks: an index in [`Plan::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place(pub(crate) u32);

/// A label, by its index in [`Plan::labels`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label(pub(crate) u32);

impl ItemId {
    /// Returns its index in [`Plan::items`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl Place {
    /// Returns its index in [`Plan::blocks`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl Label {
    /// Returns its index in [`Plan::labels`].
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The destination of a branch of the clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A cloned block.
    Place(Place),
    /// An original address that is no function's entry.
    Original(Avma),
    /// The entry of another function: its clone, if there is one, else the original.
    Outside(Avma),
    /// An item at which no block starts.
    Label(Label),
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
    TableLoad { table: TableId },
    /// The original's bytes, a branch over this many of the next items.
    Skip { over: u32 },
    /// A conditional jump over this many of the next items.
    Over { cond: u8, over: u32 },
    /// One instruction of a counter.
    Count { step: Step, offset: u32 },
    /// A comparison of a register with a word of [`Plan::constants`].
    Compare { register: Gpr, constant: u32 },
    /// A direct call of a function or of its rest, for the call at this place; with `in_original` not of a clone.
    Direct { to: Avma, in_original: bool },
    /// An instruction of an inlined callee, from [`Plan::borrowed`].
    Borrowed { index: u32 },
    /// A direct call whose callee is inlined.
    Inlined,
    /// A branch. `long` is set once an 8-bit displacement is known not to reach. Branches to another fragment
    /// are always long.
    Branch { op: Op, to: Target, long: bool },
    /// A jump of the original that leads to the next instruction of the clone, and is left out.
    Dropped,
}

/// At most one instruction of the clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) kind: Kind,
    /// Its size. Bytes.
    pub(crate) len: u32,
    /// Its position in the clone, once `relax` has set it. Bytes.
    pub(crate) at: u32,
    /// The original instruction that is copied.
    pub(crate) inst: Option<InstId>,
    /// Address of the original instruction for which it stands.
    pub(crate) original: Avma,
}

/// A jump table to be cloned, and the instruction that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedTable {
    /// The original table.
    pub(crate) id: TableId,
    /// Its offset in the clone's data. Bytes.
    pub(crate) at: usize,
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

/// A block to be cloned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedBlock {
    pub(crate) id: BlockId,
    /// Its first item.
    pub(crate) first: ItemId,
}

/// A contiguous run of items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FragmentPlan {
    pub(crate) zone: Zone,
    /// Its first item.
    pub(crate) first: ItemId,
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
    /// The blocks of the order.
    pub(crate) blocks: Vec<PlannedBlock>,
    /// For each block of the graph, its place in the order.
    pub(crate) places: Vec<Option<Place>>,
    /// The tables to clone. They are the first part of the clone's data.
    pub(crate) tables: Vec<PlannedTable>,
    /// The size of the tables. Bytes.
    pub(crate) tables_len: usize,
    /// By rising first item; the first fragment begins at item 0.
    pub(crate) fragments: Vec<FragmentPlan>,
    /// Items that are branch targets although no block starts there.
    pub(crate) labels: Vec<ItemId>,
    /// The [`Function::entrances`](crate::Function::entrances) in cloned blocks, each with the item at which
    /// it is entered. This item is never in a further copy of a loop.
    pub(crate) entrances: Vec<(InstId, ItemId)>,
    /// Words to compare with. They are the second part of the clone's data.
    pub(crate) constants: Vec<u64>,
    pub(crate) borrowed: Vec<Borrowed>,
    /// Addresses inside other originals, from which on the rest of a callee is called.
    pub(crate) rests: Vec<Avma>,
    /// Addresses of original instructions at which no thread may be moved, rising.
    pub(crate) fixed: Vec<Avma>,
    /// For each unrolled loop, the items behind its first copy; rising.
    pub(crate) again: Vec<Range<ItemId>>,
    pub(crate) inverted: u32,
}

impl Plan {
    /// Adds an item.
    pub(crate) fn push(&mut self, kind: Kind, len: u32, inst: Option<InstId>, original: Avma) {
        self.items.push(Item { kind, len, at: 0, inst, original });
    }

    /// Returns the id that the next item gets.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if there are too many items.
    pub(crate) fn next_item(&self) -> Result<ItemId, Refusal> {
        u32::try_from(self.items.len()).map(ItemId).map_err(|_| Refusal::TooLarge)
    }

    /// Returns all items with their ids.
    pub(crate) fn numbered_items(&self) -> impl Iterator<Item = (ItemId, &Item)> {
        (0u32..).map(ItemId).zip(&self.items)
    }

    /// Returns the size of the clone, once its items have positions. Bytes.
    pub(crate) fn text_len(&self) -> u32 {
        self.items.last().map_or(0, |i| i.at + i.len)
    }

    /// Returns the position of an item. Bytes.
    pub(crate) fn position(&self, item: ItemId) -> u32 {
        self.items.get(item.index()).map_or(self.text_len(), |i| i.at)
    }

    /// Returns the position of the block at a place of the order. Bytes.
    pub(crate) fn block_position(&self, place: Place) -> u32 {
        self.position(self.blocks[place.index()].first)
    }

    /// Returns the plan for a table of the graph, if the table is cloned.
    pub(crate) fn table(&self, id: TableId) -> Option<&PlannedTable> {
        self.tables.iter().find(|t| t.id == id)
    }

    /// Returns the size of the clone's data. Bytes.
    pub(crate) fn data_len(&self) -> usize {
        self.tables_len + size_of_val(&self.constants[..])
    }

    /// Returns whether an item is in a further copy of a loop.
    pub(crate) fn is_again(&self, item: ItemId) -> bool {
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
