//! Encodes redirects.

use crate::reach::rel32;
use addr::{Addr, Avma};
use code::SiteForm;

/// Size of a `jmp rel32`. Bytes.
pub const JUMP_LEN: usize = 5;
/// A REX prefix that makes the operand size 64 bits.
const REX_W: u8 = 0x48;
/// The second byte, behind the opcode ff, of a jump through a word; the word's displacement follows.
pub const JUMP_THROUGH: u8 = 0x25;
/// Size of a `call rel32` without prefixes. Bytes.
pub const CALL_LEN: usize = 5;

/// Returns a `jmp rel32` at `at` to `dest`; `None` beyond ±2 GiB.
#[must_use]
pub fn jump(at: Avma, dest: Avma) -> Option<[u8; JUMP_LEN]> {
    let [a, b, c, d] = rel32(at.add(JUMP_LEN as u64), dest)?;
    Some([0xe9, a, b, c, d])
}

/// Returns the bytes of a redirect that ends at `end` and leads to `dest`; for [`SiteForm::IndirectJump`],
/// `dest` is the word that is jumped through. Returns `None` beyond ±2 GiB.
#[must_use]
pub fn redirect(form: SiteForm, end: Avma, dest: Avma) -> Option<Vec<u8>> {
    let jump = || jump(end.sub(JUMP_LEN as u64), dest);
    match form {
        SiteForm::Jump => Some(jump()?.to_vec()),
        SiteForm::WideJump => Some([&[REX_W][..], &jump()?].concat()),
        SiteForm::IndirectJump => Some([&[JUMP_THROUGH][..], &branch_displacement(end, dest)?].concat()),
        SiteForm::Displacement => Some(branch_displacement(end, dest)?.to_vec()),
    }
}

/// Returns the last four bytes of a direct `call`, `jmp` or `jcc` with a 32-bit displacement that ends at
/// `end` and goes to `dest`; `None` beyond ±2 GiB. Only the end counts, so the instruction may have any
/// prefixes.
#[must_use]
pub fn branch_displacement(end: Avma, dest: Avma) -> Option<[u8; 4]> {
    rel32(end, dest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    #[test]
    fn a_jump_decodes_to_its_destination() {
        for (at, dest) in [(0x1000, 0x1005), (0x5000, 0x1000), (0x7fff_0000_0000, 0x7ffe_9000_0000)] {
            let bytes = jump(Avma(at), Avma(dest)).unwrap();
            let i = Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE).decode();
            assert_eq!((i.mnemonic(), i.near_branch_target(), i.len()), (Mnemonic::Jmp, dest, JUMP_LEN));
        }
    }

    /// Asserts that processors of each maker decode this redirect as a jump to, or through, `dest`.
    fn leads(bytes: &[u8], at: Avma, form: SiteForm, dest: Avma) {
        for options in [DecoderOptions::NONE, DecoderOptions::AMD] {
            let i = Decoder::with_ip(64, bytes, at.0, options).decode();
            let (kind, target) = match form {
                SiteForm::IndirectJump => (OpKind::Memory, i.ip_rel_memory_address()),
                _ => (OpKind::NearBranch64, i.near_branch_target()),
            };
            let len = usize::try_from(form.changed_bytes()).unwrap() + 1;
            assert_eq!((i.mnemonic(), i.len(), i.op0_kind()), (Mnemonic::Jmp, len, kind), "{bytes:02x?}");
            assert_eq!(
                (target, i.segment_prefix() == Register::FS),
                (dest.0, bytes[0] == 0x64),
                "{bytes:02x?}"
            );
        }
    }

    /// No first byte changes the effect of the jump behind it.
    #[test]
    fn a_redirect_keeps_the_first_byte() {
        let (at, dest) = (Avma(0x5000), Avma(0x9000));
        let mut firsts = 0;
        for (first, form) in (0..=u8::MAX).filter_map(|b| Some((b, SiteForm::behind(b)?))) {
            firsts += 1;
            let len = usize::try_from(form.changed_bytes()).unwrap() + 1;
            let mut bytes = vec![first; 15];
            bytes[1..len].copy_from_slice(&redirect(form, at.add(len as u64), dest).unwrap());
            leads(&bytes, at, form, dest);
        }
        assert_eq!(firsts, 20);
        let mut bytes = [0x0f, 0x84, 0, 0, 0, 0];
        bytes[2..].copy_from_slice(&redirect(SiteForm::Displacement, at.add(6), dest).unwrap());
        let i = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode();
        assert_eq!((i.mnemonic(), i.near_branch_target()), (Mnemonic::Je, dest.0));
    }

    /// A redirect in any instruction keeps its first byte and the bytes behind it, and is a jump on each
    /// maker's processors.
    #[test]
    fn a_redirect_in_any_instruction_is_a_jump() {
        let any = proptest::array::uniform15(proptest::num::u8::ANY);
        let first = proptest::sample::select(vec![0x41u8, 0x48, 0x64, 0x66, 0xf2, 0xf3, 0xff, 0xe8]);
        let (at, mut jumps) = (Avma(0x5000), 0);
        let mut runner = TestRunner::deterministic();
        for _ in 0..4000 {
            let mut draw = || (any.new_tree(&mut runner), first.new_tree(&mut runner));
            let (Ok(any), Ok(first)) = draw() else { panic!("nothing is filtered") };
            let (mut bytes, dest) = (any.current(), Avma(0x9000));
            bytes[0] = first.current();
            let before = bytes;
            let original = Decoder::with_ip(64, &before, at.0, DecoderOptions::NONE).decode();
            let form = SiteForm::behind(before[0]).filter(|_| !original.is_invalid());
            let Some(form) = form else { continue };
            let end = 1 + usize::try_from(form.changed_bytes()).unwrap();
            if end > original.len() {
                continue;
            }
            bytes[1..end].copy_from_slice(&redirect(form, at.add(end as u64), dest).unwrap());
            leads(&bytes, at, form, dest);
            jumps += 1;
        }
        assert!(jumps > 100, "{jumps}");
    }

    #[test]
    fn the_last_reachable_byte() {
        let end = 0x1_0000_0005u64;
        let at = Avma(0x1_0000_0000);
        assert_eq!(jump(at, Avma(end + 0x7fff_ffff)).unwrap()[1..], [0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(jump(at, Avma(end + 0x8000_0000)), None);
        assert_eq!(jump(at, Avma(end - 0x8000_0000)).unwrap()[1..], [0, 0, 0, 0x80]);
        assert_eq!(jump(at, Avma(end - 0x8000_0001)), None);
    }

    #[test]
    fn a_call_with_prefixes_is_patched_at_its_end() {
        let mut bytes = [0x66, 0x66, 0x48, 0xe8, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&branch_displacement(Avma(0x4008), Avma(0x1234)).unwrap());
        let i = Decoder::with_ip(64, &bytes, 0x4000, DecoderOptions::NONE).decode();
        assert_eq!((i.mnemonic(), i.near_branch_target()), (Mnemonic::Call, 0x1234));
    }
}
