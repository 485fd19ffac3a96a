//! Bytes of the places that send control to a clone.

use crate::reach::rel32;
use addr::{Addr, Avma};
use code::SiteForm;

/// Bytes of a `jmp rel32`.
pub const JUMP_LEN: usize = 5;
/// Bytes of a `call rel32` without prefixes.
pub const CALL_LEN: usize = 5;

/// A `jmp rel32` to lie at `at` and to go to `dest`; `None` beyond ±2 GiB.
#[must_use]
pub fn jump(at: Avma, dest: Avma) -> Option<[u8; JUMP_LEN]> {
    let [a, b, c, d] = rel32(at.add(JUMP_LEN as u64), dest)?;
    Some([0xe9, a, b, c, d])
}

/// The bytes of a redirect that end at `end` and lead to `dest`: see [`code::SiteForm`]; `None` beyond ±2 GiB.
#[must_use]
pub fn redirect(form: SiteForm, end: Avma, dest: Avma) -> Option<Vec<u8>> {
    match form {
        SiteForm::Jump => Some(jump(end.sub(JUMP_LEN as u64), dest)?.to_vec()),
        SiteForm::Displacement => Some(branch_displacement(end, dest)?.to_vec()),
    }
}

/// The last four bytes of a direct `call`, `jmp` or `jcc` with a 32-bit displacement that ends at `end` and goes to
/// `dest`; `None` beyond ±2 GiB. Taken from the end, it does not matter which prefixes the instruction has.
#[must_use]
pub fn branch_displacement(end: Avma, dest: Avma) -> Option<[u8; 4]> {
    rel32(end, dest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    #[test]
    fn a_jump_decodes_to_its_destination() {
        for (at, dest) in [(0x1000, 0x1005), (0x5000, 0x1000), (0x7fff_0000_0000, 0x7ffe_9000_0000)] {
            let bytes = jump(Avma(at), Avma(dest)).unwrap();
            let i = Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE).decode();
            assert_eq!((i.mnemonic(), i.near_branch_target(), i.len()), (Mnemonic::Jmp, dest, JUMP_LEN));
        }
    }

    /// A REX prefix before the jump changes nothing.
    #[test]
    fn a_redirect_keeps_the_first_byte() {
        let (at, dest) = (Avma(0x5000), Avma(0x9000));
        for rex in 0x40..=0x4f {
            // lea rax, [rip]: the prefix stays.
            let mut bytes = [rex, 0x8d, 0x05, 0, 0, 0, 0];
            bytes[1..6].copy_from_slice(&redirect(SiteForm::Jump, at.add(6), dest).unwrap());
            let i = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode();
            assert_eq!((i.mnemonic(), i.near_branch_target(), i.len()), (Mnemonic::Jmp, dest.0, 6));
        }
        let mut bytes = [0x0f, 0x84, 0, 0, 0, 0];
        bytes[2..].copy_from_slice(&redirect(SiteForm::Displacement, at.add(6), dest).unwrap());
        let i = Decoder::with_ip(64, &bytes, at.0, DecoderOptions::NONE).decode();
        assert_eq!((i.mnemonic(), i.near_branch_target()), (Mnemonic::Je, dest.0));
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
