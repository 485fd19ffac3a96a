//! Symbolic evaluation of instructions: their effect on registers and the stack.

use super::value::{V, Values, mask};
use crate::InstId;
use crate::liveness::gpr;
use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind,
    Register,
};

/// Registers that a call may change (System V psABI 3.2.1): all except rbx, rsp, rbp, r12 to r15.
const CALL_CLOBBERED: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11;

/// A read of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// The reading instruction.
    pub(super) inst: InstId,
    /// The address.
    pub(super) addr: V,
}

/// The two values that the flags compare.
#[derive(Clone, Copy)]
struct Compared {
    left: V,
    right: V,
    /// The width of the comparison; both values are zero-extended from it.
    bits: u8,
}

/// A remembered word of memory.
#[derive(Clone, Copy)]
struct Word {
    addr: V,
    bytes: u8,
    value: V,
    /// Whether it is in the function's own frame, by its addressing.
    frame: bool,
}

/// A symbolic machine.
pub(super) struct Machine {
    pub(super) values: Values,
    pub(super) regs: [V; 16],
    pub(super) loads: Vec<Load>,
    /// Whether a word outside the frame was read twice and assumed to be unchanged. If another thread changed
    /// it in between, the program would be wrong already. But this is the program's promise, not a proof.
    pub(super) trusting: bool,
    /// Never assume so.
    pub(super) strict: bool,
    flags: Option<Compared>,
    words: Vec<Word>,
    factory: InstructionInfoFactory,
}

impl Machine {
    pub(super) fn new() -> Self {
        let mut values = Values::default();
        let regs = std::array::from_fn(|_| values.unknown());
        Self {
            values,
            regs,
            loads: Vec::new(),
            trusting: false,
            strict: false,
            flags: None,
            words: Vec::new(),
            factory: InstructionInfoFactory::new(),
        }
    }

    /// Resets the machine: nothing is known about any register.
    pub(super) fn reset(&mut self) {
        self.values.clear();
        self.regs = std::array::from_fn(|_| self.values.unknown());
        self.loads.clear();
        self.trusting = false;
        self.flags = None;
        self.words.clear();
    }

    /// Adds the fact that a conditional jump on `cc` was taken, or not.
    pub(super) fn assume(&mut self, cc: ConditionCode, taken: bool) {
        if let Some((v, max)) = self.implied(if taken { cc } else { negate(cc) }) {
            self.values.learn(v, max);
        }
    }

    /// Returns a value and its upper bound, as implied by a condition on the flags.
    fn implied(&mut self, cc: ConditionCode) -> Option<(V, u64)> {
        use ConditionCode as C;
        let Compared { left, right, bits } = self.flags?;
        let positive = mask(bits - 1);
        if let Some(c) = self.values.as_const(right) {
            // Below 2^(bits-1), signed and unsigned order agree.
            let unsigned = c <= positive && self.values.bound(left) <= positive;
            return match cc {
                C::be | C::e => Some((left, c)),
                C::b => Some((left, c.checked_sub(1)?)),
                C::le if unsigned => Some((left, c)),
                C::l if unsigned => Some((left, c.checked_sub(1)?)),
                C::ae => self.at_least(left, c, bits),
                C::a => self.at_least(left, c.checked_add(1).filter(|&c| c <= mask(bits))?, bits),
                // A value that is not less than a non-negative one.
                C::ge | C::g if c <= positive => Some((left, positive)),
                C::ns if c == 0 => Some((left, positive)),
                _ => None,
            };
        }
        let c = self.values.as_const(left)?;
        match cc {
            C::ae | C::e => Some((right, c)),
            C::a => Some((right, c.checked_sub(1)?)),
            _ => None,
        }
    }

    /// Returns what follows from `v >= c` at a width: `v - c` does not wrap, and is at most the rest of the
    /// range.
    fn at_least(&mut self, v: V, c: u64, bits: u8) -> Option<(V, u64)> {
        let rest = self.values.bound(v).min(mask(bits)).checked_sub(c)?;
        let d = self.values.add(v, c.wrapping_neg());
        Some((self.values.zext(d, bits), rest))
    }

    /// Returns a value under the assumption that the flags meet a condition.
    fn given(&mut self, v: V, cc: ConditionCode) -> V {
        match self.implied(cc) {
            Some((of, max)) if of == v && max < self.values.bound(v) => self.values.upto(max),
            _ => v,
        }
    }

    /// Returns the destination of an indirect jump.
    pub(super) fn destination(&mut self, i: &Instruction, inst: InstId) -> V {
        self.operand(i, 0, inst).0
    }

    /// Evaluates one instruction (`inst` is its index in the graph). A branch changes nothing.
    pub(super) fn step(&mut self, i: &Instruction, inst: InstId) {
        if !self.known(i, inst) {
            self.unknown(i);
        }
    }

    /// Evaluates an instruction whose meaning is followed; returns `false` for all others.
    fn known(&mut self, i: &Instruction, inst: InstId) -> bool {
        match i.mnemonic() {
            Mnemonic::Mov if plain(i) => {
                let (v, bits) = self.operand(i, 1, inst);
                self.assign(i, v, bits);
            }
            Mnemonic::Movzx => {
                let (v, _) = self.operand(i, 1, inst);
                self.assign(i, v, width(i, 0));
            }
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let (v, bits) = self.operand(i, 1, inst);
                let v = self.values.sext(v, bits);
                self.assign(i, v, width(i, 0));
            }
            Mnemonic::Cdqe => self.regs[0] = self.values.sext(self.regs[0], 32),
            Mnemonic::Cwde => {
                let v = self.values.sext(self.regs[0], 16);
                self.regs[0] = self.values.zext(v, 32);
            }
            Mnemonic::Lea => {
                let v = self.address(i, true);
                self.assign(i, v, width(i, 0));
            }
            Mnemonic::Cmp | Mnemonic::Test => self.flags = self.compared(i, inst),
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::And => return self.arithmetic(i, inst),
            Mnemonic::Inc | Mnemonic::Dec if i.op0_kind() == OpKind::Register => {
                let (v, bits) = self.operand(i, 0, inst);
                let c = if i.mnemonic() == Mnemonic::Inc { 1 } else { u64::MAX };
                let v = self.values.add(v, c);
                self.assign(i, v, bits);
                self.flags = None;
            }
            Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr
                if i.op0_kind() == OpKind::Register && i.op1_kind() == OpKind::Immediate8 =>
            {
                self.shift(i, inst);
            }
            Mnemonic::Xor if i.op1_kind() == OpKind::Register && i.op0_register() == i.op1_register() => {
                let zero = self.values.constant(0);
                self.assign(i, zero, width(i, 0));
                self.flags = None;
            }
            Mnemonic::Push if width(i, 0) == 64 || i.op0_kind() != OpKind::Register => self.push(i),
            Mnemonic::Pop if i.op0_kind() == OpKind::Register && width(i, 0) == 64 => {
                let v = self.recall(self.regs[4], 8).map_or_else(|| self.values.unknown(), |w| w.value);
                self.regs[4] = self.values.add(self.regs[4], 8);
                self.assign(i, v, 64);
            }
            Mnemonic::Nop | Mnemonic::Endbr64 => {}
            _ if is_cmov(i) => self.conditional_move(i, inst),
            _ => return false,
        }
        true
    }

    /// Returns the flags of `cmp` or `test`, if what they compare is followed.
    fn compared(&mut self, i: &Instruction, inst: InstId) -> Option<Compared> {
        let (left, bits) = self.operand(i, 0, inst);
        let (right, _) = self.operand(i, 1, inst);
        if i.mnemonic() == Mnemonic::Cmp {
            return Some(Compared { left, right: self.values.zext(right, bits), bits });
        }
        let zero = self.values.constant(0);
        // `test x, x` sets zero and carry like `cmp x, 0`.
        if left == right {
            return Some(Compared { left, right: zero, bits });
        }
        let c = self.values.as_const(right)?;
        Some(Compared { left: self.values.and(left, c & mask(bits)), right: zero, bits })
    }

    fn shift(&mut self, i: &Instruction, inst: InstId) {
        let (v, bits) = self.operand(i, 0, inst);
        let k = u8::try_from(i.immediate(1) & if bits == 64 { 63 } else { 31 }).unwrap_or(0);
        let v = if i.mnemonic() == Mnemonic::Shr { self.values.shr(v, k) } else { self.values.shl(v, k) };
        self.assign(i, v, bits);
        self.flags = None;
    }

    fn push(&mut self, i: &Instruction) {
        let v = match i.op0_kind() {
            OpKind::Register => self.regs[gpr(i.op0_register()).unwrap_or(0)],
            _ => self.values.unknown(),
        };
        self.regs[4] = self.values.add(self.regs[4], i64::from(i.stack_pointer_increment()).cast_unsigned());
        self.store(self.regs[4], 8, v, true);
    }

    fn conditional_move(&mut self, i: &Instruction, inst: InstId) {
        let ((old, bits), (new, _)) = (self.operand(i, 0, inst), self.operand(i, 1, inst));
        let cc = i.condition_code();
        let (old, new) = (self.given(old, negate(cc)), self.given(new, cc));
        let v = self.values.either(old, new);
        self.assign(i, v, bits);
    }

    fn arithmetic(&mut self, i: &Instruction, inst: InstId) -> bool {
        if i.op0_kind() != OpKind::Register {
            return false;
        }
        let (a, bits) = self.operand(i, 0, inst);
        let (b, _) = self.operand(i, 1, inst);
        let constant = self.values.as_const(b);
        let (v, flags) = match (i.mnemonic(), constant) {
            (Mnemonic::Add, _) => (self.values.sum(a, b), None),
            (Mnemonic::Sub, Some(c)) => {
                let right = self.values.constant(c & mask(bits));
                (self.values.add(a, c.wrapping_neg()), Some(Compared { left: a, right, bits }))
            }
            (Mnemonic::Sub, None) => (self.values.unknown(), Some(Compared { left: a, right: b, bits })),
            (_, Some(c)) => {
                let v = self.values.and(a, c);
                let right = self.values.constant(0);
                (v, Some(Compared { left: self.values.zext(v, bits), right, bits }))
            }
            (_, None) => (self.values.unknown(), None),
        };
        self.assign(i, v, bits);
        self.flags = flags;
        true
    }

    /// Evaluates any other instruction: everything it writes becomes unknown.
    fn unknown(&mut self, i: &Instruction) {
        let rsp = self.regs[4];
        let Self { values, regs, factory, words, .. } = self;
        let info = factory.info(i);
        for u in info.used_registers() {
            if let (true, Some(n)) = (writes(u.access()), gpr(u.register())) {
                let v = values.unknown();
                regs[n] = if extends(i, info.op0_access(), n) { values.zext(v, 32) } else { v };
            }
        }
        let mut stores = info.used_memory().iter().filter(|m| writes(m.access()));
        match (stores.next(), stores.next()) {
            (None, _) => {}
            // One store, to the operand of the instruction.
            (Some(_), None) if stores_operand(i) => {
                let bytes = u8::try_from(i.memory_size().size()).unwrap_or(u8::MAX);
                let (addr, v) = (self.address(i, false), self.values.unknown());
                self.store(addr, bytes, v, in_frame(i));
            }
            _ => words.clear(),
        }
        match i.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt => {
                for n in (0..16).filter(|n| CALL_CLOBBERED >> n & 1 != 0) {
                    self.regs[n] = self.values.unknown();
                }
                // The call lowered rsp and its return raised it again.
                self.regs[4] = rsp;
                self.words.clear();
                self.flags = None;
            }
            _ => {
                if i.rflags_modified() != 0 {
                    self.flags = None;
                }
            }
        }
    }

    /// Returns an operand's value, zero-extended from its width, and the width in bits.
    fn operand(&mut self, i: &Instruction, op: u32, inst: InstId) -> (V, u8) {
        let bits = width(i, op);
        let v = match i.op_kind(op) {
            OpKind::Register => self.register(i.op_register(op)),
            OpKind::Memory => {
                let addr = self.address(i, false);
                self.read(i, addr, bits / 8, inst)
            }
            OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => self.values.constant(i.immediate(op)),
            _ => self.values.unknown(),
        };
        (v, bits)
    }

    fn register(&mut self, r: Register) -> V {
        let Some(n) = gpr(r) else { return self.values.unknown() };
        let v = self.regs[n];
        match r.size() {
            8 => v,
            4 => self.values.zext(v, 32),
            2 => self.values.zext(v, 16),
            _ if matches!(r, Register::AH | Register::BH | Register::CH | Register::DH) => {
                let v = self.values.shr(v, 8);
                self.values.zext(v, 8)
            }
            _ => self.values.zext(v, 8),
        }
    }

    /// Returns the address of the memory operand; `lea` ignores segments.
    fn address(&mut self, i: &Instruction, lea: bool) -> V {
        if !lea && matches!(i.memory_segment(), Register::FS | Register::GS) {
            return self.values.unknown();
        }
        if i.is_ip_rel_memory_operand() {
            return self.values.constant(i.ip_rel_memory_address());
        }
        let mut v = self.values.constant(i.memory_displacement64());
        let narrow =
            [i.memory_base(), i.memory_index()].iter().any(|r| *r != Register::None && r.size() != 8);
        if i.memory_base() != Register::None {
            let base = self.register(i.memory_base());
            v = self.values.sum(base, v);
        }
        if i.memory_index() != Register::None {
            let index = self.register(i.memory_index());
            let k = u8::try_from(i.memory_index_scale().trailing_zeros()).unwrap_or(0);
            let scaled = self.values.shl(index, k);
            v = self.values.sum(v, scaled);
        }
        if narrow { self.values.zext(v, 32) } else { v }
    }

    fn read(&mut self, i: &Instruction, addr: V, bytes: u8, inst: InstId) -> V {
        if let Some(w) = self.recall(addr, bytes).filter(|w| w.frame || !self.strict) {
            self.trusting |= !w.frame;
            return w.value;
        }
        let id = u32::try_from(self.loads.len()).unwrap_or(u32::MAX);
        self.loads.push(Load { inst, addr });
        let value = self.values.load(id, bytes);
        self.words.push(Word { addr, bytes, value, frame: in_frame(i) });
        value
    }

    fn recall(&self, addr: V, bytes: u8) -> Option<Word> {
        self.words.iter().find(|w| w.addr == addr && w.bytes == bytes).copied()
    }

    /// Writes to memory: forgets every word that the write may overlap. A slot of the frame and a word
    /// reached by another pointer are assumed to be distinct; [`Machine::trusting`] then records this.
    fn store(&mut self, addr: V, bytes: u8, value: V, frame: bool) {
        let (root, at) = self.split(addr);
        let zero = self.values.as_const(value) == Some(0);
        let mut words = std::mem::take(&mut self.words);
        words.retain_mut(|w| {
            let (r, o) = self.split(w.addr);
            let apart = o.wrapping_sub(at);
            // The words are apart if both distances, modulo 2^64, leave room for the lower of the two.
            let stays = if r == root {
                apart >= u64::from(bytes) && apart.wrapping_neg() >= u64::from(w.bytes)
            } else {
                frame && !w.frame
            };
            if !stays && zero && w.addr != addr {
                // Storing zeros makes no value greater, at whatever address.
                w.value = self.values.cleared(w.value);
                return true;
            }
            stays
        });
        words.push(Word { addr, bytes, value, frame });
        self.words = words;
    }

    fn split(&self, v: V) -> (Option<V>, u64) {
        match self.values.node(v) {
            super::value::Node::Const(c) => (None, c),
            super::value::Node::Add(x, c) => (Some(x), c),
            _ => (Some(v), 0),
        }
    }

    /// Writes the result to operand 0.
    fn assign(&mut self, i: &Instruction, v: V, bits: u8) {
        match i.op0_kind() {
            OpKind::Register => {
                let r = i.op0_register();
                let Some(n) = gpr(r) else { return };
                self.regs[n] = match r.size() {
                    8 => v,
                    4 => self.values.zext(v, 32),
                    2 => self.values.merge(self.regs[n], v, 16),
                    _ if matches!(r, Register::AH | Register::BH | Register::CH | Register::DH) => {
                        self.values.unknown()
                    }
                    _ => self.values.merge(self.regs[n], v, 8),
                };
            }
            OpKind::Memory => {
                let addr = self.address(i, false);
                let v = self.values.zext(v, bits);
                self.store(addr, bits / 8, v, in_frame(i));
            }
            _ => self.words.clear(),
        }
    }
}

/// Returns whether a memory operand is a slot of the function's own frame: above rsp, or below rbp.
fn in_frame(i: &Instruction) -> bool {
    i.memory_index() == Register::None
        && match i.memory_base() {
            Register::RSP => true,
            Register::RBP => i.memory_displacement64().cast_signed() < 0,
            _ => false,
        }
}

/// Returns whether an instruction stores only to its first operand. (The bits of a bit string may lie
/// anywhere.)
fn stores_operand(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::Memory
        && (1..=64).contains(&i.memory_size().size())
        && !matches!(i.mnemonic(), Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
}

/// Returns whether this is a `mov` between general registers, memory and immediates; not of segment or
/// control registers.
fn plain(i: &Instruction) -> bool {
    (0..2).all(|o| match i.op_kind(o) {
        OpKind::Register => i.op_register(o).is_gpr(),
        OpKind::Memory => !matches!(i.memory_size(), MemorySize::Unknown),
        _ => true,
    })
}

/// Returns whether this is a `cmovcc`. With a 32-bit destination, the upper half is cleared even if nothing
/// is moved.
fn is_cmov(i: &Instruction) -> bool {
    i.condition_code() != ConditionCode::None && i.op_count() == 2 && i.op0_register().is_gpr()
}

/// Returns whether a register that an instruction writes is its 32-bit destination, so that the upper half is
/// cleared.
fn extends(i: &Instruction, access: OpAccess, n: usize) -> bool {
    // With a zero source, or a bad selector, the destination is unchanged; the whole register, according to
    // AMD.
    let may_not = matches!(i.mnemonic(), Mnemonic::Bsf | Mnemonic::Bsr | Mnemonic::Lar | Mnemonic::Lsl);
    i.op0_kind() == OpKind::Register
        && i.op0_register().is_gpr32()
        && gpr(i.op0_register()) == Some(n)
        && matches!(access, OpAccess::Write | OpAccess::ReadWrite)
        && !may_not
}

/// Returns an operand's width in bits.
fn width(i: &Instruction, op: u32) -> u8 {
    match i.op_kind(op) {
        OpKind::Register => u8::try_from(i.op_register(op).size() * 8).unwrap_or(64),
        OpKind::Memory => u8::try_from(i.memory_size().size() * 8).unwrap_or(64),
        _ => 64,
    }
}

fn writes(a: OpAccess) -> bool {
    matches!(a, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

fn negate(cc: ConditionCode) -> ConditionCode {
    use ConditionCode as C;
    match cc {
        C::a => C::be,
        C::be => C::a,
        C::ae => C::b,
        C::b => C::ae,
        C::e => C::ne,
        C::ne => C::e,
        C::l => C::ge,
        C::ge => C::l,
        C::le => C::g,
        C::g => C::le,
        C::s => C::ns,
        C::ns => C::s,
        // The others do not constrain unsigned order.
        _ => C::None,
    }
}
