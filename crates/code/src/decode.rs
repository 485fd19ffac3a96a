//! Classifies the control flow of one instruction, and refuses instructions that must not be copied at all.

use crate::{Callee, CalleeKind, Refusal};
use addr::{Avma, AvmaRange};
use iced_x86::{Code, ConditionCode, FlowControl, Instruction, OpKind, Register};

/// The control flow after an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// To the next instruction.
    Next,
    /// A call that is expected to return.
    Call,
    /// A call that is known not to return.
    NoReturnCall,
    /// An unconditional direct jump.
    Jump(Avma),
    /// A conditional jump on flags.
    Cond(ConditionCode, Avma),
    /// `loop` and similar instructions.
    CondShort(Avma),
    /// A jump through a register or memory.
    Indirect,
    /// `ret`.
    Return,
    /// An instruction without a successor.
    Trap,
    /// Not for a clone: control leaves the graph before this instruction and continues in the original.
    Leave,
}

/// The context in which a function's instructions are classified.
pub(crate) struct Surroundings<'a> {
    pub(crate) entry: Avma,
    pub(crate) parts: &'a [AvmaRange],
    pub(crate) callee: &'a dyn Fn(Callee) -> CalleeKind,
}

impl Surroundings<'_> {
    pub(crate) fn inside(&self, at: Avma) -> bool {
        self.parts.iter().any(|p| p.contains(at))
    }
}

/// Classifies one decoded, valid instruction.
pub(crate) fn classify(i: &Instruction, bytes: &[u8], s: &Surroundings<'_>) -> Result<Flow, Refusal> {
    if i.memory_base() == Register::EIP {
        return Err(Refusal::BadInstruction);
    }
    let flow = i.flow_control();
    if flow != FlowControl::Next && narrowed(bytes) {
        // Processors disagree: AMD's truncate the destination to 16 bits, Intel's ignore the prefix.
        return Err(Refusal::BadInstruction);
    }
    match flow {
        FlowControl::Next => Ok(match i.code() {
            // Faults in user mode.
            Code::Hlt => Flow::Trap,
            _ => Flow::Next,
        }),
        FlowControl::UnconditionalBranch => match i.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Ok(Flow::Jump(Avma(i.near_branch_target()))),
            _ => Err(Refusal::BadInstruction),
        },
        FlowControl::ConditionalBranch => {
            let to = Avma(i.near_branch_target());
            if i.is_jcc_short_or_near() && i.op0_kind() == OpKind::NearBranch64 {
                Ok(Flow::Cond(i.condition_code(), to))
            } else if (i.is_jcx_short() || i.is_loop() || i.is_loopcc())
                && i.op0_kind() == OpKind::NearBranch64
            {
                Ok(Flow::CondShort(to))
            } else {
                Err(Refusal::BadInstruction)
            }
        }
        FlowControl::IndirectBranch => match i.code() {
            Code::Jmp_rm64 => Ok(Flow::Indirect),
            _ => Err(Refusal::BadInstruction),
        },
        FlowControl::Return => match i.code() {
            Code::Retnq | Code::Retnq_imm16 => Ok(Flow::Return),
            _ => Err(Refusal::BadInstruction),
        },
        FlowControl::Call => match i.code() {
            Code::Call_rel32_64 => {
                let to = Avma(i.near_branch_target());
                // A `call` of an address inside the function reads that address. A call of a fragment's start
                // calls a function that was taken for a fragment.
                if to != s.entry && s.inside(to) && !s.parts.iter().any(|p| p.start == to) {
                    return Err(Refusal::ReadsOwnAddress);
                }
                called((s.callee)(Callee::Direct(to)))
            }
            // Leaves the address of the next instruction in rcx; no program reads it there.
            Code::Syscall => Ok(Flow::Next),
            _ => Err(Refusal::BadInstruction),
        },
        FlowControl::IndirectCall => match i.code() {
            Code::Call_rm64 if i.is_ip_rel_memory_operand() => {
                called((s.callee)(Callee::Slot(Avma(i.ip_rel_memory_address()))))
            }
            Code::Call_rm64 => Ok(Flow::Call),
            _ => Err(Refusal::BadInstruction),
        },
        FlowControl::Interrupt => match i.code() {
            Code::Int_imm8 => Ok(Flow::Next),
            _ => Ok(Flow::Trap),
        },
        FlowControl::XbeginXabortXend => match i.code() {
            // A branch that no graph has. A transaction that fails continues at its original address anyway.
            Code::Xbegin_rel16 | Code::Xbegin_rel32 => Ok(Flow::Leave),
            _ => Ok(Flow::Next),
        },
        FlowControl::Exception => Ok(Flow::Trap),
    }
}

fn called(kind: CalleeKind) -> Result<Flow, Refusal> {
    match kind {
        CalleeKind::Ordinary => Ok(Flow::Call),
        CalleeKind::NoReturn => Ok(Flow::NoReturnCall),
        CalleeKind::ReturnsTwice => Err(Refusal::ReturnsTwice),
        CalleeKind::CallerSensitive => Err(Refusal::CallerSensitive),
    }
}

/// Returns whether an operand-size prefix is in effect that REX.W does not override. (Linkers pad
/// `call __tls_get_addr` with both.)
fn narrowed(bytes: &[u8]) -> bool {
    let mut narrow = false;
    for &b in bytes {
        match b {
            0x66 => narrow = true,
            0x67 | 0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            // Only a REX directly before the opcode counts; this one is directly before it.
            0x40..=0x4f => return narrow && b & 8 == 0,
            _ => break,
        }
    }
    narrow
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn judge(bytes: &[u8]) -> Result<Flow, Refusal> {
        let parts = [AvmaRange::new(Avma(0x1000), Avma(0x1100))];
        let s = Surroundings { entry: Avma(0x1000), parts: &parts, callee: &|_| CalleeKind::Ordinary };
        let i = Decoder::with_ip(64, bytes, 0x1010, DecoderOptions::NONE).decode();
        assert!(!i.is_invalid());
        classify(&i, bytes, &s)
    }

    #[test]
    fn branches() {
        assert_eq!(judge(&[0xeb, 0xfe]), Ok(Flow::Jump(Avma(0x1010))));
        assert_eq!(judge(&[0x66, 0xeb, 0xfe]), Err(Refusal::BadInstruction));
        assert_eq!(judge(&[0xe3, 0xfe]), Ok(Flow::CondShort(Avma(0x1010))));
        assert_eq!(judge(&[0x74, 0x00]), Ok(Flow::Cond(ConditionCode::e, Avma(0x1012))));
        assert_eq!(judge(&[0x3e, 0xff, 0xe0]), Ok(Flow::Indirect));
        assert_eq!(judge(&[0xf3, 0xc3]), Ok(Flow::Return));
        assert_eq!(judge(&[0xcc]), Ok(Flow::Trap));
        assert_eq!(judge(&[0x0f, 0x0b]), Ok(Flow::Trap));
        assert_eq!(judge(&[0x0f, 0x05]), Ok(Flow::Next));
        // Far jump through memory.
        assert_eq!(judge(&[0xff, 0x2f]), Err(Refusal::BadInstruction));
    }

    #[test]
    fn calls() {
        // To the next instruction, to the entry, to another function; with the linker's TLS padding.
        assert_eq!(judge(&[0xe8, 0, 0, 0, 0]), Err(Refusal::ReadsOwnAddress));
        assert_eq!(judge(&[0xe8, 0xeb, 0xff, 0xff, 0xff]), Ok(Flow::Call));
        assert_eq!(judge(&[0xe8, 0, 1, 0, 0]), Ok(Flow::Call));
        assert_eq!(judge(&[0x66, 0x66, 0x48, 0xe8, 0, 1, 0, 0]), Ok(Flow::Call));
        assert_eq!(judge(&[0x66, 0xe8, 0, 1, 0, 0]), Err(Refusal::BadInstruction));
        assert_eq!(judge(&[0x67, 0xe8, 0, 1, 0, 0]), Ok(Flow::Call));
        // xbegin
        assert_eq!(judge(&[0xc7, 0xf8, 0, 0, 0, 0]), Ok(Flow::Leave));
    }

    #[test]
    fn operands_relative_to_the_instruction() {
        assert_eq!(judge(&[0x8b, 0x05, 0, 0, 0, 0]), Ok(Flow::Next));
        assert_eq!(judge(&[0x48, 0x8d, 0x05, 0xe9, 0xff, 0xff, 0xff]), Ok(Flow::Next));
        assert_eq!(judge(&[0x67, 0x8b, 0x05, 0, 0, 0, 0]), Err(Refusal::BadInstruction));
    }
}
