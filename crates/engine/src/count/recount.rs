//! Earlier rounds of counting that can be run again: their clones, what they count, and which round to
//! choose.
//!
//! No clone is ever unmapped, so counting clones are kept for good and reused. Offsets of rounds never
//! overlap, so any of them can be run in a counter area of its own.

use crate::build::map_store;
use crate::build::round::{FunctionPlan, Offsets, read};
use crate::plan::candidate::Measured;
use crate::records::originals::Originals;
use crate::{Error, Target};
use addr::{Avma, AvmaRange};
use rustc_hash::FxHashMap;
use splice::{Cache, State};

/// A round that can be run again.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) offsets: Offsets,
    /// The journals of its caches.
    pub(crate) journals: Vec<Avma>,
    /// How its functions are counted, by their entries.
    pub(crate) plans: FxHashMap<Avma, FunctionPlan>,
    /// Its clones, each with the entry of its original.
    pub(crate) clones: FxHashMap<Avma, Avma>,
}

impl Round {
    /// Returns whether the round has a clone of a candidate's function.
    pub(crate) fn has(&self, c: &Measured) -> bool {
        let plan = self.plans.get(&c.analysed.cfg.entry);
        plan.is_some_and(|p| p.hash == profile::hash(&c.analysed.cfg))
    }

    /// Returns the weight of the candidates that the round has, and of all: samples, and one for each
    /// candidate.
    pub(crate) fn weigh(&self, todo: &[Measured]) -> (u64, u64) {
        let weight = |c: &Measured| c.samples + 1;
        let held = todo.iter().filter(|c| self.has(c)).map(weight).sum();
        (held, todo.iter().map(weight).sum())
    }

    /// Returns whether its clones still match their originals, none of which is missing or changed. No
    /// redirect of the round may overlap a redirect of unwinders.
    ///
    /// # Errors
    /// Returns an error if the target cannot be read.
    pub(crate) fn is_usable(&self, target: &Target) -> Result<bool, Error> {
        let Some(installed) = &target.installed else { return Ok(false) };
        let caches: Vec<&Cache> =
            installed.caches.iter().filter(|c| self.journals.contains(&c.header.data.start)).collect();
        let hooked: Vec<AvmaRange> =
            installed.anchor.module_list_redirects().iter().map(splice::Record::range).collect();
        let is_hooked = |r: &splice::Record| hooked.iter().any(|h| h.overlaps(&r.range()));
        if caches.iter().any(|c| c.has_gone || c.records.iter().any(is_hooked)) {
            return Ok(false);
        }
        Ok(Originals::of_caches(target, caches.into_iter(), None).changed(target).is_empty())
    }
}

/// Reads the rounds of a target that can be run again, and the first free offset for a new round.
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
    // A round during which a whet died may be incomplete.
    rounds.retain(|(r, caches)| r.journals.len() == *caches as usize);
    let whole = rounds.into_iter().map(|(mut r, _)| {
        let Round { plans, clones, .. } = &mut r;
        plans.retain(|entry, _| clones.values().any(|original| original == entry));
        r
    });
    (whole.collect(), free)
}
