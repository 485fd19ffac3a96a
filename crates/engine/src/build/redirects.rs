//! Chooses the places of originals that lead to clones, and their new bytes.

use crate::analyse::program::Program;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use code::{Cfg, RedirectSite, RedirectSites, Refusal, SiteForm};
use emit::CloneInfo;
use rustc_hash::FxHashMap;
use splice::{Record, RedirectKind};

/// Bytes of an address, and its alignment.
const WORD: u64 = 8;

/// Returns where a redirect leads. `memory` is that of a process with its code cache.
#[must_use]
pub fn leads_to(r: &Record, memory: &dyn ReadMemory) -> Option<Avma> {
    match r.kind {
        // The last four bytes are a displacement from the next instruction.
        RedirectKind::Entry | RedirectKind::Call => {
            let (before, last) = r.new_bytes().split_last_chunk::<4>()?;
            let to = r.range().end.offset(i64::from(i32::from_le_bytes(*last)));
            match before {
                [emit::JUMP_THROUGH] => memory.u64(to).ok().map(Avma),
                _ => Some(to),
            }
        }
        RedirectKind::Vtable | RedirectKind::Slot => Some(Avma(u64::from_le_bytes(r.new))),
        RedirectKind::Other => None,
    }
}

/// Words of a code cache that redirects jump through.
#[derive(Debug)]
pub struct Words {
    at: Avma,
    bytes: Vec<u8>,
}

impl Words {
    /// Creates an empty list. The first word will lie behind a cache's other data, which ends at `end`.
    #[must_use]
    pub fn behind(end: Avma) -> Self {
        let padding = end.0.next_multiple_of(WORD) - end.0;
        Self { at: end, bytes: vec![0; usize::try_from(padding).unwrap_or(0)] }
    }

    /// Adds a word that holds an address, and returns the word's address.
    fn hold(&mut self, to: Avma) -> Avma {
        let at = self.at.add(self.bytes.len() as u64);
        self.bytes.extend(to.0.to_le_bytes());
        at
    }

    /// Returns the bytes of all words, including the padding before the first.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Returns the redirects of a function to its clone.
///
/// # Errors
/// Returns [`Refusal`] if there is no such place; redirected calls still reach the clone.
pub fn entries(
    cfg: &Cfg,
    sites: &RedirectSites,
    clone: &CloneInfo,
    words: &mut Words,
) -> Result<Vec<Record>, Refusal> {
    let record = |site: &RedirectSite| {
        let inst = cfg.insts.get(site.inst.index())?;
        let mut to = clone.entrance(cfg.insts.get(site.leads_to.index())?.at)?;
        if site.form == SiteForm::IndirectJump {
            to = words.hold(to);
        }
        let new = emit::redirect(site.form, site.range.end, to)?;
        let from = usize::try_from(site.range.start.since(inst.at)?).ok()?;
        let old = inst.bytes.as_slice().get(from..from + new.len())?;
        let len = u8::try_from(new.len()).ok()?;
        let kind = RedirectKind::Entry;
        Some(Record {
            at: site.range.start,
            kind,
            len,
            interior: 0,
            old: word(old),
            new: word(&new),
            mark: None,
        })
    };
    if sites.sites.is_empty() {
        return Err(Refusal::NoRedirectSite);
    }
    let records: Vec<Record> = sites.sites.iter().filter_map(record).collect();
    if records.is_empty() { Err(Refusal::OutOfReach) } else { Ok(records) }
}

/// Returns the direct calls of original code, and its jumps to other functions, that can lead directly to
/// clones. `taken` are bytes of other redirects.
#[must_use]
pub fn calls<'a>(
    callers: impl Iterator<Item = &'a Cfg>,
    clones: &FxHashMap<Avma, Avma>,
    taken: &[AvmaRange],
) -> Vec<Record> {
    let mut records = Vec::new();
    for caller in callers {
        for inst in &caller.insts {
            let Some(&clone) = inst.branches_to().and_then(|to| clones.get(&to)) else { continue };
            let (bytes, end) = (inst.bytes.as_slice(), inst.end());
            let (Some(new), Some(at)) = (emit::branch_displacement(end, clone), bytes.len().checked_sub(4))
            else {
                continue;
            };
            let record = Record {
                at: end.sub(4),
                kind: RedirectKind::Call,
                len: 4,
                interior: 0,
                old: word(&bytes[at..]),
                new: word(&new),
                mark: None,
            };
            let after = taken.partition_point(|t| t.end <= record.at);
            let free = taken.get(after).is_none_or(|t| !t.overlaps(&record.range()));
            if record.in_one_page() && free {
                records.push(record);
            }
        }
    }
    records.sort_by_key(|r| r.at);
    records.dedup_by_key(|r| r.at);
    records
}

/// Returns words that hold the address of a cloned function and are only used for calls: slots of virtual
/// tables, and bound slots of procedure linkage tables.
#[must_use]
pub fn words(program: &Program<'_>, clones: &FxHashMap<Avma, Avma>) -> Vec<Record> {
    let redirect = |kind, at: Avma, function: Avma| {
        let clone = clones.get(&function)?;
        let (old, new) = (function.0.to_le_bytes(), clone.0.to_le_bytes());
        let record = Record { at, kind, len: 8, interior: 0, old, new, mark: None };
        record.in_one_page().then_some(record)
    };
    let in_tables =
        program.vtables().iter().filter_map(|v| redirect(RedirectKind::Vtable, v.slot, v.function));
    let in_slots = program.image().modules().iter().flat_map(|m| &m.slots).filter_map(|s| {
        let holds = program.memory().u64(s.slot).ok()?;
        redirect(RedirectKind::Slot, s.slot, Avma(holds))
    });
    let mut records: Vec<Record> = in_tables.chain(in_slots).collect();
    records.sort_by_key(|r| r.at);
    records.dedup_by_key(|r| r.at);
    records
}

/// Drops records at places that may outlive their destinations. Adds marks to records in modules that may be
/// unloaded. `clones` has the clones' entries by the originals'.
#[must_use]
pub fn lasting(program: &Program<'_>, clones: &FxHashMap<Avma, Avma>, records: Vec<Record>) -> Vec<Record> {
    let originals: FxHashMap<Avma, Avma> =
        clones.iter().map(|(&original, &clone)| (clone, original)).collect();
    let lasts = |r: &Record| {
        let original = leads_to(r, program.memory()).and_then(|to| originals.get(&to).copied());
        // An entry's redirect leads from a function to its own clone, possibly behind the clone's start.
        original.map_or(r.kind == RedirectKind::Entry, |at| program.lasts_for(r.at, at))
    };
    let marked = |r: Record| Record { mark: program.mark_of(r.at), ..r };
    // The marked page itself is never written.
    let beside_mark = |r: &Record| r.mark.is_none_or(|page| r.at.align_down(4096) != page);
    records.into_iter().filter(lasts).map(marked).filter(beside_mark).collect()
}

fn word(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_through_its_word() {
        let mut words = Words::behind(Avma(0x1003));
        let at = [Avma(0x7000), Avma(0x8000)].map(|to| words.hold(to));
        assert_eq!(at, [Avma(0x1008), Avma(0x1010)]);
        let data = words.into_bytes();
        let end = Avma(0x2006);
        let leads = |form, dest| {
            let new = emit::redirect(form, end, dest).unwrap();
            let record = Record {
                at: end.sub(new.len() as u64),
                kind: RedirectKind::Entry,
                len: u8::try_from(new.len()).unwrap(),
                interior: 0,
                old: [0; 8],
                new: word(&new),
                mark: None,
            };
            leads_to(&record, &(Avma(0x1003), &data[..]))
        };
        assert_eq!(leads(SiteForm::IndirectJump, at[1]), Some(Avma(0x8000)));
        assert_eq!(leads(SiteForm::IndirectJump, Avma(0x9000)), None, "no word is there");
        for form in [SiteForm::Jump, SiteForm::WideJump, SiteForm::Displacement] {
            assert_eq!(leads(form, Avma(0x9000)), Some(Avma(0x9000)));
        }
    }
}
