//! Liveness: finds the registers and flags that may still be read, by backward dataflow over a graph.
//!
//! Covers general registers and status flags only; vector registers are not needed.

use crate::{BlockId, Cfg, Dest, InstId, Term};
use addr::Avma;
use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};

/// A set of general registers (bit 0 rax, 1 rcx, ... 15 r15: the order of the encoding), each in two parts,
/// and flags ([`iced_x86::RflagsBits`]). Two parts, because `sete %dl; test %dl,%dl` says nothing about the
/// bits above dl.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Live {
    /// The lowest bytes of registers, by register number.
    pub low: u16,
    /// The bits above the lowest byte, by register number.
    pub high: u16,
    /// Flags by `RflagsBits`.
    pub flags: u16,
}

impl Live {
    /// All registers and flags.
    pub const ALL: Live = Live::whole(u16::MAX, u16::MAX);

    /// Builds a set of whole registers and flags.
    #[must_use]
    pub const fn whole(regs: u16, flags: u16) -> Live {
        Live { low: regs, high: regs, flags }
    }

    /// Returns the registers of which any part is in the set.
    #[must_use]
    pub fn regs(self) -> u16 {
        self.low | self.high
    }

    fn union(self, o: Live) -> Live {
        Live { low: self.low | o.low, high: self.high | o.high, flags: self.flags | o.flags }
    }

    fn without(self, o: Live) -> Live {
        Live { low: self.low & !o.low, high: self.high & !o.high, flags: self.flags & !o.flags }
    }

    /// Returns whether the two sets overlap.
    #[must_use]
    pub fn meets(self, o: Live) -> bool {
        self.low & o.low != 0 || self.high & o.high != 0 || self.flags & o.flags != 0
    }
}

/// The status flags: those that arithmetic sets.
pub const STATUS_FLAGS: u16 = 0x3f;

/// The registers that pass arguments (System V psABI 3.2.3), and the static chain pointer r10.
const ARGUMENTS: u16 = 1 << 7 | 1 << 6 | 1 << 2 | 1 << 1 | 1 << 8 | 1 << 9 | 1 << 10;
/// The registers that return results: rax and rdx.
const RESULTS: u16 = 1 | 1 << 2;

/// The kind of value whose liveness is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Any value: code that gets control may read all of it. But no status flag passes between a caller and a
    /// function in either direction (psABI 3.2.1), whether the function is called or jumped to
    /// ([`Cfg::functions`]).
    Value,
    /// The destination of a `switch`, and the values computed on the way to it. The source has no name for
    /// such a value. So no callee, caller or other function can expect it in a register: only instructions of
    /// this graph can read it. A clone that reads a table of its own has another destination in such a
    /// register. This is allowed because no other code can read it.
    SwitchTarget,
    /// A value that may be a label's address in the source (`&&label` of GNU C). It may be passed as an
    /// argument and returned as a result.
    LabelValue,
}

impl Question {
    fn at_call(self) -> Live {
        match self {
            Question::Value => Live::whole(u16::MAX, !STATUS_FLAGS),
            _ => self.at_exit(),
        }
    }

    /// Returns the live set where control leaves the graph for unknown code.
    #[must_use]
    pub fn at_exit(self) -> Live {
        match self {
            Question::Value => Live::ALL,
            Question::SwitchTarget => Live::default(),
            Question::LabelValue => Live::whole(ARGUMENTS, 0),
        }
    }

    /// Returns the live set where control passes to an outside destination.
    #[must_use]
    pub fn outside(self, cfg: &Cfg, at: Avma) -> Live {
        match self {
            // A tail call passes no more than any other call.
            Question::Value if cfg.functions.binary_search(&at).is_ok() => self.at_call(),
            _ => self.at_exit(),
        }
    }

    fn at_return(self) -> Live {
        match self {
            Question::Value => self.at_call(),
            Question::SwitchTarget => Live::default(),
            Question::LabelValue => Live::whole(RESULTS, 0),
        }
    }
}

/// The live sets of a graph.
#[derive(Clone, Debug)]
pub struct Liveness {
    block_in: Vec<Live>,
    before: Vec<Live>,
}

impl Liveness {
    /// Computes the liveness of any value ([`Question::Value`]).
    #[must_use]
    pub fn compute(cfg: &Cfg) -> Self {
        Self::answer(cfg, Question::Value)
    }

    /// Solves the dataflow for one kind of value.
    #[must_use]
    pub fn answer(cfg: &Cfg, q: Question) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let effects: Vec<Effect> = cfg.insts.iter().map(|i| effect(&i.decoded, &mut factory, q)).collect();
        let n = cfg.blocks.len();
        let mut sums = vec![Effect::default(); n];
        let mut preds: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (b, id) in cfg.blocks.iter().zip(0u32..) {
            let mut s = Effect::default();
            for e in effects[b.insts.start as usize..b.insts.end as usize].iter().rev() {
                s.reads = e.reads.union(s.reads.without(e.kills));
                s.kills = s.kills.union(e.kills);
            }
            sums[id as usize] = s;
            cfg.successors(BlockId(id), |d| {
                if let Dest::Block(t) = d {
                    preds[t.index()].push(id);
                }
            });
        }
        let mut block_in = vec![Live::default(); n];
        let mut queued = vec![true; n];
        let mut work: Vec<usize> = (0..n).collect();
        while let Some(b) = work.pop() {
            queued[b] = false;
            let out = live_out(cfg, b, &block_in, q);
            let new = sums[b].reads.union(out.without(sums[b].kills));
            if new != block_in[b] {
                block_in[b] = new;
                for &p in &preds[b] {
                    if !std::mem::replace(&mut queued[p as usize], true) {
                        work.push(p as usize);
                    }
                }
            }
        }
        let mut before = vec![Live::default(); cfg.insts.len()];
        for (b, block) in cfg.blocks.iter().enumerate() {
            let mut live = live_out(cfg, b, &block_in, q);
            for i in (block.insts.start as usize..block.insts.end as usize).rev() {
                live = effects[i].reads.union(live.without(effects[i].kills));
                before[i] = live;
            }
        }
        Self { block_in, before }
    }

    /// Returns the live set at the start of a block.
    #[must_use]
    pub fn live_in(&self, b: BlockId) -> Live {
        self.block_in[b.index()]
    }

    /// Returns the live set before an instruction.
    #[must_use]
    pub fn live_before(&self, inst: InstId) -> Live {
        self.before[inst.index()]
    }

    /// Returns the flags that are live before an instruction, as `RflagsBits`.
    #[must_use]
    pub fn flags_live_before(&self, inst: InstId) -> u16 {
        self.live_before(inst).flags
    }
}

fn live_out(cfg: &Cfg, b: usize, block_in: &[Live], q: Question) -> Live {
    let block = &cfg.blocks[b];
    let mut out = match &block.term {
        Term::Indirect => q.at_exit(),
        Term::Return => q.at_return(),
        // Both end or continue in original code.
        Term::NoReturnCall { .. } | Term::Trap => q.at_exit(),
        _ => Live::default(),
    };
    cfg.successors(BlockId(u32::try_from(b).unwrap_or(u32::MAX)), |d| {
        out = out.union(match d {
            Dest::Block(t) => block_in[t.index()],
            Dest::Outside(at) => q.outside(cfg, at),
        });
    });
    out
}

/// The registers and flags that an instruction (or a run of them) reads before writing them, and those it
/// certainly overwrites.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Effect {
    pub(crate) reads: Live,
    pub(crate) kills: Live,
}

/// Returns the number of the general register that contains `r`.
pub(crate) fn gpr(r: Register) -> Option<usize> {
    if r.is_gpr() { Some(r.full_register().number()) } else { None }
}

fn effect(i: &Instruction, factory: &mut InstructionInfoFactory, q: Question) -> Effect {
    let mut e = effect_of(i, factory);
    match i.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall if i.code() != Code::Syscall => {
            e.reads = e.reads.union(q.at_call());
            e.kills.flags |= STATUS_FLAGS;
            if q != Question::Value {
                // A read of rax after a call reads the callee's result.
                e.kills = e.kills.union(Live::whole(1, 0));
            }
        }
        _ => {}
    }
    e
}

/// Returns the effect of the instruction alone, for a call without its callee.
pub(crate) fn effect_of(i: &Instruction, factory: &mut InstructionInfoFactory) -> Effect {
    let mut e = Effect::default();
    for u in factory.info(i).used_registers() {
        let Some(n) = gpr(u.register()) else { continue };
        let (reads, writes) = access(u.access());
        let part = part(u.register(), 1 << n);
        if reads {
            e.reads = e.reads.union(part);
        }
        if writes {
            // A write of 8 or 16 bits keeps the rest.
            let whole = u.register().size() >= 4;
            e.kills = e.kills.union(Live { high: if whole { part.high } else { 0 }, ..part });
        }
    }
    if matches!(i.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr) {
        // With a zero source the destination keeps its value.
        if let Some(n) = gpr(i.op0_register()) {
            e.reads = e.reads.union(Live::whole(1 << n, 0));
            e.kills = e.kills.without(Live::whole(1 << n, 0));
        }
    }
    if i.mnemonic() == Mnemonic::Sbb
        && i.op1_kind() == OpKind::Register
        && i.op0_register() == i.op1_register()
    {
        // `x - x - carry` does not depend on x.
        if let Some(n) = gpr(i.op0_register()) {
            e.reads = e.reads.without(Live::whole(1 << n, 0));
        }
    }
    if i.mnemonic() == Mnemonic::Or && is_all_ones(i) {
        // `or` with -1 is a compact load of -1.
        if let Some(n) = gpr(i.op0_register()) {
            e.reads = e.reads.without(Live::whole(1 << n, 0));
        }
    }
    e.reads.flags = flag_bits(i.rflags_read());
    if flags_certain(i) {
        e.kills.flags = flag_bits(i.rflags_modified());
    }
    e
}

/// Returns whether the second operand is an immediate with all bits of the first operand's size set.
fn is_all_ones(i: &Instruction) -> bool {
    let ones = match i.op1_kind() {
        OpKind::Immediate8 | OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64 => {
            i.immediate8().cast_signed() == -1
        }
        OpKind::Immediate32 | OpKind::Immediate32to64 => i.immediate32() == u32::MAX,
        _ => false,
    };
    ones && i.op0_kind() == OpKind::Register
}

/// Returns the part of the register with this bit that `r` covers.
fn part(r: Register, bit: u16) -> Live {
    match r {
        Register::AH | Register::CH | Register::DH | Register::BH => Live { high: bit, ..Live::default() },
        _ if r.size() == 1 => Live { low: bit, ..Live::default() },
        _ => Live::whole(bit, 0),
    }
}

/// Returns `(reads, certainly overwrites)`.
fn access(a: OpAccess) -> (bool, bool) {
    match a {
        OpAccess::None | OpAccess::NoMemAccess => (false, false),
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write => (false, true),
        // If the operand is not overwritten, the old value stays. So the old value is live where the new
        // value is.
        OpAccess::CondWrite => (false, false),
        OpAccess::ReadWrite => (true, true),
        OpAccess::ReadCondWrite => (true, false),
    }
}

/// Returns the `RflagsBits` that matter to user code, in 16 bits.
pub(crate) fn flag_bits(f: u32) -> u16 {
    u16::try_from(f & 0xffff).unwrap_or(u16::MAX)
}

/// Returns whether an instruction always modifies its flags. A shift by a register may be by 0, and a
/// repeated string comparison may run no step.
pub(crate) fn flags_certain(i: &Instruction) -> bool {
    match i.mnemonic() {
        Mnemonic::Rol
        | Mnemonic::Ror
        | Mnemonic::Rcl
        | Mnemonic::Rcr
        | Mnemonic::Shl
        | Mnemonic::Sal
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::Shld
        | Mnemonic::Shrd => {
            (0..i.op_count()).any(|o| i.op_kind(o) == OpKind::Immediate8)
                && i.rflags_modified() != RflagsBits::NONE
        }
        _ => !i.has_rep_prefix() && !i.has_repne_prefix(),
    }
}
