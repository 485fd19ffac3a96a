//! What the clones of a round of counting say of themselves, so that they can count again: where they count, and how each
//! function's counts follow from its counters. It lies behind the places that count; the first cache of a round has the
//! functions. Little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4, 4, 4 | offsets of the round: from, the first of what is kept of registers, to |
//! | 4 | how many functions follow |
//! | 8, 8 | of each: its entry, the hash of its graph |
//! | 4, 4 | its first counter's offset, and that of what is kept of registers |
//! | 4 | 1 where all that runs of it is counted, else 0 |
//! | 4, 4 each | how many links of its graph are counted, and which |

use addr::Avma;
use std::ops::Range;

/// Offsets that all rounds of a target may take: the part of a thread is as large. Bytes.
pub(crate) const MOST_OFFSETS: u32 = 16 << 20;

/// How one function counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FunctionPlan {
    /// Of the original.
    pub(crate) entry: Avma,
    /// Of its graph.
    pub(crate) hash: u64,
    /// The offset of its first counter.
    pub(crate) first: u32,
    /// The offset of the first register that is kept.
    pub(crate) watched: u32,
    /// Whether all that runs of it is counted.
    pub(crate) whole: bool,
    /// The counted links of its graph.
    pub(crate) links: Vec<u32>,
}

/// The offsets at which a round counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offsets {
    /// The first counter's.
    pub(crate) from: u32,
    /// The first of what is kept of registers.
    pub(crate) watched: u32,
    /// The end of all.
    pub(crate) to: u32,
}

impl Offsets {
    pub(crate) fn all(self) -> Range<u32> {
        self.from..self.to
    }
}

/// Returns what is kept in a cache of a round.
pub(crate) fn write(offsets: Offsets, plans: &[FunctionPlan]) -> Vec<u8> {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut out = Vec::new();
    for word in [offsets.from, offsets.watched, offsets.to, number(plans.len())] {
        out.extend(word.to_le_bytes());
    }
    for p in plans {
        out.extend(p.entry.0.to_le_bytes());
        out.extend(p.hash.to_le_bytes());
        let head = [p.first, p.watched, u32::from(p.whole), number(p.links.len())];
        out.extend(head.iter().chain(&p.links).flat_map(|w| w.to_le_bytes()));
    }
    out
}

/// Reads it back; `None` for bytes that no whet has written.
pub(crate) fn read(bytes: &[u8]) -> Option<(Offsets, Vec<FunctionPlan>)> {
    let mut rest = bytes;
    let mut word = || {
        let (word, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        Some(u32::from_le_bytes(*word))
    };
    let offsets = Offsets { from: word()?, watched: word()?, to: word()? };
    if offsets.from > offsets.watched || offsets.watched > offsets.to || offsets.to > MOST_OFFSETS {
        return None;
    }
    let mut plans = Vec::new();
    for _ in 0..word()? {
        let mut long = || Some(u64::from(word()?) | u64::from(word()?) << 32);
        let (entry, hash) = (Avma(long()?), long()?);
        let (first, watched, whole) = (word()?, word()?, word()? == 1);
        let mut links = Vec::new();
        for _ in 0..word()? {
            links.push(word()?);
        }
        plans.push(FunctionPlan { entry, hash, first, watched, whole, links });
    }
    rest.is_empty().then_some((offsets, plans))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: Offsets = Offsets { from: 8, watched: 40, to: 56 };

    #[test]
    fn plans_read_back() {
        let plan = |entry, links: &[u32]| FunctionPlan {
            entry: Avma(entry),
            hash: 0x1234_5678_9abc_def0,
            first: 8,
            watched: 40,
            whole: entry == 0x1000,
            links: links.to_vec(),
        };
        let plans = [plan(0x1000, &[3, 1]), plan(0x7000_0000_2000, &[])];
        let bytes = write(OFFSETS, &plans);
        assert_eq!(read(&bytes), Some((OFFSETS, plans.to_vec())));
        assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        assert_eq!(read(&write(OFFSETS, &[])), Some((OFFSETS, vec![])));
        assert_eq!(read(&write(Offsets { from: 48, ..OFFSETS }, &[])), None);
        assert_eq!(read(&write(Offsets { to: u32::MAX, ..OFFSETS }, &[])), None);
    }

    /// The one-second form of the fuzz target: any bytes, no panic.
    #[test]
    fn any_bytes_are_read_or_refused() {
        arbtest::arbtest(|u| {
            let mut bytes = write(OFFSETS, &[]);
            bytes[12] = u.arbitrary()?;
            bytes.extend(u.arbitrary::<Vec<u8>>()?);
            let _ = read(&bytes);
            Ok(())
        })
        .budget_ms(1000);
    }
}
