//! Slots that a process has not bound yet.
//!
//! The build of a family is made from the memory of its parent. A member that was forked before the parent
//! bound a slot of a procedure linkage table still holds the address of the stub there. A journal lists two
//! values of a slot: the original's entry and the clone's. With a third value, undo would never be complete.

use crate::Target;
use addr::{Avma, AvmaRange};
use splice::{CachePlan, Record, RedirectKind};
use std::collections::BTreeSet;

/// Removes the redirects of slots that a process has not bound yet. Once it binds such a slot, the slot leads
/// to the original. A slot of a library that has been unloaded since its analysis is not bound either. Slots in
/// the process's journal stay: they may hold the redirect of an earlier generation.
pub(crate) fn remove(target: &Target, caches: &mut [CachePlan]) {
    let known = target.installed.iter().flat_map(|i| &i.caches).flat_map(|c| &c.records);
    let known: BTreeSet<Avma> = known.map(|r| r.at).collect();
    let slots = caches.iter().flat_map(|c| &c.records).filter(|r| r.kind == RedirectKind::Slot);
    let slots: Vec<Record> = slots.filter(|r| !known.contains(&r.at)).copied().collect();
    let ranges: Vec<AvmaRange> = slots.iter().map(Record::range).collect();
    let found = target.process.read_each(&ranges);
    let unbound = unbound(&slots, &found);
    caches.iter_mut().for_each(|c| c.records.retain(|r| !unbound.contains(&r.at)));
}

/// Returns the slots that do not lead to the original's entry. `found` is what each holds now, or `None` if it
/// is no longer mapped.
fn unbound(slots: &[Record], found: &[Option<Vec<u8>>]) -> BTreeSet<Avma> {
    let is_bound = |slot: &Record, now: &Option<Vec<u8>>| now.as_deref() == Some(slot.old_bytes());
    slots.iter().zip(found).filter(|(slot, now)| !is_bound(slot, now)).map(|(slot, _)| slot.at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_leads_elsewhere_or_is_unmapped_is_unbound() {
        let (entry, stub): ([u8; 8], [u8; 8]) = (0x40_1000_u64.to_le_bytes(), 0x40_1026_u64.to_le_bytes());
        let slot = |at| Record {
            at: Avma(at),
            kind: RedirectKind::Slot,
            len: 8,
            interior: 0,
            old: entry,
            new: 0x7000_u64.to_le_bytes(),
            mark: None,
        };
        let found = [Some(entry.to_vec()), Some(stub.to_vec()), None];
        let expected = BTreeSet::from([Avma(0x5008), Avma(0x5010)]);
        assert_eq!(unbound(&[slot(0x5000), slot(0x5008), slot(0x5010)], &found), expected);
    }
}
