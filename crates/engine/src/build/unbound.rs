//! Slots that a process has not bound yet.
//!
//! The build of a family is made from the memory of its parent. A member that was forked before the parent
//! bound a slot of a procedure linkage table still holds the address of the stub there. A journal lists two
//! values of a slot: the original's entry and the clone's. With a third value, undo would never be complete.

use crate::{Error, Target};
use addr::{Avma, AvmaRange};
use splice::{CachePlan, Record, RedirectKind};
use std::collections::BTreeSet;

/// Removes the redirects of slots that a process has not bound yet. Once it binds such a slot, the slot leads
/// to the original. Slots in its journal stay: they may hold the redirect of an earlier generation.
///
/// # Errors
/// Returns [`Error::Tracee`] if the process cannot be read.
pub(crate) fn remove(target: &Target, caches: &mut [CachePlan]) -> Result<(), Error> {
    let known = target.installed.iter().flat_map(|i| &i.caches).flat_map(|c| &c.records);
    let known: BTreeSet<Avma> = known.map(|r| r.at).collect();
    let slots = caches.iter().flat_map(|c| &c.records).filter(|r| r.kind == RedirectKind::Slot);
    let slots: Vec<Record> = slots.filter(|r| !known.contains(&r.at)).copied().collect();
    let ranges: Vec<AvmaRange> = slots.iter().map(Record::range).collect();
    let found = target.process.read_many(&ranges).map_err(tracee::Error::from)?;
    let unbound = slots.iter().zip(found).filter(|(slot, now)| now != slot.old_bytes());
    let unbound: BTreeSet<Avma> = unbound.map(|(slot, _)| slot.at).collect();
    caches.iter_mut().for_each(|c| c.records.retain(|r| !unbound.contains(&r.at)));
    Ok(())
}
