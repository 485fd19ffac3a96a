//! The jitdump: a binary file from which `perf inject --jit` makes one ELF file for each run of code. It
//! holds the names, and the code itself for annotation.
//!
//! Format: `tools/perf/Documentation/jitdump-specification.txt` of Linux, version 1.

use crate::Fragment;

/// A fragment of code, with its bytes and the time of its installation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded<'a> {
    /// Its addresses and its name.
    pub fragment: &'a Fragment,
    /// Its bytes, as many as `fragment.range` has.
    pub code: Vec<u8>,
    /// The time from which samples in its range are its own, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since_ns: u64,
}

const MAGIC: u32 = 0x4a69_5444;
const HEADER: u32 = 40;
/// The size of a `JIT_CODE_LOAD` record without the name and the code. Bytes.
const RECORD: usize = 56;

/// Returns the bytes of the dump of a process. `pid` is its id in its own pid namespace.
#[must_use]
pub fn jitdump(pid: i32, loaded: &[Loaded<'_>]) -> Vec<u8> {
    let pid = pid.to_le_bytes();
    let first = loaded.iter().map(|l| l.since_ns).min().unwrap_or(0);
    let mut out = Vec::new();
    for word in [MAGIC, 1, HEADER, 62, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(pid);
    out.extend(first.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    for (i, l) in loaded.iter().enumerate() {
        let name = l.fragment.symbol();
        let size = RECORD + name.len() + 1 + l.code.len();
        out.extend(0u32.to_le_bytes());
        out.extend(u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(l.since_ns.to_le_bytes());
        out.extend(pid);
        out.extend(pid);
        let at = l.fragment.range.start.0;
        for word in [at, at, l.code.len() as u64, i as u64] {
            out.extend(word.to_le_bytes());
        }
        out.extend(name.bytes());
        out.push(0);
        out.extend(&l.code);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use addr::{Avma, AvmaRange};

    #[test]
    fn records_have_the_sizes_they_say() {
        let fragment =
            |at| Fragment { range: AvmaRange::with_len(Avma(at), 3), part: Part::Hot, name: "f".to_owned() };
        let (a, b) = (fragment(0x1000), fragment(0x2000));
        let loaded = [
            Loaded { fragment: &a, code: vec![0x90; 3], since_ns: 9 },
            Loaded { fragment: &b, code: vec![0xc3; 3], since_ns: 7 },
        ];
        let dump = jitdump(42, &loaded);
        let word = |at: usize| u32::from_le_bytes(dump[at..at + 4].try_into().unwrap());
        assert_eq!((&dump[..4], word(8), word(20), word(24)), (&b"DTiJ"[..], 40, 42, 7));
        let size = 56 + 7 + 3;
        assert_eq!((word(44), word(40 + size + 4), dump.len()), (66, 66, 40 + 2 * size));
        assert_eq!((word(72), word(72 + size)), (0x1000, 0x2000));
        assert_eq!(&dump[40 + 56..40 + size], b"f.whet\0\x90\x90\x90");
    }
}
