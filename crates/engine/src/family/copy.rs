//! Makes a member like its parent: the parent's newest generation, copied from the parent's memory.
//!
//! Each process numbers its generations itself. So the same clones are recognised in another process by their
//! addresses, bytes and records.
//!
//! If the parent has its clones in sealed files, a member maps the same files. So profilers see its clones
//! too, and the memory of clones and tables is used once for the whole family.

use crate::base::options::MEMORY_CAP;
use crate::build::memory_limit;
use crate::build::places::{self, Taken};
use crate::build::unbound;
use crate::build::unwind_hooks;
use crate::family::fit::{Fitting, unfit};
use crate::session::restore;
use crate::{Error, Target};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use image::Mapping;
use splice::{BLOB_OFFSET, Cache, CachePlan, CodeFile, Limit, Plan, Policy, Record, State, ToggleReport};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tracee::SealedFile;

/// A generation of a parent, as it can be installed in a member.
pub(crate) struct Generation {
    caches: Vec<CachePlan>,
    /// Redirects that are in force in the parent: address and length.
    in_force: BTreeSet<(Avma, u8)>,
    /// Why the parent's files cannot be opened, if it has its clones in files.
    not_shared: Option<String>,
    /// Whether its code lies on huge pages.
    huge: bool,
    /// The most bytes that installations in progress will charge to the family's control groups.
    claimed: AtomicU64,
}

/// What was done with a member.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    /// It has the parent's clones in force already.
    Nothing,
    /// It had the parent's clones, and they were put in force.
    Redone(ToggleReport),
    /// The parent's clones were installed.
    Installed {
        /// The redirects and the stops.
        toggle: ToggleReport,
        /// Why the clones are in anonymous memory, if the parent's are in files.
        not_from_files: Option<String>,
    },
}

impl Done {
    /// Returns how long the member was stopped, each time.
    pub(crate) fn stops(&self) -> &[Duration] {
        match self {
            Self::Nothing => &[],
            Self::Redone(toggle) | Self::Installed { toggle, .. } => &toggle.stops,
        }
    }
}

impl Generation {
    /// Reads the newest generation of a parent.
    ///
    /// # Errors
    /// Returns [`Error::NotInstalled`] if the newest generation is not complete and in force.
    pub(crate) fn newest(parent: &Target) -> Result<Self, Error> {
        let pid = parent.process.pid();
        let installed = parent.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
        let (_, mut caches) = installed.whole_generations().pop().ok_or(Error::NotInstalled { pid })?;
        if installed.is_counting() || caches.iter().any(|c| c.header.state != State::Applied) {
            return Err(Error::NotInstalled { pid });
        }
        caches.sort_by_key(|c| c.header.index);
        let mut plans = caches.iter().map(|c| plan(&parent.process, c)).collect::<Result<Vec<_>, Error>>()?;
        let not_shared = share_files(parent, &mut plans);
        let in_force = places_with(parent, plans.iter().flat_map(|c| &c.records), Record::new_bytes);
        let huge = caches
            .iter()
            .any(|c| parent.process.huge_pages(c.header.text).is_ok_and(|huge| !huge.is_empty()));
        Ok(Self { caches: plans, in_force, not_shared, huge, claimed: AtomicU64::new(0) })
    }

    /// Returns the first pages of the modules that may be unloaded.
    pub(crate) fn marks(&self) -> Vec<Avma> {
        let marks: BTreeSet<Avma> = self.records().filter_map(|r| r.mark).collect();
        marks.into_iter().collect()
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.caches.iter().flat_map(|c| &c.records)
    }

    /// Puts the generation in force in a member that fits: by the clones that the member inherited, or by new
    /// ones at the same addresses.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if something else lies at these addresses, and the errors of
    /// [`splice::install`]; the member is then as it was before.
    pub(crate) fn put_in(&self, member: &Fitting) -> Result<Done, Error> {
        let target = &member.target;
        if let Some(installed) = &target.installed {
            splice::recover_pending(&target.process, &installed.anchor)?;
        }
        match self.inherited(target)? {
            Some(number) if self.is_in_force(target, number) => Ok(Done::Nothing),
            Some(number) => self.reinstate(target, number).map(Done::Redone),
            None => {
                let was_optimized = restore::is_optimized(target);
                let outcome = self.install(member);
                restore::or_restore(target, was_optimized, outcome)
            }
        }
    }

    /// Returns the number under which a member has the same clones.
    fn inherited(&self, member: &Target) -> Result<Option<u32>, Error> {
        let Some(installed) = &member.installed else { return Ok(None) };
        for (number, mut caches) in installed.whole_generations() {
            caches.sort_by_key(|c| c.header.index);
            let is_there = |(plan, cache): (&CachePlan, &&Cache)| {
                let header = &cache.header;
                let same = header.text == plan.text_range() && are_among(&cache.records, &plan.records);
                Ok(same && member.process.bytes(code(header.text.start, plan))? == plan.text)
            };
            let same: Result<Vec<bool>, tracee::Error> =
                self.caches.iter().zip(&caches).map(is_there).collect();
            if caches.len() == self.caches.len() && same?.into_iter().all(|same| same) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Returns whether a generation of a member is in force, as in the parent. A child that was forked during
    /// an undo or redo has only some of the redirects, whatever its journal says.
    fn is_in_force(&self, member: &Target, number: u32) -> bool {
        let Some(installed) = &member.installed else { return false };
        let is_marked =
            installed.of_use().all(|c| (c.header.state == State::Applied) == (c.header.generation == number));
        let own = installed.caches.iter().filter(|c| c.header.generation == number);
        let undone = places_with(member, own.flat_map(|c| &c.records), Record::old_bytes);
        is_marked && undone.is_disjoint(&self.in_force)
    }

    fn reinstate(&self, member: &Target, number: u32) -> Result<ToggleReport, Error> {
        let policy = Policy::default();
        let Some(installed) = &member.installed else { return Ok(ToggleReport::default()) };
        let report = match installed.generation() == number {
            true => splice::redo(&member.process, installed, &policy),
            false => splice::reinstate(&member.process, installed, number, &policy).map(|(_, r)| r),
        };
        report.map_err(|e| member.cause(e.into()))
    }

    fn install(&self, member: &Fitting) -> Result<Done, Error> {
        let Fitting { target, lookup, .. } = member;
        let pid = target.process.pid();
        let ranges: Vec<AvmaRange> =
            self.caches.iter().map(|c| AvmaRange::new(c.text_at, c.data_at.add(c.data_len()))).collect();
        let overlaps_clones = |range: &AvmaRange| ranges.iter().any(|r| r.overlaps(range));
        let place_taken = || unfit(pid, "place_taken", "something else lies at the addresses of the clones");
        if target.maps.iter().any(|m| overlaps_clones(&m.range)) {
            return Err(place_taken());
        }
        let mapped: u64 = ranges.iter().map(AvmaRange::len).sum();
        let before = target.installed.as_ref().map_or(0, splice::Installed::mapped_bytes);
        if before + mapped > MEMORY_CAP {
            return Err(Error::MemoryCap { pid, mapped: before, cap: MEMORY_CAP });
        }
        let claim = Claim::of(&self.claimed, memory_limit::need(&self.caches, None, 0));
        memory_limit::check(pid, claim.all)?;
        let mut caches = self.caches.clone();
        unbound::remove(target, &mut caches);
        let mut plan = Plan {
            caches,
            lookup: lookup.find_object,
            hook: None,
            anchor_at: Avma(0),
            counters: None,
            huge: self.huge,
        };
        // Only the anchor's place can be chosen.
        let report = places::seek(|taken| {
            let again = taken.reopened(target)?;
            let target = again.as_ref().unwrap_or(target);
            plan.anchor_at = place_anchor(target, &ranges, taken)?;
            plan.hook = unwind_hooks::hook(target, lookup, plan.anchor_at)?;
            match splice::install(&target.process, target.installed.as_ref(), &plan, &Policy::default()) {
                Err(splice::Error::PlaceTaken(range)) if overlaps_clones(&range) => Err(place_taken()),
                outcome => Ok(outcome?),
            }
        })?;
        let not_from_files = report.not_from_files.or_else(|| self.not_shared.clone());
        Ok(Done::Installed { toggle: report.toggle, not_from_files })
    }
}

/// Returns the place of a new anchor: near the first cache, outside of all of them.
fn place_anchor(target: &Target, caches: &[AvmaRange], taken: &Taken) -> Result<Avma, Error> {
    let mut limits = taken.limits(&target.maps_now()?);
    limits.extend(caches.iter().map(|r| (*r, Limit::Plain)));
    limits.sort_by_key(|(r, _)| r.start);
    places::anchor(&limits, AvmaRange::with_len(caches.first().map_or(Avma(0), |r| r.start), 1))
}

/// Memory that an installation is about to use. All members are in the same control groups, and several are
/// changed at a time: so each must leave room for what the others are about to use.
struct Claim<'a> {
    claimed: &'a AtomicU64,
    own: u64,
    /// The bytes of this installation and of all others in progress.
    all: u64,
}

impl<'a> Claim<'a> {
    fn of(claimed: &'a AtomicU64, own: u64) -> Self {
        Self { claimed, own, all: claimed.fetch_add(own, Ordering::SeqCst).saturating_add(own) }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // The memory is in the group's usage now.
        self.claimed.fetch_sub(self.own, Ordering::SeqCst);
    }
}

/// Returns the plan by which a cache was installed.
fn plan(memory: &dyn ReadMemory, cache: &Cache) -> Result<CachePlan, Error> {
    let read = |range: AvmaRange| memory.bytes(range).map_err(tracee::Error::from);
    let header = &cache.header;
    Ok(CachePlan {
        text_at: header.text.start,
        text: read(AvmaRange::with_len(header.text.start, header.code_bytes))?,
        data_at: header.data.start,
        blob: read(AvmaRange::new(header.data.start.add(BLOB_OFFSET), header.records.start))?,
        eh_frame_hdr: header.eh_frame_hdr,
        // Only a new file needs it.
        eh_frame: AvmaRange::default(),
        file: None,
        records: cache.records.clone(),
        map: read(header.map)?,
        notes: read(header.notes)?,
    })
}

/// Lets caches that a parent has mapped from files be mapped from these files. If one of the files cannot be
/// opened, none is used, and the reason is returned.
fn share_files(parent: &Target, caches: &mut [CachePlan]) -> Option<String> {
    let at_start = |cache: &CachePlan, m: &&Mapping| m.range.start == cache.text_at && m.inode != 0;
    let mapped: Vec<_> = caches.iter().filter_map(|c| parent.maps.iter().find(|m| at_start(c, m))).collect();
    if mapped.len() < caches.len() {
        return None;
    }
    let open = |m: &Mapping| SealedFile::mapped(&parent.process, m.range);
    match mapped.into_iter().map(open).collect::<Result<Vec<_>, _>>() {
        Ok(files) => {
            for (cache, file) in caches.iter_mut().zip(files) {
                cache.file = Some(CodeFile::Shared(Arc::new(file)));
            }
            None
        }
        Err(e) => Some(format!("the files of its family's parent cannot be opened: {e}")),
    }
}

/// Returns whether records are some of others, in the same order.
fn are_among(records: &[Record], all: &[Record]) -> bool {
    let mut all = all.iter();
    records.iter().all(|r| all.any(|other| other == r))
}

fn code(start: Avma, plan: &CachePlan) -> AvmaRange {
    AvmaRange::with_len(start, plan.text.len() as u64)
}

/// Returns the places that hold certain bytes of their records. Places in unloaded libraries hold none.
fn places_with<'a>(
    target: &Target,
    records: impl Iterator<Item = &'a Record>,
    bytes: impl Fn(&Record) -> &[u8],
) -> BTreeSet<(Avma, u8)> {
    let records: Vec<&Record> = records.collect();
    let ranges: Vec<AvmaRange> = records.iter().map(|r| r.range()).collect();
    let found = target.process.read_each(&ranges);
    let holds = records.into_iter().zip(found).filter(|(r, now)| now.as_deref() == Some(bytes(r)));
    holds.map(|(r, _)| (r.at, r.len)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several members are changed at a time. Each leaves room for what the others are about to use.
    #[test]
    fn claims_on_memory_add_up() {
        let claimed = AtomicU64::new(0);
        let first = Claim::of(&claimed, 10);
        let second = Claim::of(&claimed, 5);
        assert_eq!((first.all, second.all), (10, 15));
        drop(first);
        assert_eq!(Claim::of(&claimed, 1).all, 6);
        drop(second);
        assert_eq!(claimed.into_inner(), 0);
    }
}
