//! The instructions of a counter.
//!
//! | by | instructions |
//! |---|---|
//! | [`CountBy::Inc`] | `inc qword gs:[offset]` |
//! | [`CountBy::Register`] | `mov r, gs:[offset]`, `lea r, [r+1]`, `mov gs:[offset], r` |
//!
//! The encodings are written by hand: there are only four, and the verifier decodes each of them again.

use code::{CountBy, Gpr, Live};
use iced_x86::{Code, Instruction, Register, RflagsBits};

/// One instruction of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Inc,
    Load(Gpr),
    Add(Gpr),
    Store(Gpr),
}

/// Returns the instructions that increment a counter once.
pub(crate) fn steps(by: CountBy) -> impl Iterator<Item = Step> {
    let (inc, through) = match by {
        CountBy::Inc => (Some(Step::Inc), None),
        CountBy::Register(r) => (None, Some([Step::Load(r), Step::Add(r), Step::Store(r)])),
    };
    inc.into_iter().chain(through.into_iter().flatten())
}

/// Returns whether a step reads or writes memory relative to the GS base.
pub(crate) fn touches_memory(step: Step) -> bool {
    !matches!(step, Step::Add(_))
}

/// Returns the size of a step. Bytes.
pub(crate) fn len(step: Step) -> u32 {
    match step {
        Step::Add(_) => 4,
        _ => 9,
    }
}

/// Encodes a step on the counter at `offset` (Intel SDM volume 2, 2.1.5). The SIB byte has neither base nor
/// index, so the displacement is absolute.
pub(crate) fn encode(step: Step, offset: u32) -> Vec<u8> {
    let d = offset.to_le_bytes();
    // The number is that of a register, or an extension of the opcode.
    let absolute = |opcode: u8, number: u8| {
        let rex = 0x48 | ((number >> 3) << 2);
        vec![0x65, rex, opcode, 0x04 | ((number & 7) << 3), 0x25, d[0], d[1], d[2], d[3]]
    };
    match step {
        Step::Inc => absolute(0xff, 0),
        Step::Load(r) => absolute(0x8b, r.number()),
        Step::Store(r) => absolute(0x89, r.number()),
        Step::Add(r) => vec![0x48 | ((r.number() >> 3) * 5), 0x8d, 0x40 | ((r.number() & 7) * 9), 1],
    }
}

/// Returns whether a decoded instruction is a step on a counter or a watch at one of `offsets`, and changes
/// no live register or flag.
pub(crate) fn is_unnoticed(got: &Instruction, live: Live, offsets: impl Fn(u32) -> bool) -> bool {
    let ours = got.memory_segment() == Register::GS
        && got.memory_base() == Register::None
        && got.memory_index() == Register::None
        && u32::try_from(got.memory_displacement64()).is_ok_and(|d| d < 1 << 31 && offsets(d));
    let free = |r: Register| r.is_gpr64() && live.regs() >> r.number() & 1 == 0;
    match got.code() {
        Code::Inc_rm64 => ours && u32::from(live.flags & code::STATUS_FLAGS) & !RflagsBits::CF == 0,
        Code::Mov_r64_rm64 => ours && free(got.op0_register()),
        Code::Mov_rm64_r64 => ours,
        Code::Lea_r64_m => {
            let r = got.op0_register();
            free(r)
                && got.memory_base() == r
                && got.memory_index() == Register::None
                && got.memory_displacement64() == 1
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn steps_decode_to_their_instructions() {
        let text = |step, offset| {
            let bytes = encode(step, offset);
            assert_eq!(bytes.len(), len(step) as usize);
            let got = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            assert_eq!(got.len(), bytes.len());
            got
        };
        for n in [0u8, 1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 15] {
            let (r, name) = (Gpr::new(n).unwrap(), Register::RAX + u32::from(n));
            let load = text(Step::Load(r), 0x1238);
            assert_eq!((load.code(), load.op0_register()), (Code::Mov_r64_rm64, name));
            let store = text(Step::Store(r), 0x1238);
            assert_eq!((store.code(), store.op1_register()), (Code::Mov_rm64_r64, name));
            let add = text(Step::Add(r), 0);
            assert_eq!((add.op0_register(), add.memory_base()), (name, name));
            let free = Live::whole(!(1 << n), u16::MAX);
            let live = Live::whole(1 << n, 0);
            for i in [load, store, add] {
                assert!(is_unnoticed(&i, free, |o| o == 0x1238), "{i}");
                // Storing a register to a watch changes no register and no flag.
                assert_eq!(is_unnoticed(&i, live, |o| o == 0x1238), i == store, "{i}");
            }
            assert!(!is_unnoticed(&load, free, |o| o == 0x1230));
        }
        let inc = text(Step::Inc, 0x7fff_fff8);
        let flags = |bits: u32| Live::whole(u16::MAX, u16::try_from(bits).unwrap());
        assert!(is_unnoticed(&inc, flags(RflagsBits::CF | RflagsBits::DF), |o| o == 0x7fff_fff8));
        assert!(!is_unnoticed(&inc, flags(RflagsBits::ZF), |_| true));
        // A wrong segment, and a wrong kind of address.
        for bytes in [&[0x64, 0x48, 0xff, 0x04, 0x25, 8, 0, 0, 0][..], &[0x65, 0x48, 0xff, 0x00]] {
            let got = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
            assert!(!is_unnoticed(&got, Live::default(), |_| true), "{got}");
        }
    }
}
