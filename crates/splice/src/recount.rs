//! Makes clones that have counted count again: the same code caches serve every further round.
//!
//! INVARIANT(armed): an instruction that accesses counters' memory is written back only while all threads are
//! stopped, after each of them got its base. A thread may be anywhere in such a clone, or return into it
//! later: it counts or it does not. A thread inside a counter of three instructions stores the content of its
//! register. No other instruction reads that register, and [`mod@crate::counters`] omits values that no counter
//! can reach.
//! INVARIANT(listed): the journals list the caches as counting before any clone counts. So if whet dies, the
//! next whet ends the counting.

use crate::counter_sites::{CounterSite, CounterSites};
use crate::quiet;
use crate::toggle::{self, Change, Word};
use crate::write::Write;
use crate::{
    Cache, CounterArea, Error, Installed, Policy, Record, State, ToggleReport, counters, fault, finishing,
};
use addr::{Avma, ReadMemory};
use std::ops::Range;
use tracee::Process;

/// The result of a recount.
#[derive(Clone, Debug)]
pub struct Recount {
    /// The memory in which the clones count.
    pub area: CounterArea,
    /// The redirects written, and all stops.
    pub toggle: ToggleReport,
}

impl Cache {
    /// Reads the places of its counters, and the installer's additions. `None` if its clones cannot count
    /// again.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn counter_sites(&self, mem: &dyn ReadMemory) -> Result<Option<CounterSites>, Error> {
        if !self.header.counting || self.newer.is_some() {
            return Ok(None);
        }
        let sites = CounterSites::read(&self.notes(mem)?);
        Ok(sites.filter(|s| s.sites.iter().all(|s| s.head.is_some())))
    }
}

/// Puts clones in force that have counted before, from the caches with these journals, and makes them count
/// at `offsets`. Redirects of the generation in force are undone in the same stop.
///
/// # Errors
/// As [`crate::install()`]; [`Error::Journal`] if the caches cannot count again.
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
    let mut arms: Vec<Write> = Vec::new();
    for cache in &again {
        let at = cache.header.data.start;
        let sites = cache.counter_sites(process)?;
        let sites = sites.ok_or(Error::Journal { at, what: "clones that cannot count again" })?;
        let arm = |site: &CounterSite, own: &mut [u8], at| {
            site.head.is_some_and(|head| quiet::count_again(own, at, head))
        };
        arms.extend(quiet::change(process, cache.header.text, &sites.sites, &arm)?);
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
        module_list: installed.anchor.module_list_redirects(),
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
