//! One executed instruction, as the fetch model sees it.

use addr::{Addr, Avma};
use iced_x86::{FlowControl, Instruction, OpKind};

/// An executed instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its address.
    pub at: Avma,
    /// Its size. Bytes.
    pub len: u8,
    /// How it can change control flow.
    pub flow: Flow,
    /// The address of the instruction that is executed next.
    pub next: Avma,
}

impl Step {
    /// Returns the address behind it.
    #[must_use]
    pub fn after(&self) -> Avma {
        self.at.add(u64::from(self.len))
    }
}

/// How an instruction can change control flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Not at all.
    On,
    /// A direct branch that is taken or not.
    Conditional,
    /// A direct jump.
    Jump,
    /// A direct call.
    Call,
    /// A jump through a pointer.
    IndirectJump(Pointer),
    /// A call through a pointer.
    IndirectCall(Pointer),
    /// A return.
    Return,
}

impl Flow {
    /// Returns whether it puts a return address on the stack.
    #[must_use]
    pub fn is_call(self) -> bool {
        matches!(self, Flow::Call | Flow::IndirectCall(_))
    }
}

/// Where the destination of an indirect branch comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// From the word at this address.
    Slot(Avma),
    /// From a word whose address is one register and a constant, as in a virtual table.
    Table,
    /// From anywhere else.
    Other,
}

/// An instruction that may be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    /// Its size. Bytes.
    pub len: u8,
    /// How it can change control flow.
    pub flow: Flow,
    /// The destination of a direct branch.
    pub target: Option<Avma>,
}

impl Inst {
    /// Describes a decoded instruction. Its address is the decoder's.
    #[must_use]
    pub fn of(i: &Instruction) -> Self {
        let target = (i.op0_kind() == OpKind::NearBranch64).then(|| Avma(i.near_branch64()));
        let slot = || i.is_ip_rel_memory_operand().then(|| Pointer::Slot(Avma(i.ip_rel_memory_address())));
        let flow = match i.flow_control() {
            FlowControl::ConditionalBranch => Flow::Conditional,
            FlowControl::UnconditionalBranch => Flow::Jump,
            FlowControl::Call if target.is_some() => Flow::Call,
            FlowControl::IndirectBranch => Flow::IndirectJump(slot().unwrap_or(Pointer::Other)),
            FlowControl::IndirectCall => {
                let table = emit::table_call(i).map(|_| Pointer::Table);
                Flow::IndirectCall(slot().or(table).unwrap_or(Pointer::Other))
            }
            FlowControl::Return => Flow::Return,
            // `syscall` (a call, to the decoder) continues behind itself.
            _ => Flow::On,
        };
        Self { len: u8::try_from(i.len()).unwrap_or(15), flow, target }
    }

    /// Returns its execution at the address `at`.
    #[must_use]
    pub fn step(self, at: Avma, next: Avma) -> Step {
        Step { at, len: self.len, flow: self.flow, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn of(bytes: &[u8]) -> Inst {
        Inst::of(&Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode())
    }

    #[test]
    fn kinds_of_branches_are_distinguished() {
        let inst = |len, flow, target: Option<u64>| Inst { len, flow, target: target.map(Avma) };
        assert_eq!(of(&[0x74, 0x10]), inst(2, Flow::Conditional, Some(0x1012)));
        assert_eq!(of(&[0xe3, 0xfe]), inst(2, Flow::Conditional, Some(0x1000)), "jrcxz");
        assert_eq!(of(&[0xe8, 1, 0, 0, 0]), inst(5, Flow::Call, Some(0x1006)));
        assert_eq!(of(&[0xeb, 0]), inst(2, Flow::Jump, Some(0x1002)));
        assert_eq!(of(&[0xff, 0xd0]), inst(2, Flow::IndirectCall(Pointer::Other), None));
        assert_eq!(of(&[0xff, 0x50, 8]), inst(3, Flow::IndirectCall(Pointer::Table), None));
        let slot = Pointer::Slot(Avma(0x1106));
        assert_eq!(of(&[0xff, 0x25, 0, 1, 0, 0]), inst(6, Flow::IndirectJump(slot), None));
        assert_eq!(of(&[0xc3]), inst(1, Flow::Return, None));
        assert_eq!(of(&[0x0f, 0x05]), inst(2, Flow::On, None), "syscall");
    }
}
