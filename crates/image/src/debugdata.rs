//! `.gnu_debugdata`: the compressed symbol table of a stripped file (the "MiniDebugInfo" of Fedora and
//! related distributions).
//!
//! This module parses the container (.xz file format 1.2) itself and passes only the LZMA2 data to the
//! decoder. So the size of the output is known, and checked, before anything is unpacked, and all arithmetic
//! on numbers of the container is checked.

use crate::Error;
use crate::bytes::{array, u32_at, u64_at};
use std::io::{self, BufRead, Read};

/// The most bytes that are unpacked: several times the symbol table of the largest browsers.
const MAX_UNPACKED: usize = 256 << 20;

/// Unpacks an .xz stream.
///
/// # Errors
/// Returns [`Error::BadDebugData`] for anything but a sound single stream of plain LZMA2 blocks within the
/// size limit.
pub(crate) fn unpack(xz: &[u8]) -> Result<Vec<u8>, Error> {
    unpack_at_most(xz, MAX_UNPACKED)
}

fn bad(what: impl Into<String>) -> Error {
    Error::BadDebugData { what: what.into() }
}

fn unpack_at_most(xz: &[u8], limit: usize) -> Result<Vec<u8>, Error> {
    let cut = || bad("cut off");
    let Some([0xfd, b'7', b'z', b'X', b'Z', 0, 0, check]) = array(xz, 0) else {
        return Err(bad("no .xz stream"));
    };
    if Some(crc32(xz.get(6..8).ok_or_else(cut)?)) != u32_at(xz, 8) {
        return Err(bad("a damaged stream header"));
    }
    let mut out = Vec::new();
    let mut sizes: Vec<u64> = Vec::new();
    let mut at = 12;
    loop {
        let size = *xz.get(at).ok_or_else(cut)?;
        if size == 0 {
            let index = xz.get(at..).ok_or_else(cut)?;
            return if index_fits(index, &sizes) { Ok(out) } else { Err(bad("an index that does not fit")) };
        }
        let header_len = (usize::from(size) + 1) * 4;
        let header = xz.get(at..at + header_len).ok_or_else(cut)?;
        let (fields, sum) = header.split_at(header_len - 4);
        if Some(crc32(fields)) != u32_at(sum, 0) {
            return Err(bad("a damaged block header"));
        }
        if !plain_lzma2(fields) {
            return Err(bad("a filter other than LZMA2"));
        }
        at += header_len;
        let data = xz.get(at..).ok_or_else(cut)?;
        let plan = Plan::of(data).ok_or_else(cut)?;
        if plan.unpacked > limit.saturating_sub(out.len()) {
            return Err(bad(format!("it unpacks to more than {limit} bytes")));
        }
        let from = out.len();
        let mut chunks = Chunks { data: data.get(..plan.packed).ok_or_else(cut)?, at: 0, plan: &plan };
        lzma_rs::lzma2_decompress(&mut chunks, &mut out).map_err(|e| bad(e.to_string()))?;
        let block = out.get(from..).unwrap_or(&[]);
        if block.len() != plan.unpacked {
            return Err(bad("a chunk of another size than stated"));
        }
        sizes.push(block.len() as u64);
        at = (at + plan.packed).next_multiple_of(4);
        at += verify(check, block, xz.get(at..).ok_or_else(cut)?)?;
    }
}

/// Returns whether a block header (without its checksum) names LZMA2 as its only filter.
fn plain_lzma2(header: &[u8]) -> bool {
    let Some(&flags) = header.get(1) else { return false };
    // Bits 0 and 1: the number of filters minus one. Bits 6 and 7: the sizes are present. The rest is
    // reserved.
    if flags & 0x3f != 0 {
        return false;
    }
    let mut rest = header.get(2..).unwrap_or(&[]);
    for bit in [0x40, 0x80] {
        if flags & bit != 0 {
            // A number with seven bits in each byte. Its value is not needed.
            let Some(n) = rest.iter().position(|b| b & 0x80 == 0) else { return false };
            rest = rest.get(n + 1..).unwrap_or(&[]);
        }
    }
    matches!(rest, [0x21, 1, _, ..])
}

/// Returns whether the index lists blocks of these unpacked sizes and is undamaged. Without this check, a
/// damaged block header could be taken for the index of an empty stream.
fn index_fits(index: &[u8], sizes: &[u64]) -> bool {
    let mut at = 1;
    let mut number = || {
        let mut n = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = *index.get(at)?;
            at += 1;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    };
    // Each entry has the packed size, which the chunk headers have given already, and the unpacked size.
    let listed = number() == Some(sizes.len() as u64)
        && sizes.iter().all(|size| number().is_some() && number() == Some(*size));
    let end = at.next_multiple_of(4);
    listed && index.get(..end).is_some_and(|i| u32_at(index, end) == Some(crc32(i)))
}

/// Compares a block's checksum and returns the checksum's size in bytes.
fn verify(check: u8, block: &[u8], sum: &[u8]) -> Result<usize, Error> {
    let (sound, len) = match check {
        0 => (true, 0),
        1 => (u32_at(sum, 0) == Some(crc32(block)), 4),
        4 => (u64_at(sum, 0) == Some(crc64(block)), 8),
        // SHA-256 is not compared: the chunk sizes have been checked, each symbol is checked later, and
        // nothing else depends on the block.
        10 => (sum.len() >= 32, 32),
        other => return Err(bad(format!("unknown checksum type {other}"))),
    };
    if sound { Ok(len) } else { Err(bad("the checksum differs")) }
}

fn crc32(b: &[u8]) -> u32 {
    let table = crc_table(0xedb8_8320);
    let crc = b.iter().fold(0xffff_ffff_u64, |c, &x| table[usize::from((c & 0xff) as u8 ^ x)] ^ c >> 8);
    !u32::try_from(crc).unwrap_or(0)
}

fn crc64(b: &[u8]) -> u64 {
    let table = crc_table(0xc96c_5795_d787_0f42);
    !b.iter().fold(u64::MAX, |c, &x| table[usize::from((c & 0xff) as u8 ^ x)] ^ c >> 8)
}

/// Returns the table of a reflected CRC of up to 64 bits.
fn crc_table(poly: u64) -> [u64; 256] {
    let mut table = [0; 256];
    for (entry, i) in table.iter_mut().zip(0u64..) {
        *entry = (0..8).fold(i, |c, _| if c & 1 != 0 { poly ^ c >> 1 } else { c >> 1 });
    }
    table
}

/// Facts from the chunk headers of an LZMA2 stream.
struct Plan {
    /// The compressed size with all headers. Bytes.
    packed: usize,
    /// The sum of the chunks' unpacked sizes. Bytes.
    unpacked: usize,
    /// The offsets at which a decoder that follows the headers reads more than one byte at once, rising.
    wide_reads: Vec<usize>,
}

impl Plan {
    fn of(data: &[u8]) -> Option<Plan> {
        let be16 = |at| Some(usize::from(u16::from_be_bytes(array(data, at)?)));
        let mut p = Plan { packed: 0, unpacked: 0, wide_reads: Vec::new() };
        loop {
            let control = *data.get(p.packed)?;
            let at = p.packed + 1;
            match control {
                0 => {
                    p.packed = at;
                    return Some(p);
                }
                1 | 2 => {
                    let size = be16(at)? + 1;
                    p.wide_reads.extend([at, at + 2]);
                    p.unpacked = p.unpacked.checked_add(size)?;
                    p.packed = at + 2 + size;
                }
                0x80.. => {
                    let unpacked = (usize::from(control & 0x1f) << 16) + be16(at)? + 1;
                    let packed = be16(at + 2)? + 1;
                    // New properties take one more byte.
                    let body = at + 4 + usize::from(control & 0x40 != 0);
                    p.wide_reads.extend([at, at + 2, body + 1]);
                    p.unpacked = p.unpacked.checked_add(unpacked)?;
                    p.packed = body + packed;
                }
                _ => return None,
            }
            data.get(..p.packed)?;
        }
    }
}

/// The compressed bytes, with a check of each read. After a damaged chunk, the decoder can be in the middle
/// of the chunk's bytes. It would take the next byte for a chunk header, with a size that was not checked.
/// Only a header's sizes and the four bytes that start a chunk's range coder are read several bytes at once.
/// So such a read at any other offset is an error.
struct Chunks<'a> {
    data: &'a [u8],
    at: usize,
    plan: &'a Plan,
}

impl Read for Chunks<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.len() > 1 && self.plan.wide_reads.binary_search(&self.at).is_err() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a chunk ends early"));
        }
        let n = self.data.get(self.at..).unwrap_or(&[]).read(buf)?;
        self.at += n;
        Ok(n)
    }
}

impl BufRead for Chunks<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.data.get(self.at..).unwrap_or(&[]))
    }

    fn consume(&mut self, n: usize) {
        self.at = self.at.saturating_add(n).min(self.data.len());
    }
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
        let mut x = 1u64;
        for _ in 0..200_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            v.push((x >> 56) as u8);
        }
        v
    }

    #[test]
    fn output_of_xz_is_unpacked() {
        let data = sample();
        for args in
            [&["-6"][..], &["-0", "-C", "crc32"], &["-C", "none"], &["-C", "sha256"], &["--block-size=65536"]]
        {
            assert!(unpack(&xz(&data, args)).unwrap() == data, "{args:?}");
        }
        assert!(unpack(&xz(&data, &["--x86", "--lzma2"])).is_err());
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
    fn a_hidden_chunk_is_rejected() {
        // The outer chunk states 1 unpacked byte, and the decoder produces this byte (0) from the chunk's
        // first six bytes. The rest of its bytes hide another chunk, of 1000 bytes.
        let hidden = [&[1u8, 0x03, 0xe7][..], &[b'x'; 1000], &[0]].concat();
        let packed = u16::try_from(6 + hidden.len() - 1).unwrap().to_be_bytes();
        let stream = [&[0xe0, 0, 0, packed[0], packed[1], 0x5d][..], &[0; 6], &hidden, &[0]].concat();
        let plan = Plan::of(&stream).unwrap();
        assert_eq!((plan.unpacked, plan.packed), (1, stream.len()));
        let mut out = Vec::new();
        lzma_rs::lzma2_decompress(&mut &stream[..], &mut out).unwrap();
        assert_eq!(out.len(), 1001, "what the decoder alone makes of it");
        let mut out = Vec::new();
        let mut chunks = Chunks { data: &stream, at: 0, plan: &plan };
        assert!(lzma_rs::lzma2_decompress(&mut chunks, &mut out).is_err());
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
                // Only the footer, which is not read, may differ.
                assert!(got == data);
            }
            let any: Vec<u8> = u.arbitrary()?;
            let _ = unpack_at_most(&any, 1 << 16);
            // Raw LZMA2 without a checksum: the output is not much longer than the headers state.
            if let Some(plan) = Plan::of(&p[24..]).filter(|p| p.unpacked < 1 << 22) {
                let mut out = Vec::new();
                let mut chunks = Chunks { data: &p[24..24 + plan.packed], at: 0, plan: &plan };
                let _ = lzma_rs::lzma2_decompress(&mut chunks, &mut out);
                assert!(out.len() <= plan.unpacked + 300);
            }
            Ok(())
        })
        .budget_ms(1000);
    }
}
