//! General registers by their numbers.

use iced_x86::Register;

/// A general register of 64 bits, by its number in instruction encodings: rax 0, rcx 1, rdx 2, rbx 3, and so
/// on. DWARF's numbers ([`unwind::Reg`]) differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gpr(u8);

impl Gpr {
    /// The stack pointer.
    pub const RSP: Gpr = Gpr(4);

    /// Returns the register with a number; `None` from 16 on.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number < 16).then_some(Self(number))
    }

    /// Returns the register if it is a general register that is used in full width.
    #[must_use]
    pub fn of(r: Register) -> Option<Self> {
        u8::try_from(r.number()).ok().filter(|_| r.is_gpr64()).and_then(Self::new)
    }

    /// Returns its number in instruction encodings.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_encodings() {
        let named = [Register::RAX, Register::RCX, Register::RDX, Register::RBX, Register::RSP];
        assert_eq!(named.map(|r| Gpr::of(r).map(Gpr::number)), [0, 1, 2, 3, 4].map(Some));
        assert_eq!((Gpr::of(Register::R15), Gpr::new(16)), (Gpr::new(15), None));
        // No part of a register, no other kind of register.
        assert_eq!([Register::EAX, Register::RIP, Register::XMM0, Register::GS].map(Gpr::of), [None; 4]);
    }
}
