//! One executed instruction, as a front end sees it.

use addr::{Addr, Avma};
use iced_x86::{FlowControl, Instruction, OpKind};

/// An executed instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Where it is.
    pub at: Avma,
    /// Its size. Bytes.
    pub len: u8,
    /// What it can do to control.
    pub flow: Flow,
    /// Which instruction is executed next.
    pub next: Avma,
}

impl Step {
    /// The address behind it.
    #[must_use]
    pub fn after(&self) -> Avma {
        self.at.add(u64::from(self.len))
    }
}

/// What an instruction can do to control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Nothing.
    On,
    /// A direct branch that is taken or not.
    Conditional,
    /// A direct jump.
    Jump,
    /// A direct call.
    Call,
    /// A jump to where a pointer leads.
    IndirectJump(Pointer),
    /// A call of where a pointer leads.
    IndirectCall(Pointer),
    /// A return.
    Return,
}

impl Flow {
    /// Whether it puts a return address on the stack.
    #[must_use]
    pub fn is_call(self) -> bool {
        matches!(self, Flow::Call | Flow::IndirectCall(_))
    }
}

/// From where the destination of an indirect branch comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// From the word at this address.
    Slot(Avma),
    /// From a word that a register and nothing else points to, as a virtual table's.
    Table,
    /// From anywhere else.
    Other,
}

/// An instruction that may be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    /// Its size. Bytes.
    pub len: u8,
    /// What it can do to control.
    pub flow: Flow,
    /// Where it leads, for direct branches.
    pub target: Option<Avma>,
}

impl Inst {
    /// What there is to know of a decoded instruction; its address is the decoder's.
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
            // What the kernel answers (`syscall`, which a decoder calls a call) comes back behind it.
            _ => Flow::On,
        };
        Self { len: u8::try_from(i.len()).unwrap_or(15), flow, target }
    }

    /// Its execution at an address.
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
    fn branches_are_told_apart() {
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
