//! The control-flow graph of one function.
//!
//! Invariants (the verifier in `verify.rs` holds them):
//! - blocks are non-empty runs of instructions, contiguous in the original, and no two share a byte;
//! - only the last instruction of a block may transfer control (a call that returns does not end a block);
//! - `Dest::Block` always names a block that starts exactly at the destination's address;
//! - block 0 starts at the entry;
//! - each instruction's bytes are the original's bytes.

use addr::{Addr, Avma, AvmaRange};
use iced_x86::{ConditionCode, Instruction};

/// A block of one function, by its place in [`Cfg::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Its place in the arena.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where control goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dest {
    /// To a block of this graph.
    Block(BlockId),
    /// Out of the graph: another function, or code that was not understood. Goes to the original address.
    Outside(Avma),
}

/// One instruction of the original.
#[derive(Clone, Debug)]
pub struct Inst {
    /// Where it is in the original.
    pub at: Avma,
    /// Decoded, with its original address as IP.
    pub decoded: Instruction,
    /// The original bytes.
    pub bytes: InstBytes,
}

/// An instruction's bytes: at most 15, kept in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstBytes {
    bytes: [u8; 15],
    len: u8,
}

impl InstBytes {
    /// Takes the bytes of one instruction; `None` where there are none or more than 15.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut b = [0; 15];
        b.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let len = u8::try_from(bytes.len()).ok().filter(|&l| l > 0)?;
        Some(Self { bytes: b, len })
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Inst {
    /// The address after it.
    #[must_use]
    pub fn end(&self) -> Avma {
        self.at.add(u64::from(self.bytes.len))
    }

    /// Returns the destination of a direct call or jump, conditional or not, whose last four bytes are its displacement.
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

/// How a block ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// No branch instruction: control runs on into `next`.
    Fall {
        /// The address after the block.
        next: Dest,
    },
    /// An unconditional direct jump (a tail call where the destination is outside).
    Jump {
        /// Its destination.
        to: Dest,
    },
    /// A conditional jump on flags.
    Cond {
        /// When it is taken.
        cc: ConditionCode,
        /// Destination when taken.
        taken: Dest,
        /// The address after the block.
        fall: Dest,
    },
    /// `loop`, `loope`, `loopne`, `jrcxz`, `jecxz`: a conditional jump that exists only with an 8-bit displacement.
    CondShort {
        /// Destination when taken.
        taken: Dest,
        /// The address after the block.
        fall: Dest,
    },
    /// An indirect jump through a table ([`Cfg::tables`]) .
    Switch {
        /// Its place in [`Cfg::tables`].
        table: u32,
    },
    /// An indirect jump to who knows where.
    Indirect,
    /// `ret`.
    Return,
    /// A call that does not return, as far as is known. Not proven: a clone goes on at the original's `next`.
    NoReturnCall {
        /// The address after the call.
        next: Avma,
    },
    /// An instruction after which nothing follows (`ud2`, `hlt`, `int3`).
    Trap,
}

/// A run of instructions entered only at its start and left only at its end.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its bytes in the original.
    pub range: AvmaRange,
    /// Its instructions: a range of [`Cfg::insts`].
    pub insts: std::ops::Range<u32>,
    /// How it ends.
    pub term: Term,
    /// Whether the exception table names it as a landing pad.
    pub landing_pad: bool,
}

/// How the entries of a jump table make an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableForm {
    /// 8-byte absolute addresses.
    Absolute8,
    /// 4-byte signed distances from `base` (gcc and clang, PIC).
    Relative4 {
        /// What is added to an entry.
        base: Avma,
    },
}

/// A jump table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JumpTable {
    /// Where the entries are.
    pub at: Avma,
    /// Their form.
    pub form: TableForm,
    /// Destinations by index.
    pub targets: Vec<Dest>,
    /// Present where everything a *cloned* table needs is proven: the bound comes from a compare that dominates the
    /// jump, the table is constant, the load below is the only reader, and the register that holds the destination
    /// and the flags that its computation sets are dead at all targets. Absent: the clone jumps through the original
    /// table, into original code.
    pub cloneable: Option<TableLoad>,
}

/// The instruction that reads the table, whose displacement a clone changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLoad {
    /// The reading instruction (for `jmp [table+idx*8]` the jump itself).
    pub inst: u32,
    /// For [`TableForm::Relative4`] and a load through a register: the constant the base register has at the load.
    /// The clone's displacement is `new table - base_value`. `None`: the displacement is the absolute table address.
    pub base_value: Option<Avma>,
    /// From the load to the jump registers differ from the original's (they hold a clone address); a thread may not
    /// be moved between the two copies there. Instruction indices, half-open: `inst + 1 ..= jump`.
    pub differs: (u32, u32),
}

/// A function's graph.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// Where the function is entered.
    pub entry: Avma,
    /// Its fragments in the original: the main one first, then `.cold` parts.
    pub parts: Vec<AvmaRange>,
    /// Instructions, grouped by block.
    pub insts: Vec<Inst>,
    /// Blocks; 0 is the entry.
    pub blocks: Vec<Block>,
    /// Jump tables.
    pub tables: Vec<JumpTable>,
    /// Destinations outside that are the entries of functions which are called ([`crate::Input::is_function`]), rising.
    pub functions: Vec<Avma>,
}

impl Cfg {
    /// All its blocks, in the order of their numbers.
    pub fn block_ids(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0u32..).take(self.blocks.len()).map(BlockId)
    }

    /// A block's instructions.
    #[must_use]
    pub fn insts_of(&self, b: BlockId) -> &[Inst] {
        let r = &self.blocks[b.index()].insts;
        &self.insts[r.start as usize..r.end as usize]
    }

    /// Calls `f` with each successor, in a fixed order: taken before fall-through; a table's distinct block targets
    /// in order of first use. Parallel edges (both arms of a branch to one place) are given twice. Outside
    /// destinations are given too.
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
                for d in &self.tables[*table as usize].targets {
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
