//! Rebuilding where there is no room for new clones: the earlier generation that fits the load best is put in force again.
//!
//! No clone is ever unmapped, so the address space that clones may take, or the places for code caches, come to an end. Each
//! generation was laid out for the load of its time. Which fits best is told by the share of samples in hot parts of
//! its clones, by which the daemon tells whether a layout fits.

use crate::build::map_store;
use crate::count::sampling;
use crate::count::source::CountSource;
use crate::rebuild::report::{self, FunctionCounts, OptimizeReport};
use crate::records::notes::Notes;
use crate::session::state::{StopMs, TargetState};
use crate::{Error, OptimizeOptions, Progress, Target};
use addr::{Avma, AvmaRange};
use emit::AddressMap;
use rustc_hash::FxHashMap;
use splice::{Cache, Policy};
use std::time::Instant;

/// Whether an earlier generation may do for what is asked: the hot functions as they are sampled.
pub(crate) fn is_possible(options: &OptimizeOptions) -> bool {
    options.shuffle.is_none()
        && options.profile.is_none()
        && options.only.is_empty()
        && options.max_functions.is_none()
}

/// How much of the samples is where in the clones of a generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Shares {
    hot: u64,
    cloned: u64,
    main: u64,
}

/// Samples a target and puts the generation in force that fits best; `None` where none of them fits what is asked.
///
/// # Errors
/// Those of sampling and of [`splice::redo`].
pub(crate) fn reuse(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<OptimizeReport>, Error> {
    let begun = Instant::now();
    let Some(installed) = &target.installed else { return Ok(None) };
    let pid = target.process.pid();
    splice::settle(&target.process, &installed.anchor)?;
    let clones = installed.caches.iter().flat_map(|c| maps(target, c)).collect();
    let samples = sampling::take(&target.process, options, clones, progress)?;
    let mut ips: FxHashMap<Avma, u64> = FxHashMap::default();
    samples.ips.iter().for_each(|&ip| *ips.entry(ip).or_default() += 1);
    if ips.is_empty() {
        let why = "it used no CPU time in user mode while it was sampled".to_owned();
        return Err(Error::NothingHot { pid, why });
    }
    let main = target.image()?.main().extent;
    let fitting = installed.whole_generations().into_iter().filter_map(|(g, caches)| {
        let notes = caches.iter().find_map(|c| Notes::read(&c.notes(&target.process).ok()?))?;
        let is_wanted = notes.shuffle.is_none() && notes.without == options.left_out();
        let maps: Vec<AddressMap> = caches.iter().flat_map(|c| maps(target, c)).collect();
        is_wanted.then(|| (shares(places(&maps), &ips, main), g, notes, caches))
    });
    // Of equals the newest.
    let Some((shares, earlier, notes, caches)) = fitting.max_by_key(|f| (f.0, f.1)) else { return Ok(None) };
    progress(Progress::Installing);
    let (generation, toggle) = splice::reinstate(&target.process, installed, earlier, &Policy::default())?;
    let all_main = samples.ips.iter().filter(|&&ip| main.contains(ip)).count() as u64;
    let report = OptimizeReport {
        pid: pid.0,
        exe: target.exe(),
        state: TargetState::Optimized,
        generation,
        reused: Some(earlier),
        not_drawn: 0,
        user_time: None,
        seconds: report::round(begun.elapsed().as_secs_f64()),
        samples: samples.ips.len() as u64,
        lost_samples: samples.lost,
        source: CountSource::Samples.name(&samples).to_owned(),
        without: options.left_out(),
        functions: functions(&notes),
        refusals: notes.refusals.clone(),
        coverage: share(shares.cloned, samples.ips.len() as u64),
        coverage_main: share(shares.main, all_main),
        code_bytes: caches.iter().map(|c| c.header.code_bytes).sum(),
        mapped_bytes: 0,
        huge_page: false,
        redirects: toggle.done.iter().map(|(k, &n)| (k.name().to_owned(), n)).collect(),
        skipped_redirects: toggle.foreign.len(),
        stop_ms: StopMs::of(&toggle.stops),
        counting: None,
        stacks: None,
        dyno: notes.dyno,
        profile: None,
        perf_map: None,
        map_stop_ms: 0.0,
        whet_peak_rss_mb: report::peak_rss_mb(),
    };
    Ok(Some(report))
}

fn maps(target: &Target, cache: &Cache) -> Vec<AddressMap> {
    let bytes = cache.map(&target.process).unwrap_or_default();
    map_store::read(&bytes).into_iter().map(|(_, map)| map).collect()
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

/// The instructions that have copies in some clones, by their originals' addresses, and whether a copy is in a hot part: the first
/// fragment of a clone, as in `fit`.
fn places(maps: &[AddressMap]) -> impl Iterator<Item = (Avma, bool)> + '_ {
    maps.iter().flat_map(|map| {
        let warm = map.fragments().with_positions().nth(1).map_or(u32::MAX, |(at, _)| at);
        map.entries().iter().map(move |e| (e.original, e.at < warm))
    })
}

/// Where samples, by their originals' addresses, are in clones that have these places.
fn shares(places: impl Iterator<Item = (Avma, bool)>, ips: &FxHashMap<Avma, u64>, main: AvmaRange) -> Shares {
    // Of what lies there more than once the hottest place counts.
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
    fn samples_in_hot_parts_decide() {
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
