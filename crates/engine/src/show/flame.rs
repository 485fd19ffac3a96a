//! Where user time goes, by function and caller: before, by the samples of the profile, and now, by new samples.
//!
//! Samples have no stacks. The function of each sample is exact; its callers are estimated from exact counts
//! of calls ([`CallGraph::stacks`]), on both sides from the same counts.

use crate::records::notes::Notes;
use crate::records::profile_store::{loaded, name_of};
use crate::show::sample;
use crate::{Error, Interrupt, Target};
use addr::{Avma, AvmaRange};
use image::Image;
use perf::{Options, Sampler};
use profile::{CallGraph, Profile};
use rustc_hash::FxHashMap;
use splice::{Installed, State};
use std::time::Duration;

/// The sampling rate for the present flame graph, per second of a thread's CPU time.
const HZ: u32 = 997;

/// User time before and now.
#[derive(Clone, Debug)]
pub struct Flame {
    /// Functions whose callers are not known, because their counts are no exact counts.
    pub without_callers: usize,
    /// The originals, when the profile was taken.
    pub before: FlameSide,
    /// The process now; `None` if it was not sampled, or runs its originals.
    pub after: Option<FlameSide>,
}

/// User time of one moment.
#[derive(Clone, Debug)]
pub struct FlameSide {
    /// User samples.
    pub samples: u64,
    /// Samples outside the functions of the profile.
    pub other: u64,
    /// The outermost functions.
    pub roots: Vec<FlameFrame>,
}

/// A function in a stack.
#[derive(Clone, PartialEq, Debug)]
pub struct FlameFrame {
    /// Its name.
    pub name: String,
    /// Samples in it and in what it called.
    pub samples: u64,
    /// Samples in it alone.
    pub own: u64,
    /// The share of its samples, on all stacks, that fell into its clone; `None` without samples.
    pub in_clone: Option<f64>,
    /// The functions that it called, the one with most samples first.
    pub callees: Vec<FlameFrame>,
}

/// Samples of one function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Hits {
    all: u64,
    in_clone: u64,
}

/// A target with its clones.
#[derive(Clone, Copy)]
pub(crate) struct Live<'a> {
    pub(crate) target: &'a Target,
    pub(crate) installed: &'a Installed,
    pub(crate) image: &'a Image,
    pub(crate) notes: &'a Notes,
}

/// Computes both sides. Samples the target for `sampling`, if its clones are in force.
pub(crate) fn flame(live: Live<'_>, profile: &Profile, sampling: Duration) -> Option<Flame> {
    let Live { target, installed, image, notes } = live;
    let graph = CallGraph::of(profile);
    let hits: Vec<Hits> =
        graph.nodes().iter().map(|n| Hits { all: n.function.samples, in_clone: 0 }).collect();
    let before = side(&graph, &hits, profile.samples);
    if before.samples == 0 {
        return None;
    }
    let stands = |i: &Installed| i.generation() == installed.generation() && i.state() == State::Applied;
    let is_sampled = stands(installed) && !sampling.is_zero();
    // If sampling fails, the report leaves this side out.
    let ips = if is_sampled { sample(target, sampling).ok() } else { None };
    let still_stands =
        || Target::open(target.process.pid()).is_ok_and(|t| t.installed.as_ref().is_some_and(stands));
    let after = ips.filter(|ips| !ips.is_empty() && still_stands()).map(|ips| {
        let places = places(&graph, image, notes);
        side(&graph, &count(&places, graph.nodes().len(), &ips), ips.len() as u64)
    });
    Some(Flame { without_callers: graph.without_callers(), before, after })
}

fn sample(target: &Target, time: Duration) -> Result<Vec<Avma>, Error> {
    let sampler = Sampler::open(target.process.pid().0, &Options { hz: HZ, pages: 16, branches: false })?;
    sample::ips(sampler, time, &Interrupt::default(), &mut |_| true)
}

/// A range of code: the function, and whether the range is its clone's.
type Code = (AvmaRange, usize, bool);

/// Returns the code of all functions and of their clones, by address.
fn places(graph: &CallGraph<'_>, image: &Image, notes: &Notes) -> Vec<Code> {
    let clones: FxHashMap<u64, _> = notes.functions.iter().map(|f| (f.at, [f.clone, f.warm])).collect();
    let loaded = loaded(image);
    let mut out = Vec::new();
    for (i, n) in graph.nodes().iter().enumerate() {
        let Some(&module) = loaded.get(n.build_id) else { continue };
        let entry = image.module(module).bias.avma(n.key.at);
        out.push((AvmaRange::with_len(entry, n.function.size), i, false));
        for (at, len) in clones.get(&entry.0).into_iter().flatten().flatten() {
            out.push((AvmaRange::with_len(Avma(*at), *len), i, true));
        }
    }
    out.sort_by_key(|c| (c.0.start, c.0.end));
    out
}

fn count(places: &[Code], functions: usize, ips: &[Avma]) -> Vec<Hits> {
    let mut hits = vec![Hits::default(); functions];
    for ip in ips {
        let after = places.partition_point(|c| c.0.start <= *ip);
        let found = after.checked_sub(1).and_then(|i| places.get(i)).filter(|c| c.0.contains(*ip));
        if let Some(&(_, function, is_clone)) = found
            && let Some(hits) = hits.get_mut(function)
        {
            hits.all += 1;
            hits.in_clone += u64::from(is_clone);
        }
    }
    hits
}

fn side(graph: &CallGraph<'_>, hits: &[Hits], samples: u64) -> FlameSide {
    let each: Vec<u64> = hits.iter().map(|h| h.all).collect();
    let inside = each.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let stacks = graph.stacks(&each);
    let in_clone = |i: usize| {
        let of = hits.get(i).filter(|h| h.all > 0);
        of.map(|h| h.in_clone as f64 / h.all as f64)
    };
    let stacks: Vec<(&[usize], u64)> = stacks.iter().map(|(s, n)| (s.as_slice(), *n)).collect();
    let roots = frames(&stacks, &|i| (name_of(graph, i), in_clone(i)));
    FlameSide { samples: samples.max(inside), other: samples.saturating_sub(inside), roots }
}

/// Merges stacks, sorted by their functions, into a tree.
fn frames(stacks: &[(&[usize], u64)], about: &dyn Fn(usize) -> (String, Option<f64>)) -> Vec<FlameFrame> {
    let first = |s: &(&[usize], u64)| s.0.first().copied();
    let mut out: Vec<FlameFrame> = stacks
        .chunk_by(|a, b| first(a) == first(b))
        .filter_map(|group| {
            let function = first(group.first()?)?;
            let inner: Vec<(&[usize], u64)> =
                group.iter().map(|(s, n)| (s.get(1..).unwrap_or_default(), *n)).collect();
            let total = |of: &mut dyn Iterator<Item = u64>| of.fold(0, u64::saturating_add);
            let (name, in_clone) = about(function);
            Some(FlameFrame {
                name,
                samples: total(&mut inner.iter().map(|i| i.1)),
                own: total(&mut inner.iter().filter(|i| i.0.is_empty()).map(|i| i.1)),
                in_clone,
                callees: frames(&inner, about),
            })
        })
        .collect();
    out.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name.cmp(&b.name)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
whet-profile 2
exe /usr/bin/a
samples 200
module aa a
function 0x1000 1 counted entered 1 samples 10 size 0x100 global main
+0 +8 100
call +2 0x2000 10
function 0x2000 2 counted entered 10 samples 100 size 0x100 global work
+0 +8 10
call +4 0x3000 5
function 0x3000 3 counted entered 10 samples 50 size 0x80 global leaf
+0 +8 10
end
";

    #[test]
    fn samples_become_a_tree() {
        let profile: Profile = TEXT.parse().unwrap();
        let graph = CallGraph::of(&profile);
        let hits: Vec<Hits> =
            graph.nodes().iter().map(|n| Hits { all: n.function.samples, in_clone: 0 }).collect();
        let side = side(&graph, &hits, profile.samples);
        assert_eq!((side.samples, side.other), (200, 40));
        let shown = |f: &FlameFrame| (f.name.clone(), f.samples, f.own);
        assert_eq!(
            side.roots.iter().map(shown).collect::<Vec<_>>(),
            [("main".to_owned(), 135, 10), ("leaf".to_owned(), 25, 25)]
        );
        let work = &side.roots[0].callees[0];
        assert_eq!(
            (shown(work), shown(&work.callees[0])),
            (("work".to_owned(), 125, 100), ("leaf".to_owned(), 25, 25))
        );
        assert_eq!(work.in_clone, Some(0.0));
    }

    #[test]
    fn samples_are_found_in_originals_and_clones() {
        let range = |at, len| AvmaRange::with_len(Avma(at), len);
        let places =
            [(range(0x1000, 0x10), 0, false), (range(0x2000, 0x10), 1, false), (range(0x9000, 8), 0, true)];
        let ips = [0xfff, 0x1000, 0x100f, 0x1010, 0x9000, 0x9007, 0x9008].map(Avma);
        let hits = count(&places, 2, &ips);
        assert_eq!(hits, [Hits { all: 4, in_clone: 2 }, Hits::default()]);
    }
}
