//! Guards on function pointers.
//!
//! | call | before the `jne` to the original call |
//! |---|---|
//! | `call *p`, f below 2 GiB | `cmp $f, p` |
//! | `call *%r` | `cmp f, %r` |
//! | `call *m` | `mov %r11, -8(%rsp)`; `mov m, %r11`; `cmp f, %r11`; `mov -8(%rsp), %r11` |
//!
//! f is the original entry of the function that is called directly if the comparison holds. The original's
//! call would read the pointer at that moment and go to f, so the two do the same. If the comparison does not
//! hold, the original call reads the pointer again; another thread may have changed it, as it may change it
//! before any call.
//!
//! Law 2 (one to one): no register differs at the call, so it does not matter which registers the callee
//! reads. The status flags differ; a call passes none (System V psABI 3.2.1). In the last form the word below
//! the stack pointer differs; the call overwrites it. Until then nothing reads it but the second `mov`: a function that
//! calls keeps nothing below its stack pointer, and a signal handler leaves 128 bytes there as they are (psABI
//! 3.2.2). If the read of the pointer faults, all registers are those of the original.

use addr::Avma;
use code::{Inst, InstBytes};
use iced_x86::{Code, OpKind, Register};

/// The register that holds a pointer from memory, by its number.
pub(crate) const SCRATCH: u8 = 11;
/// `mov %r11, -8(%rsp)`.
pub(crate) const SPILL: [u8; 5] = [0x4c, 0x89, 0x5c, 0x24, 0xf8];
/// `mov -8(%rsp), %r11`.
pub(crate) const RESTORE: [u8; 5] = [0x4c, 0x8b, 0x5c, 0x24, 0xf8];

/// The place from which a call reads its destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pointer {
    /// A general register, by its number.
    Register(u8),
    /// Memory; with the instruction that loads the pointer into the scratch register.
    Memory(InstBytes),
}

/// Returns whether a call through a function pointer can be guarded.
#[must_use]
pub fn can_guard_pointer(inst: &Inst) -> bool {
    pointer(inst).is_some()
}

/// Parses a call through a function pointer.
pub(crate) fn pointer(inst: &Inst) -> Option<Pointer> {
    let i = &inst.decoded;
    if i.code() != Code::Call_rm64 {
        return None;
    }
    if i.op0_kind() == OpKind::Register {
        let register = i.op0_register();
        let number = u8::try_from(register.number()).ok()?;
        return (register != Register::RSP).then_some(Pointer::Register(number));
    }
    let reads_stack = i.memory_base() == Register::RSP || i.is_ip_rel_memory_operand();
    load(inst.bytes.as_slice()).filter(|_| !reads_stack).map(Pointer::Memory)
}

/// Returns the comparison of a call's pointer with an immediate operand, if the callee's entry fits one.
pub(crate) fn with_immediate(call: &Inst, callee: Avma) -> Option<InstBytes> {
    pointer(call)?;
    let immediate = i32::try_from(callee.0).ok()?.to_le_bytes();
    let compare = with_operand(call.bytes.as_slice(), 0x48, 0x81, 7)?;
    InstBytes::new(&[&compare[..], &immediate].concat())
}

/// Returns the load of the scratch register for a call through memory.
fn load(call: &[u8]) -> Option<InstBytes> {
    InstBytes::new(&with_operand(call, 0x4c, 0x8b, SCRATCH & 7)?)
}

/// Returns another instruction with the operand of a call (`ff /2`) that has no prefix but REX: with these
/// bits in the REX prefix, this opcode, and this number in the `reg` field (Intel SDM volume 2, 2.2.1).
fn with_operand(call: &[u8], rex: u8, opcode: u8, reg: u8) -> Option<Vec<u8>> {
    let (own, rest) = match *call.first()? {
        own @ 0x40..=0x4f => (own, call.get(1..)?),
        _ => (0x40, call),
    };
    let [0xff, modrm, operand @ ..] = rest else { return None };
    Some([&[rex | own & 3, opcode, modrm & 0xc7 | reg << 3], operand].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn inst(bytes: &[u8]) -> Inst {
        let decoded = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        assert_eq!(decoded.len(), bytes.len());
        Inst { at: Avma(0x1000), bytes: InstBytes::new(bytes).unwrap(), decoded }
    }

    #[test]
    fn the_load_reads_what_the_call_reads() {
        let calls: [&[u8]; 7] = [
            &[0xff, 0x10],
            &[0xff, 0x50, 0x08],
            &[0xff, 0x93, 0x00, 0x01, 0x00, 0x00],
            &[0x41, 0xff, 0x53, 0x10],
            &[0xff, 0x14, 0xc2],
            &[0x43, 0xff, 0x54, 0xe5, 0x20],
            &[0xff, 0x55, 0xf8],
        ];
        for bytes in calls {
            let call = inst(bytes);
            let Some(Pointer::Memory(load)) = pointer(&call) else { panic!("{}", call.decoded) };
            let load = inst(load.as_slice()).decoded;
            assert_eq!((load.code(), load.op0_register()), (Code::Mov_r64_rm64, Register::R11));
            let operand = |i: &iced_x86::Instruction| {
                let address = (i.memory_base(), i.memory_index(), i.memory_index_scale());
                (address, i.memory_displacement64(), i.memory_segment())
            };
            assert_eq!(operand(&load), operand(&call.decoded), "{load}");
            let compare = with_immediate(&call, Avma(0x7fff_fff0)).unwrap();
            let compare = inst(compare.as_slice()).decoded;
            assert_eq!((compare.code(), compare.immediate32to64()), (Code::Cmp_rm64_imm32, 0x7fff_fff0));
            assert_eq!(operand(&compare), operand(&call.decoded), "{compare}");
            assert_eq!(with_immediate(&call, Avma(0x8000_0000)), None);
        }
    }

    #[test]
    fn other_calls_are_left_alone() {
        let by_register = inst(&[0x41, 0xff, 0xd4]);
        assert_eq!(pointer(&by_register), Some(Pointer::Register(12)));
        let compare = with_immediate(&by_register, Avma(1)).unwrap();
        assert_eq!(compare.as_slice(), [0x49, 0x81, 0xfc, 1, 0, 0, 0]);
        let calls: [&[u8]; 6] = [
            &[0xe8, 0, 0, 0, 0],
            &[0xff, 0xd4],
            &[0xff, 0x54, 0x24, 0xf8],
            &[0xff, 0x15, 0, 0, 0, 0],
            &[0x64, 0xff, 0x10],
            &[0x67, 0xff, 0x10],
        ];
        for bytes in calls {
            assert_eq!(pointer(&inst(bytes)), None, "{}", inst(bytes).decoded);
        }
    }

    #[test]
    fn the_scratch_register_is_saved_below_the_stack_pointer() {
        let [spill, restore] = [&SPILL, &RESTORE].map(|bytes| inst(bytes).decoded);
        assert_eq!((spill.code(), restore.code()), (Code::Mov_rm64_r64, Code::Mov_r64_rm64));
        assert_eq!([spill.op1_register(), restore.op0_register()], [Register::R11; 2]);
        for i in [spill, restore] {
            assert_eq!((i.memory_base(), i.memory_displacement64()), (Register::RSP, 8u64.wrapping_neg()));
        }
    }
}
