//! Checks whether a layout still fits the load: compares a few samples with the data from which the clones
//! were built.

use crate::family::kin::Kin;
use crate::records::notes::{NotedFunction, Notes};
use crate::session::claim::Claim;
use crate::show::sample;
use crate::{Error, Interrupt, Target};
use addr::Avma;
use perf::{Options, Sampler};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use splice::{Installed, State};
use std::time::Duration;
use tracee::Pid;

/// The number of heaviest functions that are compared. All others count as one: a few hundred samples show
/// little about each.
const HEAVIEST: usize = 24;

/// The fit of a layout.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Fit {
    /// The number of user samples.
    pub samples: u64,
    /// Their share in hot fragments of clones.
    pub hot: f64,
    /// Their share in any fragment of a clone.
    pub cloned: f64,
    /// The share of the profile that now lies in other functions. It is half the sum of the differences of
    /// the heaviest functions and of all others as one. The difference that so few samples show by chance is
    /// subtracted. 0 is the same profile, 1 has nothing in common with it.
    pub drift: f64,
}

/// Samples a target for a moment, at a low rate, and compares the samples with its newest generation. If
/// another command changed the generation meanwhile, the answer has no samples.
///
/// # Errors
/// [`Error::NotInstalled`], [`Error::Perf`], [`Error::Tracee`], [`Error::Interrupted`].
pub fn fit(pid: Pid, time: Duration, hz: u32, interrupt: &Interrupt) -> Result<Fit, Error> {
    fit_with(pid, &Kin::default(), time, hz, interrupt)
}

/// Does the same as [`fit`] for a family: samples of its members are compared with the generation of the
/// parent `pid`.
///
/// # Errors
/// As [`fit`].
pub fn fit_family(pid: Pid, time: Duration, hz: u32, interrupt: &Interrupt) -> Result<Fit, Error> {
    fit_with(pid, &Kin::of(pid)?, time, hz, interrupt)
}

fn fit_with(pid: Pid, kin: &Kin, time: Duration, hz: u32, interrupt: &Interrupt) -> Result<Fit, Error> {
    let target = Target::open(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let notes = Notes::of(&target.process, installed).ok_or(Error::NotInstalled { pid })?;
    let stands = |i: &Installed| i.generation() == installed.generation() && i.state() == State::Applied;
    // A comparison undoes the generation for moments.
    let is_claimed = Claim::witness(&target.process).is_ok_and(|claim| claim.stands());
    if !stands(installed) || is_claimed {
        return Ok(Fit::default());
    }
    let how = Options { hz, pages: 16, branches: false };
    let sampler = match kin.sampled() {
        Some(pids) => Sampler::open_family(&pids, &how)?,
        None => Sampler::open(pid.0, &how)?,
    };
    let mut known = FxHashMap::default();
    let ips = sample::ips(sampler, time, interrupt, &mut |pid| kin.is_of_family(pid, &mut known))?;
    interrupt.check()?;
    let still_stands = Target::open(pid)?.installed.as_ref().is_some_and(stands);
    Ok(if still_stands { of(&notes.functions, &ips) } else { Fit::default() })
}

/// Computes how samples fit functions.
fn of(functions: &[NotedFunction], ips: &[Avma]) -> Fit {
    let mut parts: Vec<(u64, u64, usize, bool)> = Vec::new();
    for (i, f) in functions.iter().enumerate() {
        parts.extend(f.clone.map(|(at, len)| (at, at.saturating_add(len), i, true)));
        parts.extend(f.warm.map(|(at, len)| (at, at.saturating_add(len), i, false)));
    }
    parts.sort_unstable();
    let find = |ip: Avma| {
        let after = parts.partition_point(|p| p.0 <= ip.0);
        after.checked_sub(1).and_then(|i| parts.get(i)).filter(|p| ip.0 < p.1)
    };
    let mut now: FxHashMap<usize, u64> = FxHashMap::default();
    let (mut hot, mut cloned) = (0u64, 0u64);
    for &(_, _, function, is_hot) in ips.iter().filter_map(|&ip| find(ip)) {
        *now.entry(function).or_default() += 1;
        cloned += 1;
        hot += u64::from(is_hot);
    }
    let all = ips.len() as u64;
    let share = |part: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
    Fit { samples: all, hot: share(hot), cloned: share(cloned), drift: drift(functions, &now, all) }
}

/// Returns the distance of two profiles; the current one has samples by functions' entries.
pub(crate) fn drift_by_entry(functions: &[NotedFunction], now: &FxHashMap<Avma, u64>, all: u64) -> f64 {
    let own = |(i, f): (usize, &NotedFunction)| now.get(&Avma(f.at)).map(|&n| (i, n));
    drift(functions, &functions.iter().enumerate().filter_map(own).collect(), all)
}

/// Returns the distance of two profiles.
fn drift(functions: &[NotedFunction], now: &FxHashMap<usize, u64>, all: u64) -> f64 {
    let before: u64 = functions.iter().map(|f| f.samples).fold(0, u64::saturating_add);
    if before == 0 || all == 0 {
        return 0.0;
    }
    let mut heaviest: Vec<usize> = (0..functions.len()).filter(|&i| functions[i].clone.is_some()).collect();
    heaviest.sort_by_key(|&i| std::cmp::Reverse(functions[i].samples));
    heaviest.truncate(HEAVIEST);
    let (mut distance, mut chance) = (0.0, 0.0);
    let (mut rest_then, mut rest_now) = (1.0, 1.0);
    let n = all as f64;
    // The mean deviation of a share p among n samples is about sqrt(2 p (1 - p) / (pi n)).
    let deviation = |p: f64| (2.0 * p * (1.0 - p).max(0.0) / (std::f64::consts::PI * n)).sqrt();
    for i in heaviest {
        let then = functions[i].samples as f64 / before as f64;
        let is = now.get(&i).copied().unwrap_or(0) as f64 / n;
        distance += (then - is).abs();
        chance += deviation(then);
        rest_then -= then;
        rest_now -= is;
    }
    distance += f64::abs(rest_then - rest_now);
    chance += deviation(rest_then.clamp(0.0, 1.0));
    ((distance - chance) / 2.0).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(at: u64, samples: u64, warm: bool) -> NotedFunction {
        NotedFunction {
            name: at.to_string(),
            at,
            samples,
            clone: Some((at * 1000, 100)),
            warm: warm.then_some((at * 1000 + 500, 100)),
            reason: None,
        }
    }

    fn at(place: u64, n: usize) -> Vec<Avma> {
        vec![Avma(place); n]
    }

    #[test]
    fn the_same_load_fits_and_another_does_not() {
        let functions = [function(1, 700, true), function(2, 300, false), function(3, 0, false)];
        let same = of(&functions, &[at(1050, 70), at(2000, 30)].concat());
        assert_eq!((same.samples, same.hot, same.cloned, same.drift), (100, 1.0, 1.0, 0.0));
        // Warm fragments show another path through the same functions.
        let warm = of(&functions, &[at(1050, 20), at(1599, 50), at(2099, 30)].concat());
        assert_eq!((warm.hot, warm.cloned, warm.drift), (0.5, 1.0, 0.0));
        // Other functions, and code without clones.
        let other = of(&functions, &[at(3000, 50), at(9, 25), at(2100, 25)].concat());
        assert_eq!((other.hot, other.cloned), (0.5, 0.5));
        assert!(other.drift > 0.9, "{other:?}");
        assert_eq!(of(&functions, &[]), Fit::default());
        assert_eq!(of(&[], &at(1, 5)), Fit { samples: 5, ..Fit::default() });
    }

    #[test]
    fn chance_is_no_drift() {
        let functions: Vec<_> = (1..=200).map(|i| function(i, 100, false)).collect();
        // One sample in every second function, none in the others: few samples of an even profile look like
        // this.
        let few: Vec<Avma> = (1..=200).filter(|i| i % 2 == 0).map(|i| Avma(i * 1000)).collect();
        assert!(of(&functions, &few).drift < 0.1, "{:?}", of(&functions, &few));
    }
}
