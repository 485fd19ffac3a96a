//! The control-flow graph of one function.
//!
//! Invariants (`verify.rs` checks them):
//! - blocks are non-empty runs of instructions, contiguous in the original, and no two share a byte;
//! - only the last instruction of a block may transfer control (a call that returns does not end a block);
//! - `Dest::Block` always names a block that starts exactly at the destination's address;
//! - block 0 starts at the entry;
//! - each instruction's bytes are the original's bytes.

use addr::{Addr, Avma, AvmaRange};
use iced_x86::{ConditionCode, Instruction};

/// A block of a function, by its index in [`Cfg::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Returns its index in [`Cfg::blocks`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An instruction of a function, by its index in [`Cfg::insts`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InstId(pub u32);

impl InstId {
    /// Returns its index in [`Cfg::insts`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the id that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A jump table of a function, by its index in [`Cfg::tables`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TableId(pub u32);

impl TableId {
    /// Returns its index in [`Cfg::tables`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The destination of a branch or fall-through.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dest {
    /// A block of this graph.
    Block(BlockId),
    /// Outside the graph: another function, or code that was not understood. Control goes to the original
    /// address.
    Outside(Avma),
}

/// One instruction of the original.
#[derive(Clone, Debug)]
pub struct Inst {
    /// Its address in the original.
    pub at: Avma,
    /// The decoded instruction, with its original address as IP.
    pub decoded: Instruction,
    /// The original bytes.
    pub bytes: InstBytes,
}

/// An instruction's bytes: at most 15, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstBytes {
    bytes: [u8; 15],
    len: u8,
}

impl InstBytes {
    /// Accepts the bytes of one instruction; returns `None` if there are none or more than 15.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut b = [0; 15];
        b.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let len = u8::try_from(bytes.len()).ok().filter(|&l| l > 0)?;
        Some(Self { bytes: b, len })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Inst {
    /// Returns the address after it.
    #[must_use]
    pub fn end(&self) -> Avma {
        self.at.add(u64::from(self.bytes.len))
    }

    /// Returns the destination of a direct call or jump, conditional or not, whose last four bytes are its
    /// displacement.
    #[must_use]
    pub fn branches_to(&self) -> Option<Avma> {
        let d = &self.decoded;
        let shortest = match () {
            () if d.is_jmp_near() || d.is_call_near() => 5,
            () if d.is_jcc_near() => 6,
            () => return None,
        };
        (self.bytes.as_slice().len() >= shortest).then(|| Avma(d.near_branch64()))
    }
}

/// The end of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// No branch instruction: control falls through to `next`.
    Fall {
        /// The address after the block.
        next: Dest,
    },
    /// An unconditional direct jump (a tail call if the destination is outside).
    Jump {
        /// Its destination.
        to: Dest,
    },
    /// A conditional jump on flags.
    Cond {
        /// The condition under which it is taken.
        cc: ConditionCode,
        /// Destination when taken.
        taken: Dest,
        /// The address after the block.
        fall: Dest,
    },
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: a conditional jump that exists only with an 8-bit
    /// displacement.
    CondShort {
        /// Destination when taken.
        taken: Dest,
        /// The address after the block.
        fall: Dest,
    },
    /// An indirect jump through a table.
    Switch {
        /// The table.
        table: TableId,
    },
    /// An indirect jump to unknown destinations.
    Indirect,
    /// `ret`.
    Return,
    /// A call that does not return, as far as is known. This is not proven: a clone continues at the
    /// original's `next`.
    NoReturnCall {
        /// The address after the call.
        next: Avma,
    },
    /// An instruction without a successor (`ud2`, `hlt`, `int3`).
    Trap,
}

/// A run of instructions entered only at its start and left only at its end.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its bytes in the original.
    pub range: AvmaRange,
    /// Its instructions: a range of [`Cfg::insts`].
    pub insts: std::ops::Range<u32>,
    /// Its end.
    pub term: Term,
    /// Whether the exception table lists it as a landing pad.
    pub landing_pad: bool,
}

/// The encoding of a jump table's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableForm {
    /// 8-byte absolute addresses.
    Absolute8,
    /// 4-byte signed distances from `base` (gcc and clang, PIC).
    Relative4 {
        /// The address to which an entry is added.
        base: Avma,
    },
}

/// A jump table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JumpTable {
    /// The address of the entries.
    pub at: Avma,
    /// Their form.
    pub form: TableForm,
    /// Destinations by index.
    pub targets: Vec<Dest>,
    /// Present if everything that a *cloned* table needs is proven. The bound comes from a compare that
    /// dominates the jump. The table is constant. The load below is the only reader. The register with the
    /// destination and the flags that its computation sets are dead at all targets. If absent, the clone
    /// jumps through the original table into original code.
    pub cloneable: Option<TableLoad>,
}

/// The instruction that reads the table, whose displacement a clone changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLoad {
    /// The reading instruction (for `jmp [table+idx*8]` the jump itself).
    pub inst: InstId,
    /// For [`TableForm::Relative4`] and a load through a register: the constant in the base register at the
    /// load. The clone's displacement is `new table - base_value`. `None`: the displacement is the absolute
    /// table address.
    pub base_value: Option<Avma>,
    /// From the load to the jump, registers differ from the original's (they hold a clone address). No thread
    /// may be moved between the two copies there. Half-open: `inst + 1 ..= jump`.
    pub differs: (InstId, InstId),
}

/// A function's graph.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// The address at which the function is entered.
    pub entry: Avma,
    /// Its parts in the original: the main part first, then `.cold` parts.
    pub parts: Vec<AvmaRange>,
    /// Instructions, grouped by block.
    pub insts: Vec<Inst>,
    /// Blocks; 0 is the entry.
    pub blocks: Vec<Block>,
    /// Jump tables.
    pub tables: Vec<JumpTable>,
    /// Outside destinations that are entries of called functions ([`crate::Input::is_function`]), rising.
    pub functions: Vec<Avma>,
}

impl Block {
    /// Returns the ids of its instructions.
    pub fn inst_ids(&self) -> impl DoubleEndedIterator<Item = InstId> + use<> {
        self.insts.clone().map(InstId)
    }

    /// Returns the id of its last instruction.
    #[must_use]
    pub fn last_inst(&self) -> Option<InstId> {
        self.insts.end.checked_sub(1).map(InstId)
    }
}

impl Cfg {
    /// Returns all its instructions with their ids.
    pub fn numbered_insts(&self) -> impl Iterator<Item = (InstId, &Inst)> {
        (0u32..).map(InstId).zip(&self.insts)
    }

    /// Returns all its jump tables with their ids.
    pub fn numbered_tables(&self) -> impl Iterator<Item = (TableId, &JumpTable)> {
        (0u32..).map(TableId).zip(&self.tables)
    }

    /// Returns all its blocks, in the order of their numbers.
    pub fn block_ids(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0u32..).take(self.blocks.len()).map(BlockId)
    }

    /// Returns a block's instructions.
    #[must_use]
    pub fn insts_of(&self, b: BlockId) -> &[Inst] {
        let r = &self.blocks[b.index()].insts;
        &self.insts[r.start as usize..r.end as usize]
    }

    /// Calls `f` with each successor, in a fixed order: taken before fall-through; a table's distinct targets
    /// in order of first use. Parallel edges (both arms of a branch lead to one place) are reported twice.
    /// Outside destinations are included.
    pub fn successors(&self, b: BlockId, mut f: impl FnMut(Dest)) {
        match &self.blocks[b.index()].term {
            Term::Fall { next } => f(*next),
            Term::Jump { to } => f(*to),
            Term::Cond { taken, fall, .. } | Term::CondShort { taken, fall } => {
                f(*taken);
                f(*fall);
            }
            Term::Switch { table } => {
                let mut seen: Vec<Dest> = Vec::new();
                for d in &self.tables[table.index()].targets {
                    if !seen.contains(d) {
                        seen.push(*d);
                        f(*d);
                    }
                }
            }
            Term::Indirect | Term::Return | Term::NoReturnCall { .. } | Term::Trap => {}
        }
    }
}
