//! A profile in readable form.

use profile::{FunctionKey, FunctionProfile, Looks, ModuleProfile, Place, Profile};
use serde::Serialize;
use std::cmp::Reverse;

/// The answer of `profile show`.
#[derive(Clone, Debug, Serialize)]
pub struct ShownProfile {
    /// Programs from which it was taken.
    pub exes: Vec<String>,
    /// How many optimizations it sums up.
    pub runs: u64,
    /// The time of the latest optimization: RFC 3339, UTC.
    pub when: String,
    /// How long samples were taken.
    pub sampled_seconds: f64,
    /// How long edges were counted.
    pub counted_seconds: f64,
    /// User samples of the whole process.
    pub samples: u64,
    /// Functions that were left out for lack of room.
    pub left_out: u64,
    /// Its modules.
    pub modules: Vec<ShownModule>,
}

/// One module.
#[derive(Clone, Debug, Serialize)]
pub struct ShownModule {
    /// Its file name.
    pub name: String,
    /// Its build id.
    pub build_id: String,
    /// How many of its functions have counts.
    pub functions: usize,
    /// How many of these functions were counted, not inferred.
    pub counted: usize,
    /// Samples in these functions.
    pub samples: u64,
    /// Blocks that ran.
    pub blocks: usize,
    /// Edges that were taken.
    pub edges: usize,
    /// Indirect calls and jumps with known targets.
    pub sites: usize,
    /// Its functions with most samples, then with most block executions.
    pub top: Vec<ShownFunction>,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct ShownFunction {
    /// Its symbol's name; empty without a symbol.
    pub name: String,
    /// SVMA of its entry.
    pub at: String,
    /// Hash of its graph.
    pub hash: String,
    /// True if its edges were counted, false if they were inferred.
    pub counted: bool,
    /// How often it was entered.
    pub entered: u64,
    /// Samples in it.
    pub samples: u64,
    /// Sum of its blocks' executions.
    pub executed: u64,
    /// Blocks that ran.
    pub blocks: usize,
    /// Edges that were taken.
    pub edges: usize,
    /// Direct calls that ran.
    pub calls: usize,
    /// Indirect calls and jumps with known targets.
    pub sites: Vec<ShownSite>,
}

/// An indirect call or jump.
#[derive(Clone, Debug, Serialize)]
pub struct ShownSite {
    /// Its distance from the function's entry.
    pub at: String,
    /// How often it was observed.
    pub looks: u64,
    /// Its targets, the most frequent first.
    pub callees: Vec<ShownPlace>,
    /// The virtual tables it used, the most frequent first.
    pub tables: Vec<ShownPlace>,
}

/// A target or virtual table of an indirect call or jump.
#[derive(Clone, Debug, Serialize)]
pub struct ShownPlace {
    /// Its symbol's name if the profile has it, else its SVMA, with the module if that is another module.
    pub name: String,
    /// Its share of all observations.
    pub share: f64,
}

/// Summarizes a profile, with at most `top` functions of each module.
#[must_use]
pub fn show_profile(profile: &Profile, top: usize) -> ShownProfile {
    let seconds = |ms: u64| ms as f64 / 1e3;
    ShownProfile {
        exes: profile.exes.iter().cloned().collect(),
        runs: profile.runs,
        when: crate::base::date::rfc3339(profile.when),
        sampled_seconds: seconds(profile.sampled),
        counted_seconds: seconds(profile.counted),
        samples: profile.samples,
        left_out: profile.left_out,
        modules: profile
            .modules
            .iter()
            .map(|(id, m)| {
                let mut all: Vec<_> =
                    m.functions.iter().map(|(key, f)| function(profile, m, *key, f)).collect();
                all.sort_by_key(|f| Reverse((f.samples, f.executed)));
                ShownModule {
                    name: m.name.clone(),
                    build_id: id.to_string(),
                    functions: all.len(),
                    counted: all.iter().filter(|f| f.counted).count(),
                    samples: all.iter().fold(0, |sum: u64, f| sum.saturating_add(f.samples)),
                    blocks: all.iter().map(|f| f.blocks).sum(),
                    edges: all.iter().map(|f| f.edges).sum(),
                    sites: all.iter().map(|f| f.sites.len()).sum(),
                    top: all.into_iter().take(top).collect(),
                }
            })
            .collect(),
    }
}

fn function(profile: &Profile, m: &ModuleProfile, key: FunctionKey, f: &FunctionProfile) -> ShownFunction {
    ShownFunction {
        name: f.name.clone(),
        at: key.at.to_string(),
        hash: format!("{:016x}", key.hash),
        counted: f.is_counted(),
        entered: f.entered,
        samples: f.samples,
        executed: f.weight(),
        blocks: f.blocks.len(),
        edges: f.blocks.values().map(|b| b.edges.len()).sum(),
        calls: f.calls.len(),
        sites: f
            .sites
            .iter()
            .map(|(at, site)| ShownSite {
                at: format!("{}{:#x}", if *at < 0 { '-' } else { '+' }, at.unsigned_abs()),
                looks: site.callees.all.max(site.tables.all),
                callees: places(profile, m, &site.callees),
                tables: places(profile, m, &site.tables),
            })
            .collect(),
    }
}

fn places(profile: &Profile, own: &ModuleProfile, looks: &Looks) -> Vec<ShownPlace> {
    let mut saw: Vec<(&Place, u64)> = looks.saw.iter().map(|(place, &n)| (place, n)).collect();
    saw.sort_by_key(|&(place, n)| (Reverse(n), place));
    let name = |place: &Place| {
        let module = place.module.as_ref().map_or(Some(own), |id| profile.modules.get(id));
        let same = FunctionKey { at: place.at, hash: 0 }..=FunctionKey { at: place.at, hash: u64::MAX };
        let known = module.and_then(|m| m.functions.range(same).map(|(_, f)| f.name.as_str()).next());
        known.filter(|n| !n.is_empty()).map_or_else(|| place.to_string(), str::to_owned)
    };
    let share = |n: u64| (n as f64 / looks.all.max(1) as f64 * 1e3).round() / 1e3;
    saw.into_iter().map(|(place, n)| ShownPlace { name: name(place), share: share(n) }).collect()
}
