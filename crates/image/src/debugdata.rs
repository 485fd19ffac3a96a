//! `.gnu_debugdata`: the compressed symbol table of a stripped file (the "MiniDebugInfo" of Fedora and
//! related distributions).
//!
//! The decoder is `lzma-rust2`, built without its `optimization` feature, so it contains no unsafe code.

use crate::Error;
use lzma_rust2::XzReader;
use std::io::Read;

/// The most bytes that are unpacked: several times the symbol table of the largest browsers.
const MAX_UNPACKED: usize = 256 << 20;

/// The most memory that the decoder may take, in KiB. `xz -9` needs 65 MiB.
const MAX_MEMORY: u32 = 80 << 10;

/// Unpacks an .xz stream.
///
/// # Errors
/// Returns [`Error::BadDebugData`] unless the input is one sound stream within the limits of size and memory.
pub(crate) fn unpack(xz: &[u8]) -> Result<Vec<u8>, Error> {
    unpack_at_most(xz, MAX_UNPACKED)
}

fn unpack_at_most(xz: &[u8], limit: usize) -> Result<Vec<u8>, Error> {
    let bad = |what| Error::BadDebugData { what };
    let mut out = Vec::new();
    // The reader checks the end of the stream, with its list of blocks, at a read behind the last byte.
    let mut reader = XzReader::new_mem_limit(xz, false, MAX_MEMORY).take(limit as u64 + 1);
    reader.read_to_end(&mut out).map_err(|e| bad(e.to_string()))?;
    if out.len() > limit { Err(bad(format!("it unpacks to more than {limit} bytes"))) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn xz(data: &[u8], args: &[&str]) -> Vec<u8> {
        let mut child = Command::new("xz")
            .args(args)
            .arg("-c")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|s| {
            s.spawn(move || stdin.write_all(data).unwrap());
            child.wait_with_output().unwrap().stdout
        })
    }

    fn sample() -> Vec<u8> {
        // The text is compressible, the bytes after it are not, so the stream has both kinds of chunk.
        let mut v: Vec<u8> =
            (0..40_000u32).flat_map(|i| format!("symbol_{} ", i % 977).into_bytes()).collect();
        let mut rng = testkit::Rng(1);
        v.extend((0..200_000).map(|_| u8::try_from(rng.below(256)).unwrap()));
        v
    }

    #[test]
    fn output_of_xz_is_unpacked() {
        let data = sample();
        for args in [
            &["-6"][..],
            &["-0", "-C", "crc32"],
            &["-C", "none"],
            &["-C", "sha256"],
            &["--block-size=65536"],
            &["-9", "--x86", "--lzma2=preset=9"],
        ] {
            assert!(unpack(&xz(&data, args)).unwrap() == data, "{args:?}");
        }
        assert!(unpack(&xz(b"", &[])).unwrap().is_empty());
    }

    #[test]
    fn a_block_header_is_no_empty_index() {
        let mut packed = xz(&sample(), &[]);
        packed[12] = 0;
        assert!(unpack(&packed).is_err());
    }

    #[test]
    fn a_bomb_is_not_unpacked() {
        let bomb = xz(&vec![0; 8 << 20], &[]);
        assert!(bomb.len() < 10_000);
        assert!(matches!(unpack_at_most(&bomb, 1 << 20), Err(Error::BadDebugData { .. })));
    }

    #[test]
    fn no_decoder_memory_beyond_the_limit() {
        // The properties of LZMA2: a dictionary of 4 GiB - 1 byte, and the checksum of the header with it.
        let mut packed = xz(&sample(), &["-C", "none"]);
        assert_eq!(packed[12..17], [2, 0, 0x21, 1, 22]);
        packed[16] = 40;
        packed[20..24].copy_from_slice(&0xb311_a0e6u32.to_le_bytes());
        let error = unpack(&packed).unwrap_err().to_string();
        assert!(error.contains("mem_limit_kb"), "{error}");
    }

    #[test]
    fn a_hidden_chunk_is_rejected() {
        // The outer chunk states 1 unpacked byte, and a decoder can produce this byte (0) from the chunk's
        // first six bytes. The rest of its bytes hide another chunk, of 1000 bytes.
        let hidden = [&[1u8, 0x03, 0xe7][..], &[b'x'; 1000], &[0]].concat();
        let packed = u16::try_from(6 + hidden.len() - 1).unwrap().to_be_bytes();
        let stream = [&[0xe0, 0, 0, packed[0], packed[1], 0x5d][..], &[0; 6], &hidden, &[0]].concat();
        let mut out = Vec::new();
        assert!(lzma_rust2::Lzma2Reader::new(&stream[..], 1 << 16, None).read_to_end(&mut out).is_err());
        assert!(out.len() <= 1);
    }

    #[test]
    fn a_changed_byte_is_found_and_nothing_grows() {
        let data: Vec<u8> = sample()[..20_000].to_vec();
        let packed = xz(&data, &[]);
        arbtest::arbtest(|u| {
            let mut p = packed.clone();
            for _ in 0..u.int_in_range(1..=3)? {
                let i = u.choose_index(p.len())?;
                p[i] ^= u.int_in_range(1..=255u8)?;
            }
            if let Ok(got) = unpack_at_most(&p, 1 << 20) {
                assert!(got == data);
            }
            let any: Vec<u8> = u.arbitrary()?;
            let _ = unpack_at_most(&any, 1 << 16);
            // The same without the checksums in front, which hide the decoder from most changes.
            let mut out = Vec::new();
            let reader = lzma_rust2::Lzma2Reader::new(&p[24..], 1 << 20, None);
            let _ = reader.take(1 << 20).read_to_end(&mut out);
            Ok(())
        })
        .budget_ms(1000);
    }
}
