//! Rounds of counting of before, to be run again: which clones are there, what they count, and which of them to take.
//!
//! No clone is ever unmapped, so clones that count are kept for good and used again. The first cache of a round has, behind
//! the places that count, how each function's counts follow from its counters. Offsets of rounds never overlap, so any of
//! them can be run in a counter area of its own. Little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4, 4, 4 | offsets of the round: from, the first of what is kept of registers, to |
//! | 4 | how many functions follow |
//! | 8, 8 | of each: its entry, the hash of its graph |
//! | 4, 4 | its first counter's offset, and that of what is kept of registers |
//! | 4 | 1 where all that runs of it is counted, else 0 |
//! | 4, 4 each | how many links of its graph are counted, and which |

use crate::candidates::Candidate;
use crate::originals::Originals;
use crate::{Error, Target, map_store};
use addr::{Avma, AvmaRange};
use rustc_hash::FxHashMap;
use splice::{Cache, State};
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
fn read(bytes: &[u8]) -> Option<(Offsets, Vec<FunctionPlan>)> {
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

/// A round that can be run again.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) offsets: Offsets,
    /// The journals of its caches.
    pub(crate) journals: Vec<Avma>,
    /// How its functions count, by their entries.
    pub(crate) plans: FxHashMap<Avma, FunctionPlan>,
    /// Its clones, each with the entry of its original.
    pub(crate) clones: FxHashMap<Avma, Avma>,
}

impl Round {
    /// Whether a candidate is the function that the round has a clone of.
    pub(crate) fn has(&self, c: &Candidate) -> bool {
        let plan = self.plans.get(&c.analysed.cfg.entry);
        plan.is_some_and(|p| p.hash == profile::hash(&c.analysed.cfg))
    }

    /// How much of some candidates it has, and how much there is: samples, and one each.
    pub(crate) fn weigh(&self, todo: &[Candidate]) -> (u64, u64) {
        let weight = |c: &Candidate| c.samples + 1;
        let held = todo.iter().filter(|c| self.has(c)).map(weight).sum();
        (held, todo.iter().map(weight).sum())
    }

    /// Whether its clones still stand for what their originals are, all of which are there, and nothing that leads unwinders is among their redirects.
    ///
    /// # Errors
    /// Where the target cannot be read.
    pub(crate) fn is_usable(&self, target: &Target) -> Result<bool, Error> {
        let Some(installed) = &target.installed else { return Ok(false) };
        let caches: Vec<&Cache> =
            installed.caches.iter().filter(|c| self.journals.contains(&c.header.data.start)).collect();
        let led: Vec<AvmaRange> = installed.anchor.led().iter().map(splice::Record::range).collect();
        let is_led = |r: &splice::Record| led.iter().any(|l| l.overlaps(&r.range()));
        if caches.iter().any(|c| c.has_gone || c.records.iter().any(is_led)) {
            return Ok(false);
        }
        Ok(Originals::of_caches(target, caches.into_iter(), None).changed(target)?.is_empty())
    }
}

/// Reads the rounds of a target that can be run again, and the offset from which a new one may count.
pub(crate) fn rounds(target: &Target) -> (Vec<Round>, u32) {
    let mut rounds: Vec<(Round, u32)> = Vec::new();
    let mut free = 0;
    let caches = target.installed.iter().flat_map(|i| &i.caches);
    for cache in caches.filter(|c| c.header.counting && c.header.state == State::Undone) {
        let Ok(Some(sites)) = cache.counter_sites(&target.process) else { continue };
        let Some((offsets, plans)) = read(&sites.added) else { continue };
        free = free.max(offsets.to);
        let maps = map_store::read(&cache.map(&target.process).unwrap_or_default());
        let clones = maps.iter().map(|(entry, map)| (map.fragments().start(), *entry));
        if !rounds.iter().any(|(r, _)| r.offsets == offsets) {
            let (journals, plans, clones) = (Vec::new(), FxHashMap::default(), FxHashMap::default());
            rounds.push((Round { offsets, journals, plans, clones }, cache.header.caches));
        }
        if let Some((round, _)) = rounds.iter_mut().find(|(r, _)| r.offsets == offsets) {
            round.journals.push(cache.header.data.start);
            round.plans.extend(plans.into_iter().map(|p| (p.entry, p)));
            round.clones.extend(clones);
        }
    }
    // One that whet died over may not be there whole.
    rounds.retain(|(r, caches)| r.journals.len() == *caches as usize);
    let whole = rounds.into_iter().map(|(mut r, _)| {
        let Round { plans, clones, .. } = &mut r;
        plans.retain(|entry, _| clones.values().any(|original| original == entry));
        r
    });
    (whole.collect(), free)
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
