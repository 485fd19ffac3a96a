//! Padding that is executed.

/// The recommended nops by length (Intel SDM volume 2, NOP, table 4-12).
const NOPS: [&[u8]; 9] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// Returns the nops that fill `len` bytes, one slice per instruction.
pub(crate) fn fill(mut len: usize) -> impl Iterator<Item = &'static [u8]> {
    std::iter::from_fn(move || {
        let n = NOPS[len.min(NOPS.len()).checked_sub(1)?];
        len -= n.len();
        Some(n)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    #[test]
    fn every_length_is_filled_with_nops() {
        for len in 0..64 {
            let parts: Vec<_> = fill(len).collect();
            assert_eq!(parts.iter().map(|p| p.len()).sum::<usize>(), len);
            for p in parts {
                let i = Decoder::new(64, p, DecoderOptions::NONE).decode();
                assert_eq!((i.mnemonic(), i.len()), (Mnemonic::Nop, p.len()));
            }
        }
    }
}
