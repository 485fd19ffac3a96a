//! The data model of this crate: the result of reading and the input of writing.

use addr::{Avma, AvmaRange};
use std::sync::Arc;

/// A DWARF register number (System V x86-64 psABI, figure 3.36): 7 is rsp, 16 the return address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reg(pub u16);

impl Reg {
    /// The stack pointer.
    pub const RSP: Reg = Reg(7);
    /// The frame pointer.
    pub const RBP: Reg = Reg(6);
    /// The return address column.
    pub const RA: Reg = Reg(16);
}

/// The rule for the canonical frame address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CfaRule {
    /// CFA = register + offset.
    RegOffset(Reg, i64),
    /// CFA = the value of a DWARF expression (its bytes; expressions of CFI name no code addresses).
    Expr(Arc<[u8]>),
}

/// The rule for the caller's value of one register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RegRule {
    /// Lost.
    Undefined,
    /// Unchanged in this frame.
    SameValue,
    /// In memory at CFA + offset.
    Offset(i64),
    /// The value is CFA + offset.
    ValOffset(i64),
    /// In another register.
    Register(Reg),
    /// In memory at the address that an expression gives.
    Expr(Arc<[u8]>),
    /// The value of an expression.
    ValExpr(Arc<[u8]>),
}

/// The complete frame rule of the instructions that start in `range`. It is absolute and needs no earlier
/// row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The addresses for which it holds.
    pub range: AvmaRange,
    /// The frame address.
    pub cfa: CfaRule,
    /// Register rules, by rising register. An absent register has the ABI's default (callee-saved: same
    /// value; others: undefined) and needs no opcode.
    pub regs: Vec<(Reg, RegRule)>,
    /// `DW_CFA_GNU_args_size`: bytes of outgoing arguments on the stack.
    pub args_size: u64,
}

impl Row {
    /// Returns whether two rows have the same rule, for whatever addresses.
    #[must_use]
    pub fn same_rule(&self, other: &Row) -> bool {
        self.cfa == other.cfa && self.regs == other.regs && self.args_size == other.args_size
    }
}

/// One function fragment as `.eh_frame` describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fde {
    /// The code it covers.
    pub range: AvmaRange,
    /// The personality routine, resolved (an indirect pointer has been followed).
    pub personality: Option<Avma>,
    /// Its exception table.
    pub lsda: Option<Avma>,
    /// A signal trampoline (augmentation `S`): return addresses are exact, not one past a call.
    pub signal_frame: bool,
    /// Offset of the FDE in its section: the key by which its rows are read again. Bytes.
    pub offset: u64,
}

/// The handling of an exception that passes a call inside `range`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallSite {
    /// The instructions covered. A call whose address is in no call site ends in `std::terminate`.
    pub range: AvmaRange,
    /// The address of the landing pad; `None`: the exception passes through.
    pub landing_pad: Option<Avma>,
    /// 0: cleanup only; otherwise 1 + offset of the first action record.
    pub action: u64,
}

/// A function's exception table (`.gcc_except_table`; Itanium C++ ABI, exception handling, "LSDA").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lsda {
    /// Call sites in the order of the table (rising by address).
    pub call_sites: Vec<CallSite>,
    /// Action records, as they are in the original.
    pub actions: Vec<u8>,
    /// Type table by index: `types[0]` has filter value 1. Resolved addresses of `type_info` objects; `None`
    /// catches all.
    pub types: Vec<Option<Avma>>,
    /// The exception specifications to which negative filters point, as they are in the original.
    pub filters: Vec<u8>,
}

/// The unwind information of one clone fragment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloneFrame {
    /// The clone's bytes.
    pub range: AvmaRange,
    /// Its rows, rising, without gaps, covering `range`.
    pub rows: Vec<Row>,
    /// The original's personality routine.
    pub personality: Option<Avma>,
    /// The address of the clone's exception table.
    pub lsda: Option<Avma>,
    /// The original's signal-frame mark.
    pub signal_frame: bool,
}
