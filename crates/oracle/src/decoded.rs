//! What an instruction reads and writes, as far as the comparison needs it. Each address is decoded once.

use addr::{Avma, AvmaRange, ReadMemory};
use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register, RflagsBits, UsedMemory,
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// The flags that programs see, as bits of `rflags`: carry, parity, adjust, zero, sign, direction, overflow,
/// alignment.
pub(crate) const FLAGS: u64 = 0x4_0cd5;

/// One instruction.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) inst: Instruction,
    /// General registers it reads, as bits by number.
    pub(crate) reads: u16,
    /// The registers in `reads` of which it reads only the lowest byte.
    pub(crate) reads_low: u16,
    /// Flags it reads, as bits of `rflags`.
    pub(crate) reads_flags: u64,
    /// Flags it may change, as bits of `rflags`.
    pub(crate) writes_flags: u64,
    /// True if it uses x87, SSE, AVX or other extended state.
    pub(crate) vector: bool,
    /// Vector registers it reads, as bits by number.
    pub(crate) reads_vectors: u32,
    /// True if it reads the code address of the last x87 instruction.
    pub(crate) reads_x87_place: bool,
    /// True if a comparison cannot continue past it.
    pub(crate) stops: bool,
    memory: Vec<UsedMemory>,
}

/// Memory that an instruction uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    pub(crate) range: AvmaRange,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// True if all of the range is certain to be written.
    pub(crate) overwrites: bool,
}

impl Decoded {
    fn new(inst: Instruction, factory: &mut InstructionInfoFactory) -> Self {
        let info = factory.info(&inst);
        let mut reads_more = 0;
        let mut d = Self {
            inst,
            reads: 0,
            reads_low: 0,
            reads_flags: flags(inst.rflags_read()),
            writes_flags: flags(inst.rflags_modified()),
            vector: is_x87(&inst) || is_state(inst.mnemonic()),
            reads_vectors: 0,
            reads_x87_place: is_x87_state(inst.mnemonic()),
            stops: inst.is_invalid() || cannot_be_compared(inst.mnemonic()),
            memory: info.used_memory().to_vec(),
        };
        for used in info.used_registers() {
            let r = used.register();
            let read =
                !matches!(used.access(), OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess);
            if let Some(n) = gpr(r) {
                // `or $-1` gives -1, whatever the register held.
                let read = read && !(inst.mnemonic() == Mnemonic::Or && is_minus_one(&inst));
                d.reads |= u16::from(read) << n;
                let low =
                    r.size() == 1 && !matches!(r, Register::AH | Register::CH | Register::DH | Register::BH);
                reads_more |= u16::from(read && !low) << n;
            } else if r.is_vector_register() {
                d.vector = true;
                d.reads_vectors |= u32::from(read) << (r.number() & 31);
            } else if r.is_mm() || r.is_st() || r.is_k() {
                d.vector = true;
            }
        }
        d.reads_low = d.reads & !reads_more;
        if matches!(inst.mnemonic(), Mnemonic::Pushfq | Mnemonic::Pushf) {
            d.reads_flags = FLAGS;
        }
        if matches!(inst.mnemonic(), Mnemonic::Popfq | Mnemonic::Popf) {
            d.writes_flags = FLAGS;
        }
        d
    }

    /// Returns the memory it is about to use, given the registers. A part is `None` if its address is in a
    /// vector register.
    pub(crate) fn accesses<'a>(&'a self, regs: &'a State) -> impl Iterator<Item = Option<Access>> + 'a {
        self.memory.iter().filter(|m| m.access() != OpAccess::NoMemAccess).map(|m| {
            let at = m.virtual_address(0, |r, _, _| value(regs, r))?;
            let len = m.memory_size().size() as u64;
            Some(Access {
                range: AvmaRange::with_len(Avma(at), len),
                reads: !matches!(m.access(), OpAccess::Write | OpAccess::CondWrite),
                writes: !matches!(m.access(), OpAccess::Read | OpAccess::CondRead),
                overwrites: matches!(m.access(), OpAccess::Write | OpAccess::ReadWrite)
                    && !is_masked_store(self.inst.mnemonic()),
            })
        })
    }

    /// Returns whether it is a call, which pushes an address of its own code.
    pub(crate) fn is_call(&self) -> bool {
        matches!(self.inst.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
    }

    /// Returns whether a register or memory decides where it leads.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(
            self.inst.flow_control(),
            FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return
        )
    }
}

/// Decoded instructions of one memory, by address.
#[derive(Debug, Default)]
pub(crate) struct Code {
    known: FxHashMap<Avma, Rc<Decoded>>,
    factory: Option<InstructionInfoFactory>,
}

impl Code {
    /// Returns the instruction at `at`, or an invalid one if nothing can be read there.
    pub(crate) fn at(&mut self, at: Avma, memory: &dyn ReadMemory) -> Rc<Decoded> {
        if let Some(known) = self.known.get(&at) {
            return Rc::clone(known);
        }
        let mut bytes = [0u8; 15];
        // The instruction may be the last of its mapping.
        let len = if memory.read(at, &mut bytes).is_ok() {
            bytes.len()
        } else {
            let page_end = usize::try_from(4096 - (at.0 & 4095)).unwrap_or(0).min(bytes.len());
            if memory.read(at, &mut bytes[..page_end]).is_ok() { page_end } else { 0 }
        };
        let inst = Decoder::with_ip(64, &bytes[..len], at.0, DecoderOptions::NONE).decode();
        let factory = self.factory.get_or_insert_with(InstructionInfoFactory::new);
        let decoded = Rc::new(Decoded::new(inst, factory));
        self.known.insert(at, Rc::clone(&decoded));
        decoded
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}

/// Names of the general registers, by number.
pub(crate) const GPR_NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// The registers that a thread's instructions compute with, except vector registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct State {
    /// The general registers, by number.
    pub(crate) gprs: [u64; 16],
    pub(crate) ip: u64,
    /// The flags in [`FLAGS`], as bits of `rflags`.
    pub(crate) flags: u64,
    pub(crate) fs_base: u64,
    pub(crate) gs_base: u64,
}

impl State {
    pub(crate) fn ip(&self) -> Avma {
        Avma(self.ip)
    }

    pub(crate) fn sp(&self) -> u64 {
        self.gprs[4]
    }
}

/// Returns the number of the general register that `r` is, or is a part of.
fn gpr(r: Register) -> Option<usize> {
    if !r.is_gpr() {
        return None;
    }
    Some(r.full_register().number())
}

fn value(regs: &State, r: Register) -> Option<u64> {
    match r {
        Register::FS => Some(regs.fs_base),
        Register::GS => Some(regs.gs_base),
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        Register::RIP => Some(regs.ip),
        r => {
            let full = *regs.gprs.get(gpr(r)?)?;
            Some(match r.size() {
                8 => full,
                4 => full & 0xffff_ffff,
                2 => full & 0xffff,
                // `xlat` has the only memory operand with an 8-bit register.
                _ => full & 0xff,
            })
        }
    }
}

/// Returns whether the operands are a register and -1.
fn is_minus_one(i: &Instruction) -> bool {
    let minus_one = match i.op1_kind() {
        OpKind::Immediate8 | OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64 => {
            i.immediate8() == u8::MAX
        }
        OpKind::Immediate32 | OpKind::Immediate32to64 => i.immediate32() == u32::MAX,
        _ => false,
    };
    minus_one && i.op0_kind() == OpKind::Register
}

/// Converts the decoder's flags to bits of `rflags`.
fn flags(of: u32) -> u64 {
    const BITS: [(u32, u64); 8] = [
        (RflagsBits::CF, 1),
        (RflagsBits::PF, 4),
        (RflagsBits::AF, 0x10),
        (RflagsBits::ZF, 0x40),
        (RflagsBits::SF, 0x80),
        (RflagsBits::DF, 0x400),
        (RflagsBits::OF, 0x800),
        (RflagsBits::AC, 0x4_0000),
    ];
    BITS.iter().filter(|(b, _)| of & b != 0).map(|(_, f)| f).sum()
}

/// Returns whether an instruction reads or changes the world outside the twin, or depends on time, CPU or
/// tracing.
fn cannot_be_compared(m: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        m,
        M::Syscall
            | M::Sysenter
            | M::Int
            | M::Int1
            | M::Int3
            | M::Rdtsc
            | M::Rdtscp
            | M::Rdrand
            | M::Rdseed
            | M::Rdpid
            | M::Rdpmc
            | M::Cpuid
            | M::Xgetbv
            | M::Xbegin
            | M::Umwait
            | M::Tpause
            | M::Lsl
            | M::Lar
            | M::Sgdt
            | M::Sidt
            | M::Sldt
            | M::Str
            | M::Smsw
            | M::Hlt
            | M::In
            | M::Out
    )
}

/// Returns whether an instruction is a masked store that the decoder reports as writing all of its operand,
/// because it has no mask register.
fn is_masked_store(m: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        m,
        M::Maskmovq
            | M::Maskmovdqu
            | M::Vmaskmovdqu
            | M::Vmaskmovps
            | M::Vmaskmovpd
            | M::Vpmaskmovd
            | M::Vpmaskmovq
    )
}

fn is_x87(inst: &Instruction) -> bool {
    use CpuidFeature as F;
    inst.cpuid_features().iter().any(|f| matches!(f, F::FPU | F::FPU287 | F::FPU387))
}

/// Returns whether an instruction uses the extended state as a whole.
fn is_state(m: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        m,
        M::Xrstor
            | M::Xrstor64
            | M::Fxrstor
            | M::Fxrstor64
            | M::Ldmxcsr
            | M::Vldmxcsr
            | M::Vzeroall
            | M::Vzeroupper
            | M::Emms
    ) || is_x87_state(m)
}

/// Returns whether an instruction stores or loads the address of the last x87 instruction.
fn is_x87_state(m: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        m,
        M::Fnstenv
            | M::Fstenv
            | M::Fldenv
            | M::Fnsave
            | M::Fsave
            | M::Frstor
            | M::Fxsave
            | M::Fxsave64
            | M::Xsave
            | M::Xsave64
            | M::Xsavec
            | M::Xsavec64
            | M::Xsaveopt
            | M::Xsaveopt64
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Decoded {
        let inst = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        Decoded::new(inst, &mut InstructionInfoFactory::new())
    }

    #[test]
    fn inputs_and_outputs_of_instructions() {
        // xor %eax, %eax reads nothing; add %rax, %rbx reads both and writes the flags.
        assert_eq!(decoded(&[0x31, 0xc0]).reads, 0);
        let add = decoded(&[0x48, 0x01, 0xc3]);
        assert_eq!((add.reads, add.reads_flags, add.writes_flags), (0b1001, 0, 0x8d5));
        // add %cl, %al reads only the lowest bytes of both. mov %ah, (%rcx) and mov %dl, (%rdx) read more of
        // each register.
        let reads = |bytes: &[u8]| (decoded(bytes).reads, decoded(bytes).reads_low);
        assert_eq!(reads(&[0x00, 0xc8]), (0b11, 0b11));
        assert_eq!(reads(&[0x88, 0x21]), (0b11, 0));
        assert_eq!(reads(&[0x88, 0x12]), (0b100, 0));
        // or $-1, %rax, but not or $1, %rax.
        assert_eq!(reads(&[0x48, 0x83, 0xc8, 0xff]), (0, 0));
        assert_eq!(reads(&[0x48, 0x83, 0xc8, 0x01]), (1, 0));
        // jne reads the zero flag; movq %rdi, %xmm1 uses a vector register; paddq %xmm1, %xmm2 reads both.
        assert_eq!(decoded(&[0x75, 0x10]).reads_flags, 0x40);
        assert!(decoded(&[0x66, 0x48, 0x0f, 0x6e, 0xcf]).vector);
        assert_eq!(decoded(&[0x66, 0x0f, 0xd4, 0xd1]).reads_vectors, 0b110);
        assert!(decoded(&[0x0f, 0x05]).stops && decoded(&[0x0f, 0x31]).stops && !decoded(&[0xc3]).stops);
        assert!(decoded(&[0xc3]).is_indirect() && decoded(&[0xe8, 0, 0, 0, 0]).is_call());
    }

    #[test]
    fn addresses_come_from_registers() {
        let mut regs = State { ip: 0x1000, fs_base: 0x5000, ..State::default() };
        regs.gprs[4] = 0x7000;
        regs.gprs[1] = 0x10;
        let accesses = |bytes: &[u8]| -> Vec<_> { decoded(bytes).accesses(&regs).collect() };
        let access = |at, len, writes: bool| {
            let range = AvmaRange::with_len(Avma(at), len);
            Some(Access { range, reads: !writes, writes, overwrites: writes })
        };
        // push %rax; mov %fs:8(%rcx), %eax; mov %al, 3(%rip).
        assert_eq!(accesses(&[0x50]), [access(0x6ff8, 8, true)]);
        assert_eq!(accesses(&[0x64, 0x8b, 0x41, 0x08]), [access(0x5018, 4, false)]);
        assert_eq!(accesses(&[0x88, 0x05, 3, 0, 0, 0]), [access(0x1009, 1, true)]);
        // incl (%rcx) reads and writes; vpmaskmovd %ymm0, %ymm1, (%rcx) writes only what its mask selects.
        let both = accesses(&[0xff, 0x01])[0].unwrap();
        assert!(both.reads && both.writes && both.overwrites);
        let masked = accesses(&[0xc4, 0xe2, 0x75, 0x8e, 0x01])[0].unwrap();
        assert!(masked.writes && !masked.overwrites);
    }
}
