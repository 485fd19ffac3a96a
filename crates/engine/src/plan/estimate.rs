//! The first counts of functions: inferred from samples, or from the CPU's records of taken branches.

use crate::plan::candidate::{Candidate, Counted, Measured, Others, SiteTargets};
use crate::plan::candidates::Candidates;
use crate::plan::samples::Samples;
use crate::plan::stacks::{self, Originals};
use crate::plan::targets::ranked;
use addr::Avma;
use code::Cfg;
use iced_x86::FlowControl;
use profile::{BlockIndex, BlockSamples, Counts, Rejected};
use rustc_hash::FxHashMap;

/// What branch stacks contributed.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct StacksReport {
    /// Branch stacks with usable records.
    pub stacks: u64,
    /// Functions that have counts from them.
    pub functions: usize,
    /// Runs of code that were left out: records were lost or the code had changed.
    pub rejected_runs: u64,
    /// Branches that were left out for the same reasons.
    pub rejected_branches: u64,
}

impl StacksReport {
    fn new(stacks: u64, functions: usize, rejected: &Rejected) -> Self {
        let &Rejected { backward, crossing, broken, branches, elsewhere: _ } = rejected;
        let rejected_runs = backward.saturating_add(crossing).saturating_add(broken);
        Self { stacks, functions, rejected_runs, rejected_branches: branches }
    }
}

/// Returns the functions with counts that are inferred from samples, or without counts for a random layout.
pub(crate) fn first(
    candidates: Candidates<Candidate>,
    samples: &Samples,
    shuffle: Option<u64>,
) -> Candidates<Measured> {
    match shuffle {
        Some(_) => unknown(candidates),
        None => infer(candidates, samples),
    }
}

/// Returns the functions without counts.
pub(crate) fn unknown(candidates: Candidates<Candidate>) -> Candidates<Measured> {
    candidates.map(|chosen| chosen.into_iter().map(Measured::unknown).collect())
}

/// Returns the functions with counts that are inferred from samples.
pub(crate) fn infer(candidates: Candidates<Candidate>, samples: &Samples) -> Candidates<Measured> {
    let hits = hits(candidates.chosen.iter().map(|c| &c.analysed.cfg), samples);
    candidates.map(|chosen| {
        let infer = |(i, candidate): (usize, Candidate)| {
            let counts = inferred(&candidate.analysed.cfg, hits.of(i));
            Measured { counts, ..Measured::unknown(candidate) }
        };
        chosen.into_iter().enumerate().map(infer).collect()
    })
}

/// Returns the functions with counts from the CPU's records of taken branches. A function without such
/// records gets counts from samples.
pub(crate) fn by_stacks(
    candidates: Candidates<Candidate>,
    samples: &Samples,
) -> (Candidates<Measured>, StacksReport) {
    let got = {
        let cfgs: Vec<&Cfg> = candidates.chosen.iter().map(|c| &c.analysed.cfg).collect();
        let originals = match samples.clones.is_empty() {
            true => Originals::default(),
            false => Originals::of(&cfgs),
        };
        stacks::carried_back(&samples.stacks, &samples.clones, &originals).counts(&cfgs)
    };
    let report = StacksReport::new(samples.stacks.stacks(), candidates.chosen.len(), &got.rejected);
    let hits = hits(candidates.chosen.iter().map(|c| &c.analysed.cfg), samples);
    let mut by_site: FxHashMap<Avma, Vec<(Avma, u64)>> = FxHashMap::default();
    for (call, n) in &got.calls {
        by_site.entry(call.from).or_default().push((call.to, *n));
    }
    let mut measure = |(i, (candidate, counts)): (usize, (Candidate, Counts))| {
        let cfg = &candidate.analysed.cfg;
        let counts = if counts.has_run() { counts } else { inferred(cfg, hits.of(i)) };
        let targets = seen_targets(cfg, &mut by_site);
        Measured { counts, targets, ..Measured::unknown(candidate) }
    };
    let measured = |chosen: Vec<Candidate>| {
        chosen.into_iter().zip(got.functions).enumerate().map(&mut measure).collect()
    };
    (candidates.map(measured), report)
}

/// Returns the destinations of a function's indirect calls and jumps, and removes them from `by_site`.
fn seen_targets(cfg: &Cfg, by_site: &mut FxHashMap<Avma, Vec<(Avma, u64)>>) -> Vec<SiteTargets> {
    let indirect = cfg.numbered_insts().filter(|(_, i)| {
        matches!(i.decoded.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch)
    });
    indirect
        .filter_map(|(inst, i)| {
            let callees = ranked(by_site.remove(&i.at)?);
            Some(SiteTargets { inst, callees, bases: Vec::new(), others: Others::default() })
        })
        .collect()
}

fn inferred(cfg: &Cfg, hits: &[u64]) -> Counts {
    profile::infer(cfg, &profile::weights(cfg, hits))
}

/// Returns the functions with their samples by block. `stored` returns the part of a function's counts that
/// a profile keeps.
pub(crate) fn counted(
    candidates: Candidates<Measured>,
    samples: &Samples,
    stored: impl Fn(Measured) -> Measured,
) -> Candidates<Counted> {
    let hits = hits(candidates.chosen.iter().map(|c| &c.analysed.cfg), samples);
    candidates.map(|chosen| {
        let counted = |(i, c): (usize, Measured)| {
            let hits = if samples.ips.is_empty() { Vec::new() } else { hits.of(i).to_vec() };
            Counted { measured: stored(c), hits }
        };
        chosen.into_iter().enumerate().map(counted).collect()
    })
}

/// Returns samples by function, in the order of `cfgs`, and block.
fn hits<'a>(cfgs: impl Iterator<Item = &'a Cfg>, samples: &Samples) -> BlockSamples {
    let index = BlockIndex::new(&cfgs.collect::<Vec<_>>());
    let mut hits = BlockSamples::new(&index);
    for &ip in &samples.ips {
        hits.add(&index, ip);
    }
    hits
}
