//! Clones that have counted count again: the same code caches serve every further round.
//!
//! INVARIANT(armed): an instruction that touches counters' memory is written back only while all threads stand still, after
//! each of them got its base. A thread may stand anywhere in such a clone, or come back into it later: it counts, or it
//! does not. A thread that stands within a counter of three instructions stores what its register holds; nobody else reads
//! that register, and [`crate::counters`] leaves out what no counter can have come to.
//! INVARIANT(listed): the journals say that the caches count before anything does. So whoever comes after a whet that died
//! ends that.

use crate::counter_sites::CounterSites;
use crate::quiet;
use crate::toggle::{self, Change, Word};
use crate::{
    Cache, CounterArea, Error, Installed, Policy, Record, State, ToggleReport, counters, fault, finishing,
};
use addr::{Avma, AvmaRange, ReadMemory};
use std::ops::Range;
use tracee::Process;

/// What it came to.
#[derive(Clone, Debug)]
pub struct Recount {
    /// Where the clones count.
    pub area: CounterArea,
    /// What was redirected, and all stops.
    pub toggle: ToggleReport,
}

impl Cache {
    /// Reads where it counts, and what its installer has added to that. `None` where its clones cannot count again.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn counter_sites(&self, mem: &dyn ReadMemory) -> Result<Option<CounterSites>, Error> {
        if !self.header.counting || self.newer.is_some() {
            return Ok(None);
        }
        let sites = CounterSites::read(&self.notes(mem)?);
        Ok(sites.filter(|s| s.heads.len() == s.places.len()))
    }
}

/// Puts clones in force that have counted before, those of the caches with these journals, and has them count at `offsets`.
/// Redirects of the generation in force are taken away in the same stop.
///
/// # Errors
/// As [`crate::install`]; [`Error::Journal`] where the caches cannot count again.
pub fn count_again(
    process: &Process,
    installed: &Installed,
    journals: &[Avma],
    offsets: &Range<u32>,
    policy: &Policy,
) -> Result<Recount, Error> {
    if installed.counts_for_good() {
        return Err(Error::CountsForGood);
    }
    finishing::publish(process, &mut installed.anchor.clone())?;
    if installed.may_count() {
        quiet::silence(process, installed, policy, &mut ToggleReport::default())?;
    }
    let again: Vec<&Cache> =
        installed.caches.iter().filter(|c| journals.contains(&c.header.data.start)).collect();
    let mut arms: Vec<(AvmaRange, Vec<u8>)> = Vec::new();
    for cache in &again {
        let at = cache.header.data.start;
        let sites = cache.counter_sites(process)?;
        let sites = sites.ok_or(Error::Journal { at, what: "clones that cannot count again" })?;
        let arm = |n: usize, own: &mut [u8], at| {
            sites.heads.get(n).is_some_and(|head| quiet::count_again(own, at, *head))
        };
        arms.extend(quiet::change(process, cache.header.text, &sites.places, &arm)?);
    }
    let area = counters::provide(process, &installed.anchor, offsets)?;
    for cache in &again {
        fault::point();
        toggle::mark(process, cache.header.data.start, State::Prepared)?;
    }
    let old: Vec<&Cache> = installed.of_use().collect();
    let revert: Vec<Record> = old.iter().flat_map(|c| c.records.iter().copied()).collect();
    let apply: Vec<Record> = again.iter().flat_map(|c| c.records.iter().copied()).collect();
    let undone = old.iter().map(|c| (c.header.data.start, State::Undone));
    let applied = again.iter().map(|c| (c.header.data.start, State::Applied));
    let marks: Vec<(Avma, State)> = undone.chain(applied).collect();
    let change = Change {
        word: Word::swap(&installed.anchor),
        led: installed.anchor.led(),
        counters: Some(&area),
        arms: &arms,
        only_if: Some(&installed.anchor),
        revert: &revert,
        apply: &apply,
        marks: &marks,
    };
    let toggle = toggle::run(process, &change, policy)?;
    Ok(Recount { area, toggle })
}
