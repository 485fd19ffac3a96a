//! Rebuilds by an earlier generation, which is put in force again.
//!
//! No clone is ever unmapped, so the address space for clones, or the list of code caches, is used up at some
//! time. Each generation was laid out for the load of its time. The share of samples in the hot fragments of
//! its clones shows how well it fits. The daemon judges a layout by the same share. Without room for new
//! clones, the best generation is used, whatever its share. With room, and if the caller requests it, an
//! earlier generation is used on two conditions. It holds nearly as many samples as a new layout would, and
//! its profile was much the same. So a load that alternates takes room once for each of its kinds.

use crate::analyse::program::{FuncId, Program};
use crate::build::map_store;
use crate::build::space::is_full;
use crate::count::sampling;
use crate::count::source::CountSource;
use crate::family::kin::Kin;
use crate::plan::candidate::Candidate;
use crate::plan::candidates::Candidates;
use crate::plan::samples::Samples;
use crate::rebuild::report::{self, Done, Figures, FunctionCounts, InForce};
use crate::records::notes::Notes;
use crate::show::fit;
use crate::{Error, OptimizeOptions, Progress, Target};
use addr::{Avma, AvmaRange};
use emit::AddressMap;
use rustc_hash::{FxHashMap, FxHashSet};
use splice::{Cache, Installed, Policy};
use std::time::{Duration, Instant};

/// Returns whether the options permit an earlier generation: they must request the hot functions as sampled.
pub(crate) fn is_possible(options: &OptimizeOptions) -> bool {
    options.shuffle.is_none()
        && options.profile.is_none()
        && options.only.is_empty()
        && options.max_functions.is_none()
}

/// Samples in the clones of a generation, by kind of code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Shares {
    hot: u64,
    cloned: u64,
    main: u64,
}

/// An earlier generation is nearly as good as a new layout if its hot fragments hold this share of the
/// samples in functions that can be cloned.
const NEARLY: f64 = 0.95;
/// An earlier generation was made for another load if this share of the profile lies in other functions.
const DRIFT: f64 = 0.2;

/// The request, and the samples.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) target: &'a Target,
    pub(crate) samples: &'a Samples,
    pub(crate) options: &'a OptimizeOptions,
    pub(crate) begun: Instant,
}

/// An earlier generation.
pub(crate) struct Earlier {
    generation: u32,
    notes: Notes,
    shares: Shares,
    /// The entries of the functions that have clones in it.
    entries: Vec<Avma>,
    /// True if a module with clones in it was unloaded.
    has_gone: bool,
}

/// Samples a target, with its family, and puts the best-fitting generation in force. Returns `None` if none
/// fits the options.
///
/// # Errors
/// Returns the errors of sampling and of [`splice::redo`].
pub(crate) fn reuse(
    target: &Target,
    kin: &Kin,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<Done>, Error> {
    let begun = Instant::now();
    let Some(installed) = &target.installed else { return Ok(None) };
    splice::recover_pending(&target.process, &installed.anchor)?;
    let clones = installed.caches.iter().flat_map(|c| maps(target, c)).map(|(_, map)| map).collect();
    let samples = sampling::take(&target.process, kin, options, clones, progress)?;
    if samples.ips.is_empty() {
        let why = "it used no CPU time in user mode while it was sampled".to_owned();
        return Err(Error::NothingHot { pid: target.process.pid(), why });
    }
    let main = target.image()?.main().extent;
    // Of equal generations, choose the newest.
    let best = all(target, &samples, options, main).max_by_key(|e| (e.shares, e.generation));
    let context = Context { target, samples: &samples, options, begun };
    best.map(|earlier| earlier.put_in_force(&context, main, progress)).transpose()
}

/// Finds the best-fitting earlier generation, if it serves the current load nearly as well as a new layout
/// would.
///
/// # Errors
/// Returns an error if the target cannot be read.
pub(crate) fn nearly_as_good(
    target: &Target,
    program: &Program<'_>,
    candidates: &Candidates<Candidate>,
    samples: &Samples,
    options: &OptimizeOptions,
) -> Result<Option<Earlier>, Error> {
    let entry = |f: &FuncId| program.extent(*f).entry;
    let by_entry: FxHashMap<Avma, u64> = candidates.samples.iter().map(|(f, n)| (entry(f), *n)).collect();
    // A function that was cloned then and must be left alone now has been changed by another program.
    let left_alone: FxHashSet<Avma> = candidates.refused.iter().map(|(f, ..)| entry(f)).collect();
    let clonable: u64 = candidates.chosen.iter().map(|c| c.samples).sum();
    let all_samples = samples.ips.len() as u64;
    let serves = |e: &Earlier| {
        !e.has_gone
            && e.shares.hot as f64 >= clonable as f64 * NEARLY
            && fit::drift_by_entry(&e.notes.functions, &by_entry, all_samples) <= DRIFT
            && !e.entries.iter().any(|at| left_alone.contains(at))
    };
    let main = program.image().main().extent;
    Ok(all(target, samples, options, main).filter(serves).max_by_key(|e| (e.shares, e.generation)))
}

/// Returns the generations that fit the options, with their shares of the samples.
fn all<'a>(
    target: &'a Target,
    samples: &Samples,
    options: &'a OptimizeOptions,
    main: AvmaRange,
) -> impl Iterator<Item = Earlier> + 'a {
    let mut ips: FxHashMap<Avma, u64> = FxHashMap::default();
    samples.ips.iter().for_each(|&ip| *ips.entry(ip).or_default() += 1);
    let generations = target.installed.iter().flat_map(Installed::whole_generations);
    generations.filter_map(move |(generation, caches)| {
        let notes = caches.iter().find_map(|c| Notes::read(&c.notes(&target.process).ok()?))?;
        if notes.shuffle.is_some() || notes.without != options.left_out() {
            return None;
        }
        let maps: Vec<(Avma, AddressMap)> = caches.iter().flat_map(|c| maps(target, c)).collect();
        let shares = shares(places(maps.iter().map(|(_, map)| map)), &ips, main);
        let has_gone = caches.iter().any(|c| c.has_gone);
        let entries = maps.into_iter().map(|(at, _)| at).collect();
        Some(Earlier { generation, notes, shares, entries, has_gone })
    })
}

impl Earlier {
    /// Puts the generation in force as the newest.
    ///
    /// # Errors
    /// Returns the errors of [`splice::redo`].
    pub(crate) fn put_in_force(
        self,
        context: &Context<'_>,
        main: AvmaRange,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Done, Error> {
        let &Context { target, samples, options, begun } = context;
        let pid = target.process.pid();
        let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
        let Self { generation: earlier, notes, shares, .. } = self;
        progress(Progress::Installing);
        let code_bytes = installed.of(earlier).map(|c| c.header.code_bytes).sum();
        let (generation, toggle) =
            splice::reinstate(&target.process, installed, earlier, &Policy::default())?;
        let all_main = samples.ips.iter().filter(|&&ip| main.contains(ip)).count() as u64;
        let figures = Figures {
            coverage: share(shares.cloned, samples.ips.len() as u64),
            coverage_main: share(shares.main, all_main),
            functions: functions(&notes),
            refusals: notes.refusals,
            dyno: notes.dyno,
            user_time: None,
        };
        let in_force = InForce {
            generation,
            reused: Some(earlier),
            is_full: is_full(installed, options),
            figures,
            code_bytes,
            mapped_bytes: 0,
            huge_page: false,
            toggle,
            map_stop: Duration::ZERO,
            code_files: None,
        };
        Ok(Done {
            took: begun.elapsed(),
            samples: samples.ips.len(),
            lost_samples: samples.lost,
            source: CountSource::Samples.name(samples),
            counting: None,
            stacks: None,
            profile: None,
            not_drawn: 0,
            spans: Vec::new(),
            in_force,
        })
    }
}

fn maps(target: &Target, cache: &Cache) -> Vec<(Avma, AddressMap)> {
    map_store::read(&cache.map(&target.process).unwrap_or_default())
}

fn functions(notes: &Notes) -> FunctionCounts {
    let cloned = notes.functions.iter().filter(|f| f.clone.is_some()).count();
    FunctionCounts {
        hot: notes.functions.len(),
        cloned,
        refused: notes.functions.len() - cloned,
        last: notes.functions.iter().rfind(|f| f.clone.is_some()).map(|f| f.name.clone()),
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { report::round(part as f64 / whole as f64) }
}

/// Returns the originals' addresses of all cloned instructions, and whether each copy is in a hot fragment.
/// The hot fragment is the first of a clone, as in `fit`.
fn places<'a>(maps: impl Iterator<Item = &'a AddressMap>) -> impl Iterator<Item = (Avma, bool)> {
    maps.flat_map(|map| {
        let warm = map.fragments().with_positions().nth(1).map_or(u32::MAX, |(at, _)| at);
        map.entries().iter().map(move |e| (e.original, e.at < warm))
    })
}

/// Distributes samples, given by their originals' addresses, over clones with these places.
fn shares(places: impl Iterator<Item = (Avma, bool)>, ips: &FxHashMap<Avma, u64>, main: AvmaRange) -> Shares {
    // An instruction with several copies counts as hot if one copy is hot.
    let mut found: FxHashMap<Avma, bool> = FxHashMap::default();
    for (original, is_hot) in places.filter(|(original, _)| ips.contains_key(original)) {
        *found.entry(original).or_default() |= is_hot;
    }
    let mut shares = Shares::default();
    for (ip, is_hot) in found {
        let n = ips.get(&ip).copied().unwrap_or(0);
        shares.cloned += n;
        shares.hot += if is_hot { n } else { 0 };
        shares.main += if main.contains(ip) { n } else { 0 };
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_in_hot_fragments_decide() {
        let ips: FxHashMap<Avma, u64> =
            [(0x10, 70), (0x20, 20), (0x30, 10)].map(|(a, n)| (Avma(a), n)).into_iter().collect();
        let main = AvmaRange::new(Avma(0), Avma(0x18));
        let of = |places: &[(u64, bool)]| shares(places.iter().map(|&(a, hot)| (Avma(a), hot)), &ips, main);
        let fits = of(&[(0x10, true), (0x20, false), (0x40, true)]);
        assert_eq!(fits, Shares { hot: 70, cloned: 90, main: 70 });
        let turned = of(&[(0x10, false), (0x20, true)]);
        assert_eq!(turned, Shares { hot: 20, cloned: 90, main: 70 });
        assert!(fits > turned);
        assert_eq!(of(&[(0x10, true), (0x20, true), (0x10, false)]).hot, 90);
        assert_eq!(of(&[]), Shares::default());
    }
}
