//! Which functions are cloned, which of their blocks, and in which order.

use crate::analyse::program::{FuncId, Program};
use crate::base::parallel;
use crate::base::passes::{Pass, Style};
use crate::plan::candidate::{Candidate, Others, SiteTargets};
use crate::plan::rare;
use crate::plan::samples::Samples;
use crate::plan::shuffle::Rng;
use crate::plan::split;
use crate::plan::stacks::{self, Originals};
use crate::plan::targets::ranked;
use crate::{Error, OptimizeOptions};
use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg, Dest, Refusal, Term};
use iced_x86::FlowControl;
use layout::{Edge, EdgeKind, Graph};
use profile::{BlockIndex, BlockSamples, Counts, Coverage, Rejected};
use rustc_hash::{FxHashMap, FxHashSet};

/// This many functions are analysed before a check whether they are enough.
pub(crate) const AT_ONCE: usize = 1024;
/// The largest amount of code that a shuffle clones at once. Bytes. Cloning one byte takes some 200 bytes of
/// memory. Clones with their tables take three times the room of their originals.
const SHUFFLED: u64 = 16 << 20;

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

/// The result of choosing.
#[derive(Debug, Default)]
pub struct Candidates {
    /// The functions to be cloned, sorted by id.
    pub chosen: Vec<Candidate>,
    /// Hot functions that are left alone, with their samples and the reason.
    pub refused: Vec<(FuncId, u64, Refusal)>,
    /// Samples by function, for all functions with any.
    pub samples: FxHashMap<FuncId, u64>,
    /// Functions that a shuffle left out.
    pub not_drawn: usize,
}

/// Counts samples by function.
#[must_use]
pub fn by_function(program: &Program<'_>, samples: &Samples) -> FxHashMap<FuncId, u64> {
    let mut ips = samples.ips.clone();
    ips.sort_unstable();
    let mut by: FxHashMap<FuncId, u64> = FxHashMap::default();
    for same in ips.chunk_by(|a, b| a == b) {
        if let Some(f) = same.first().and_then(|&ip| program.find(ip)) {
            *by.entry(f).or_default() += same.len() as u64;
        }
    }
    by
}

/// Returns the functions named on the command line: by symbol, or by a process address inside them.
///
/// # Errors
/// Returns the name for which there is no function.
pub fn named<'a>(program: &Program<'_>, names: &'a [String]) -> Result<FxHashSet<FuncId>, &'a str> {
    let mut found = FxHashSet::default();
    for name in names {
        let before = found.len();
        match name.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok()) {
            Some(at) => found.extend(program.find(Avma(at))),
            None => found.extend(program.functions().filter(|&f| program.name(f) == *name)),
        }
        if found.len() == before {
            return Err(name);
        }
    }
    Ok(found)
}

/// Returns whether the options allow the rebuild of a function.
pub(crate) fn may_be_rebuilt(program: &Program<'_>, f: FuncId, options: &OptimizeOptions) -> bool {
    options.passes.has(Pass::Libraries) || program.module_image(f).kind == image::ModuleKind::Main
}

/// Chooses functions by samples, or all functions when shuffling. With `only`, chooses among the given
/// functions.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn choose(
    program: &Program<'_>,
    samples: &Samples,
    options: &OptimizeOptions,
    only: Option<&FxHashSet<FuncId>>,
) -> Result<Candidates, Error> {
    let by = by_function(program, samples);
    let mut wanted: Vec<FuncId> = match options.shuffle {
        Some(_) => program.functions().filter(|&f| program.module(f).refused.is_none()).collect(),
        None => hot(&by, led_to(program, samples)),
    };
    if let Some(only) = only {
        wanted.retain(|f| only.contains(f));
    }
    let all = wanted.len();
    if let Some(seed) = options.shuffle {
        draw(&mut wanted, seed, SHUFFLED, |&f| program.extent(f).parts.iter().map(AvmaRange::len).sum());
    }
    wanted.sort_unstable();
    let mut out = Candidates { not_drawn: all - wanted.len(), ..Candidates::default() };
    let enough = |out: &Candidates| options.max_functions.is_some_and(|max| out.chosen.len() >= max);
    for some in wanted.chunks(AT_ONCE) {
        options.interrupt.check()?;
        for (&id, analysed) in some.iter().zip(parallel::map(some, |&id| program.analyse(id))) {
            if enough(&out) {
                break;
            }
            let samples = by.get(&id).copied().unwrap_or(0);
            match analysed {
                Ok(analysed) => out.chosen.push(Candidate::new(id, analysed, samples)),
                Err(reason) => out.refused.push((id, samples, reason)),
            }
        }
    }
    out.samples = by;
    Ok(out)
}

impl Candidates {
    /// Gives each candidate counts, inferred from samples.
    pub fn infer(&mut self, samples: &Samples) {
        let hits = hits(&self.chosen, samples);
        for (i, c) in self.chosen.iter_mut().enumerate() {
            let cfg = &c.analysed.cfg;
            c.counts = profile::infer(cfg, &profile::weights(cfg, hits.of(i)));
        }
    }

    /// Gives each candidate counts from the CPU's records of taken branches. A function without such records
    /// gets counts from samples.
    pub fn count_by_stacks(&mut self, samples: &Samples) -> StacksReport {
        let (cfgs, got) = {
            let cfgs: Vec<&Cfg> = self.chosen.iter().map(|c| &c.analysed.cfg).collect();
            let originals = match samples.clones.is_empty() {
                true => Originals::default(),
                false => Originals::of(&cfgs),
            };
            let stacks = stacks::carried_back(&samples.stacks, &samples.clones, &originals);
            (cfgs.len(), stacks.counts(&cfgs))
        };
        let hits = hits(&self.chosen, samples);
        let mut by_site: FxHashMap<Avma, Vec<(Avma, u64)>> = FxHashMap::default();
        for (call, n) in &got.calls {
            by_site.entry(call.from).or_default().push((call.to, *n));
        }
        for (i, (c, counts)) in self.chosen.iter_mut().zip(got.functions).enumerate() {
            let cfg = &c.analysed.cfg;
            let none = counts.blocks.iter().all(|&n| n == 0);
            c.counts = if none { profile::infer(cfg, &profile::weights(cfg, hits.of(i))) } else { counts };
            let indirect = (0u32..).zip(&cfg.insts).filter(|(_, i)| {
                matches!(i.decoded.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch)
            });
            c.targets = indirect
                .filter_map(|(inst, i)| {
                    let callees = ranked(by_site.remove(&i.at)?);
                    Some(SiteTargets { inst, callees, bases: Vec::new(), others: Others::default() })
                })
                .collect();
        }
        StacksReport::new(samples.stacks.stacks(), cfgs, &got.rejected)
    }

    /// Chooses the order of each candidate's blocks and which of them are hot: by counts, or at random.
    pub fn order(&mut self, samples: &Samples, style: Style) {
        // Leftovers of counting, which may have ended early.
        for c in &mut self.chosen {
            c.counters.clear();
            c.watches.clear();
        }
        match style.shuffle {
            Some(seed) => random_orders(&mut self.chosen, seed),
            None => {
                if !samples.ips.is_empty() {
                    let hits = hits(&self.chosen, samples);
                    self.chosen.iter_mut().enumerate().for_each(|(i, c)| c.hits = hits.of(i).to_vec());
                }
                measured_orders(&mut self.chosen, style.passes.has(Pass::Blocks));
                if style.passes.has(Pass::Split) {
                    split::split(&mut self.chosen);
                }
            }
        }
    }
}

/// Keeps items with at most `most` bytes in all; the seed draws them.
fn draw<T: Ord>(all: &mut Vec<T>, seed: u64, most: u64, size: impl Fn(&T) -> u64) {
    all.sort_unstable();
    if all.iter().map(&size).fold(0, u64::saturating_add) <= most {
        return;
    }
    Rng::new(seed).shuffle(all);
    let mut sum = 0u64;
    let fits = |f: &T| {
        sum = sum.saturating_add(size(f));
        sum <= most
    };
    let kept = all.iter().map(fits).take_while(|fits| *fits).count();
    all.truncate(kept);
}

/// Returns the functions with samples: the cold ones take little room and their clones make calls direct.
/// Adds the functions that are known to have run otherwise.
fn hot(by: &FxHashMap<FuncId, u64>, ran: FxHashSet<FuncId>) -> Vec<FuncId> {
    let mut ids: Vec<FuncId> = by.keys().copied().collect();
    ids.sort_unstable();
    let counts: Vec<u64> = ids.iter().map(|f| by[f]).collect();
    let coverage = Coverage { per_10k: 9_990, at_least: 1 };
    let sampled = profile::choose(&counts, coverage).into_iter().map(|i| ids[i]);
    sampled.chain(ran.into_iter().filter(|f| !by.contains_key(f))).collect()
}

/// Returns the functions that recorded branches led to.
fn led_to(program: &Program<'_>, samples: &Samples) -> FxHashSet<FuncId> {
    let firsts = samples.stacks.runs().into_iter().map(|(run, _)| samples.original(run.first));
    firsts.filter_map(|at| program.find(at)).filter(|&f| program.module(f).refused.is_none()).collect()
}

/// Orders blocks at random behind the entry. Some blocks are left out, so that edges to the original are
/// taken too. A random number of blocks is hot, possibly none or all.
fn random_orders(chosen: &mut [Candidate], seed: u64) {
    let mut rng = Rng::new(seed);
    for c in chosen {
        let others = c.analysed.cfg.block_ids().skip(1);
        let mut rest: Vec<BlockId> = others.filter(|_| rng.below(8) != 0).collect();
        rng.shuffle(&mut rest);
        c.order = [BlockId(0)].into_iter().chain(rest).collect();
        c.hot = rng.below(c.order.len() + 1);
    }
}

/// Returns samples by candidate and block.
fn hits(chosen: &[Candidate], samples: &Samples) -> BlockSamples {
    let index = BlockIndex::new(&chosen.iter().map(|c| &c.analysed.cfg).collect::<Vec<_>>());
    let mut hits = BlockSamples::new(&index);
    for &ip in &samples.ips {
        hits.add(&index, ip);
    }
    hits
}

/// Orders the blocks that run, by counts or as in the original.
fn measured_orders(chosen: &mut [Candidate], by_counts: bool) {
    for c in chosen {
        let cfg = &c.analysed.cfg;
        let runs = if c.counted { ran(&c.counts, &c.hits) } else { perhaps_hot(cfg, &c.counts, &c.hits) };
        let order = if by_counts { order_blocks(cfg, &c.counts) } else { cfg.block_ids().collect() };
        c.order = order.into_iter().filter(|b| runs.get(b.index()).copied().unwrap_or(false)).collect();
        c.hot = c.order.len();
    }
}

/// Returns for each block whether a count or a sample shows that it ran.
fn ran(counts: &Counts, samples: &[u64]) -> Vec<bool> {
    let sampled = |b| samples.get(b).is_some_and(|&s: &u64| s > 0);
    counts.blocks.iter().enumerate().map(|(b, &n)| b == 0 || n > 0 || sampled(b)).collect()
}

/// Returns for each block whether it may run, judged by inference from few samples.
fn perhaps_hot(cfg: &Cfg, counts: &Counts, samples: &[u64]) -> Vec<bool> {
    let rare = rare::rare_blocks(cfg);
    profile::hot_blocks(cfg, counts, samples).into_iter().zip(rare).map(|(hot, rare)| hot || !rare).collect()
}

/// Returns all blocks, and how many of them are hot. Blocks that ran come first, in their best order. If no
/// block but the entry is known to have run, all blocks are hot, in the original order.
pub fn all_blocks(cfg: &Cfg, counts: &Counts) -> (Vec<BlockId>, usize) {
    let (mut order, cold): (Vec<BlockId>, Vec<BlockId>) =
        order_blocks(cfg, counts).into_iter().partition(|&b| b == BlockId(0) || counts.block(b) > 0);
    if order.len() <= 1 {
        return (cfg.block_ids().collect(), cfg.blocks.len());
    }
    let hot = order.len();
    order.extend(cold);
    (order, hot)
}

/// Returns all blocks in ext-TSP order.
fn order_blocks(cfg: &Cfg, counts: &Counts) -> Vec<BlockId> {
    let sizes: Vec<u64> = cfg.blocks.iter().map(|b| b.range.len()).collect();
    let mut edges = Vec::new();
    for (from, block) in cfg.blocks.iter().enumerate() {
        let kind = match block.term {
            Term::Cond { .. } | Term::CondShort { .. } => EdgeKind::Conditional,
            Term::Switch { .. } => EdgeKind::Indirect,
            _ => EdgeKind::Unconditional,
        };
        let mut counts = counts.edges.get(from).into_iter().flatten();
        cfg.successors(BlockId(u32::try_from(from).unwrap_or(u32::MAX)), |dest| {
            let count = counts.next().copied().unwrap_or(0);
            if let Dest::Block(to) = dest {
                edges.push(Edge { from, to: to.index(), count, kind });
            }
        });
    }
    let graph = Graph { sizes: &sizes, counts: &counts.blocks, edges: &edges };
    layout::ext_tsp(&graph).into_iter().filter_map(|b| u32::try_from(b).ok().map(BlockId)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::passes::Passes;
    use crate::plan::test_candidate::candidate;

    #[test]
    fn blocks_that_ran_come_first_and_none_is_missing() {
        let mut c = candidate(1, &[], &[100_000, 1, 99_999, 0], true, 9);
        c.counts.edges = vec![vec![99_999, 1], Vec::new(), vec![99_999, 0], Vec::new()];
        let ids = |(order, hot): (Vec<BlockId>, usize)| (order.iter().map(|b| b.0).collect::<Vec<_>>(), hot);
        assert_eq!(ids(all_blocks(&c.analysed.cfg, &c.counts)), (vec![0, 2, 1, 3], 3));
        assert_eq!(ids(all_blocks(&c.analysed.cfg, &Counts::default())), (vec![0, 1, 2, 3], 4));
    }

    #[test]
    fn a_draw_respects_its_limit_and_depends_on_the_seed() {
        let drawn = |seed, most| {
            let mut all: Vec<u64> = (1..=100).collect();
            draw(&mut all, seed, most, |n| *n);
            all.sort_unstable();
            all
        };
        assert_eq!(drawn(1, 5050), (1..=100).collect::<Vec<_>>());
        let some = drawn(1, 1000);
        assert!((900..=1000).contains(&some.iter().sum::<u64>()), "{some:?}");
        assert_eq!((some == drawn(1, 1000), some == drawn(2, 1000)), (true, false));
    }

    #[test]
    fn orders_without_some_passes() {
        // b2 runs always, b3 never, b1 rarely.
        let order = |left_out: &[Pass]| {
            let mut c = candidate(1, &[], &[100_000, 1, 99_999, 0], true, 9);
            c.counts.edges = vec![vec![99_999, 1], Vec::new(), vec![99_999, 0], Vec::new()];
            let mut all = Candidates { chosen: vec![c], ..Candidates::default() };
            let style = Style { passes: Passes::without(left_out), ..Style::default() };
            all.order(&Samples::default(), style);
            let c = &all.chosen[0];
            (c.order.iter().map(|b| b.0).collect::<Vec<_>>(), c.hot)
        };
        assert_eq!(order(&[]), (vec![0, 2, 1], 2));
        assert_eq!(order(&[Pass::Blocks]), (vec![0, 2, 1], 2), "split all the same");
        assert_eq!(order(&[Pass::Split]), (vec![0, 2, 1], 3));
        assert_eq!(order(&[Pass::Blocks, Pass::Split]), (vec![0, 1, 2], 3));
    }
}
