//! The fold: the contributions of a program become one aggregate.
//!
//! The result depends on the set of contributions alone, not on their order, a clock, or the host that
//! folds. All arithmetic is on integers.
//!
//! - **A host counts once**, by its newest contribution. Each contribution is scaled to the same number of
//!   executions, so a long or busy run weighs as much as any other.
//! - **New ones weigh more**: the weight halves with each week, by the days in the names. A day must fit the
//!   store's own time of the object. No host weighs more than twice the median.
//! - **A few hosts decide nothing.** Let `t` be a quarter of the hosts, rounded up (0 below three hosts). A
//!   function that at most `t` hosts have is left out. In every other one, no host weighs more than the host
//!   with the `t+1`th greatest weight. So up to `t` hostile hosts cannot bring in a function, and in each
//!   function none of them weighs more than some honest host. It is a quarter, because a sample can have a
//!   larger share of hostile hosts than its fleet. Take 16 hosts from a fleet with 5% hostile hosts: two or
//!   more of them are hostile in 19 of 100 samples, five or more in one of 1,100.

use crate::age::{WHOLE, weight};
use crate::sample::{SAMPLE, by_rank};
use crate::{CONTRIBUTION_LIMIT, Day, Digest, HostId, Name, Program, Rank};
use profile::{BlockProfile, BuildId, FunctionKey, FunctionProfile, Looks, Origin, Profile};
use std::collections::{BTreeMap, BTreeSet};

/// Contributions of this age and more are no longer used. Days.
pub const LOST_DAYS: u32 = 30;
/// The executions to which each contribution is scaled. With [`SAMPLE`] hosts the sum stays below the limit of
/// `Profile::tame`.
const EXECUTIONS: u128 = 1 << 40;
/// The samples to which each contribution is scaled.
const SAMPLES: u128 = 1 << 20;

/// The name of a contribution, and the store's time of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Contributed {
    /// The day, by the host's clock.
    pub day: Day,
    /// The host.
    pub host: HostId,
    /// The digest of the text.
    pub digest: Digest,
    /// The store's time of the object: seconds of the Unix epoch.
    pub stored: u64,
}

impl Contributed {
    /// Returns whether its day is the day on which the store got it. A contribution for another day would count
    /// more or longer than those of other hosts.
    #[must_use]
    pub fn is_dated_right(&self) -> bool {
        self.day == Day::of(self.stored)
    }
}

/// The contributions that are used for an aggregate, and how many are not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Folded {
    /// Those that are used, each with its weight.
    pub chosen: Vec<(Contributed, u64)>,
    /// The newest day.
    pub newest: Day,
    /// Left out: the day does not fit the store's time.
    pub misdated: usize,
    /// Left out: too old.
    pub old: usize,
    /// Left out: not the newest of its host, or its host's rank is too high.
    pub unneeded: usize,
    /// The greatest rank that was used, if there were enough hosts.
    pub rank: Option<u64>,
}

impl Folded {
    /// Chooses the contributions that are used: the newest one of each of the hosts with the lowest ranks.
    #[must_use]
    pub fn choose(program: &Program, all: &[Contributed]) -> Self {
        let mut out = Self::default();
        let (right, wrong): (BTreeSet<Contributed>, BTreeSet<Contributed>) =
            all.iter().copied().partition(Contributed::is_dated_right);
        out.misdated = wrong.len();
        out.newest = right.iter().map(|c| c.day).max().unwrap_or_default();
        let mut hosts: BTreeMap<HostId, Contributed> = BTreeMap::new();
        // The later days come last.
        for c in right {
            if out.newest.0 - c.day.0 >= LOST_DAYS {
                out.old += 1;
            } else if hosts.insert(c.host, c).is_some() {
                out.unneeded += 1;
            }
        }
        let ranked = by_rank(program, hosts.keys().copied());
        out.unneeded += ranked.len().saturating_sub(SAMPLE);
        out.rank = ranked.get(SAMPLE - 1).map(|last| Rank::of_host(*last, program).0);
        let mut chosen: Vec<Contributed> =
            ranked.iter().take(SAMPLE).filter_map(|host| hosts.get(host)).copied().collect();
        chosen.sort_unstable();
        let mut weights: Vec<u64> = chosen.iter().map(|c| weight(out.newest.0 - c.day.0)).collect();
        let mut sorted = weights.clone();
        sorted.sort_unstable();
        let most = sorted.get(sorted.len() / 2).map_or(WHOLE, |median| median * 2);
        weights.iter_mut().for_each(|w| *w = (*w).min(most));
        out.chosen = chosen.into_iter().zip(weights).collect();
        out
    }

    /// Returns the digest of the set. Equal sets give equal aggregates.
    #[must_use]
    pub fn set(&self) -> Digest {
        let lines: String =
            self.chosen.iter().map(|(c, w)| format!("{} {} {w}\n", c.host, c.digest)).collect();
        Digest::of(lines.as_bytes())
    }
}

/// The fold of contributions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Aggregate {
    /// The text of the profile.
    pub text: String,
    /// The digest of the text.
    pub digest: Digest,
    /// The name of the program, if the contributions agree on one.
    pub name: Option<Name>,
}

/// Returns how many hosts may be hostile without deciding anything.
fn tolerated(hosts: usize) -> usize {
    if hosts < 3 { 0 } else { hosts.div_ceil(4) }
}

/// Returns the value that most hosts state, if more than `tolerated` state it; of several the smallest.
fn agreed<T: Ord>(values: impl Iterator<Item = T>, tolerated: usize) -> Option<T> {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let enough = counts.into_iter().rev().filter(|(_, n)| *n > tolerated);
    enough.max_by_key(|(_, n)| *n).map(|(value, _)| value)
}

/// One host's profile of one function, scaled.
struct Share<'a> {
    function: &'a FunctionProfile,
    /// The factors for its executions and for its samples, each as numerator and denominator.
    executions: [u128; 2],
    samples: [u128; 2],
}

fn scaled(n: u64, [by, over]: [u128; 2]) -> u128 {
    // Something that ran stays something that ran.
    (u128::from(n).saturating_mul(by) / over.max(1)).max(u128::from(n > 0))
}

fn sum<'a>(numbers: impl Iterator<Item = &'a u64>) -> u128 {
    numbers.map(|&n| u128::from(n)).sum()
}

impl Share<'_> {
    fn weight(&self) -> u128 {
        scaled(self.function.weight(), self.executions)
    }

    fn sampled(&self) -> u128 {
        scaled(self.function.samples, self.samples)
    }
}

/// Folds contributions: the profiles of the hosts that [`Folded::choose`] chose, each with its weight. Returns
/// `None` if no function is left.
#[must_use]
pub fn fold(program: &Program, newest: Day, hosts: &[(u64, Profile)]) -> Option<Aggregate> {
    let mut functions: BTreeMap<(&BuildId, FunctionKey), Vec<Share<'_>>> = BTreeMap::new();
    for (weight, profile) in hosts {
        let each = || profile.modules.values().flat_map(|m| m.functions.values());
        // Counted and inferred counts have different units. Each kind gets its share of the samples.
        let samples = sum(each().map(|f| &f.samples)).max(1);
        let total = |counted: bool| {
            let of = || each().filter(move |f| f.is_counted() == counted);
            let share = EXECUTIONS * u128::from(*weight) / u128::from(WHOLE) * sum(of().map(|f| &f.samples))
                / samples;
            let weight: u128 = of().map(|f| u128::from(f.weight())).sum();
            [share, weight]
        };
        let (counted, inferred) = (total(true), total(false));
        let samples = [SAMPLES * u128::from(*weight) / u128::from(WHOLE), samples];
        for (id, module) in &profile.modules {
            for (key, function) in &module.functions {
                let executions = if function.is_counted() { counted } else { inferred };
                functions.entry((id, *key)).or_default().push(Share { function, executions, samples });
            }
        }
    }
    let tolerated = tolerated(hosts.len());
    let median = |of: fn(&Profile) -> u64| {
        let mut all: Vec<u64> = hosts.iter().map(|(_, p)| of(p)).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    };
    let name = agreed(hosts.iter().flat_map(|(_, p)| Name::all_in(p)), tolerated);
    let mut out = Profile {
        exes: name.iter().map(ToString::to_string).collect(),
        runs: u64::try_from(hosts.len()).unwrap_or(u64::MAX),
        when: u64::from(newest.0) * 86_400,
        sampled: median(|p| p.sampled),
        counted: median(|p| p.counted),
        ..Profile::default()
    };
    for ((id, key), shares) in functions {
        if let Some(function) = joined(shares, tolerated) {
            out.samples = out.samples.saturating_add(function.samples);
            let module = out.modules.entry(id.clone()).or_default();
            module.functions.insert(key, function);
        }
    }
    out.tame();
    out.shrink_to(CONTRIBUTION_LIMIT);
    out.modules.retain(|_, m| !m.functions.is_empty());
    let text = out.to_string();
    let digest = Digest::of(text.as_bytes());
    out.modules.contains_key(&program.build).then_some(Aggregate { text, digest, name })
}

/// Joins what the hosts have of one function; returns `None` if too few hosts have it.
fn joined(mut shares: Vec<Share<'_>>, tolerated: usize) -> Option<FunctionProfile> {
    let is = |s: &Share<'_>| s.function.is_counted();
    let counted = shares.iter().filter(|s| is(s)).count();
    // Counted values go before inferred ones, if more than a few hosts counted; a few hosts cannot replace what
    // all others inferred.
    if counted > tolerated {
        shares.retain(is);
    } else if shares.len() - counted > tolerated {
        shares.retain(|s| !is(s));
    }
    if shares.len() <= tolerated {
        return None;
    }
    let limit = |mut all: Vec<u128>| {
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(tolerated).copied().unwrap_or(0)
    };
    let most = limit(shares.iter().map(Share::weight).collect());
    let most_samples = limit(shares.iter().map(Share::sampled).collect());
    let mut out = FunctionProfile {
        origin: shares.iter().map(|s| s.function.origin).min().unwrap_or(Origin::Inferred),
        ..FunctionProfile::default()
    };
    let mut sizes: Vec<u64> = shares.iter().map(|s| s.function.size).collect();
    sizes.sort_unstable();
    out.size = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    // Without it no other build finds the function again.
    out.shape = agreed(shares.iter().filter_map(|s| s.function.shape), tolerated);
    for share in &shares {
        add(&mut out, share, most, most_samples);
    }
    Some(out)
}

/// Adds one host's share of a function, reduced to the given weights.
fn add(out: &mut FunctionProfile, share: &Share<'_>, most: u128, most_samples: u128) {
    let f = share.function;
    let reduce = |n: u64, factor: [u128; 2], own: u128, most: u128| {
        let n = scaled(n, factor);
        let n = if own > most { n.saturating_mul(most) / own } else { n };
        u64::try_from(n).unwrap_or(u64::MAX)
    };
    let runs = |n: u64| reduce(n, share.executions, share.weight(), most);
    let samples = |n: u64| reduce(n, share.samples, share.sampled(), most_samples);
    let to = |sum: &mut u64, n: u64| *sum = sum.saturating_add(n);
    to(&mut out.samples, samples(f.samples));
    // Entries and calls are at most as many as the executions of blocks; a profile that says otherwise is wrong.
    let whole = f.weight();
    to(&mut out.entered, runs(f.entered.min(whole)));
    for (&at, block) in &f.blocks {
        let own: &mut BlockProfile = out.blocks.entry(at).or_default();
        own.last = own.last.max(block.last);
        to(&mut own.count, runs(block.count));
        for (&edge, &n) in &block.edges {
            to(own.edges.entry(edge).or_default(), runs(n.min(block.count)));
        }
    }
    for ((at, place), &n) in &f.calls {
        to(out.calls.entry((*at, place.clone())).or_default(), runs(n.min(whole)));
    }
    for (&at, &n) in &f.hits {
        to(out.hits.entry(at).or_default(), samples(n.min(f.samples)));
    }
    for (&at, site) in &f.sites {
        let own = out.sites.entry(at).or_default();
        look(&mut own.callees, &site.callees, share);
        look(&mut own.tables, &site.tables, share);
    }
}

/// The observations to which each host's at one instruction are scaled.
const LOOKS: u128 = 1 << 16;

/// Adds the observations of one host: every host's count the same, in proportion to its age.
fn look(own: &mut Looks, theirs: &Looks, share: &Share<'_>) {
    let saw: u128 = sum(theirs.saw.values());
    let all = u128::from(theirs.all).max(saw);
    let [weight, _] = share.samples;
    let factor = [LOOKS * weight / SAMPLES, all];
    let scale = |n: u64| u64::try_from(scaled(n, factor)).unwrap_or(u64::MAX);
    own.all = own.all.saturating_add(scale(u64::try_from(all).unwrap_or(u64::MAX)));
    for (place, &n) in &theirs.saw {
        let sum = own.saw.entry(place.clone()).or_default();
        *sum = sum.saturating_add(scale(n));
    }
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
