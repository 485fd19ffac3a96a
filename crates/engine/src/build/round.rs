//! The data of a counting round, stored in its caches so that its clones can count again. It says where the
//! clones count, and how each function's counts follow from its counters. The data follow the list of
//! counting instructions. The first cache of a round has the functions. Little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4, 4, 4 | offsets of the round: first counter, first recorded register, end |
//! | 4 | how many functions follow |
//! | 8, 8 | for each function: its entry, the hash of its graph |
//! | 4, 4 | the offsets of its first counter and of its first recorded register |
//! | 4 | 1 if the counters cover all of its executions, else 0 |
//! | 4, 4 each | how many links of its graph are counted, and which |

use addr::Avma;
use std::ops::Range;

/// The offsets that all rounds of a target together may use; each thread's area has this size. Bytes.
pub(crate) const MOST_OFFSETS: u32 = 16 << 20;

/// How one function is counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FunctionPlan {
    /// Entry of the original.
    pub(crate) entry: Avma,
    /// Hash of its graph.
    pub(crate) hash: u64,
    /// The offset of its first counter.
    pub(crate) first: u32,
    /// The offset of its first recorded register.
    pub(crate) watched: u32,
    /// True if the counters cover all of its executions.
    pub(crate) whole: bool,
    /// The counted links of its graph.
    pub(crate) links: Vec<u32>,
}

/// The counter offsets of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offsets {
    /// Offset of the first counter.
    pub(crate) from: u32,
    /// Offset of the first recorded register.
    pub(crate) watched: u32,
    /// End of all offsets.
    pub(crate) to: u32,
}

impl Offsets {
    pub(crate) fn all(self) -> Range<u32> {
        self.from..self.to
    }
}

/// Returns the bytes that a cache of a round stores.
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

/// Reads the stored bytes; `None` for bytes that no whet has written.
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
        if [first, watched].iter().any(|offset| !(offsets.from..=offsets.to).contains(offset)) {
            return None;
        }
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
        for (first, watched) in [(0, 40), (8, u32::MAX - 3)] {
            let outside = FunctionPlan { first, watched, ..plan(0x1000, &[]) };
            assert_eq!(read(&write(OFFSETS, &[outside])), None, "{first} {watched}");
        }
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
