//! Exact counts without a PMU: hot functions run for a moment as clones that count.
//!
//! Each candidate is cloned whole, in its own block order, with counters on the edges outside a maximum spanning tree;
//! the clones are installed, run, and taken out again; all other counts follow from the counters. Functions that the
//! counted code calls often though no sample fell into them are candidates of the next round.

use crate::candidates::{self, Candidate, Candidates, Others, SiteTargets};
use crate::claim::Claim;
use crate::ground::{Ground, Wanted};
use crate::gs::{GsUse, Watch};
use crate::lock::TargetLock;
use crate::optimize::on_ground;
use crate::passes::{Passes, Style};
use crate::program::{FuncId, Program};
use crate::shuffle::Rng;
use crate::targets::{self, Seen, SeenSite, Site, ranked};
use crate::walk;
use crate::{
    Error, Interrupt, OptimizeOptions, Progress, Target, calls, file_text, forked, late_bound, parallel,
    redirects, restore, reuse,
};
use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg, Liveness, Refusal, Term};
use emit::Counter;
use profile::{CounterPlan, Counts};
use rustc_hash::{FxHashMap, FxHashSet};
use splice::Policy;
use std::time::{Duration, Instant};
use tracee::{Pid, Process};

/// Rounds at most: the second takes in what samples missed, the third what only those call.
const ROUNDS: usize = 3;
/// A callee that was not sampled is counted too if it is called this often in a second.
const OFTEN: u64 = 20;
/// No round takes in more functions than this.
const MOST_CALLEES: usize = 6000;

/// Bytes of a counter.
const COUNTER: u32 = 8;

/// What counting came to.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct CountingReport {
    /// How often clones with counters were installed.
    pub rounds: usize,
    /// Functions whose counts are known.
    pub functions: usize,
    /// Counters in them.
    pub counters: usize,
    /// Functions whose counters contradict each other a little: threads were inside when they came and went.
    pub inexact: usize,
    /// Time for which they counted.
    pub seconds: f64,
    /// Why nothing was counted, so that counts were inferred from samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl CountingReport {
    fn left_out(found: GsUse) -> Self {
        let why = format!("some code in it {}, which counters need", found.what());
        Self { left_out: Some(why), ..Self::default() }
    }
}

/// What was counted in one function.
#[derive(Clone, Debug)]
pub struct CountedFunction {
    /// Name, or module and stated address.
    pub name: String,
    /// Its graph.
    pub cfg: Cfg,
    /// How often its blocks and edges ran.
    pub counts: Counts,
    /// Whether its counters determine all counts and contradict nothing, and all of it ran in its clone.
    pub exact: bool,
}

/// Counts what a process does while `work` runs, and leaves it as [`crate::undo`] does. For tests: `work` is called once a
/// round, with the clones that count in force. Functions are chosen as [`crate::optimize`] chooses them; of its options the
/// time of counting has no meaning here.
///
/// # Errors
/// Those of [`crate::optimize`].
pub fn count_during(
    pid: Pid,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
    work: &mut dyn FnMut(),
) -> Result<Vec<CountedFunction>, Error> {
    let mut run = |look: &mut Look<'_>| {
        work();
        look();
    };
    let (process, _lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    restore::end_counting(pid)?;
    let target = Target::open(pid)?;
    let counted = on_ground(&target, options, progress, |ground, mut candidates, _, progress| {
        count(ground, &mut candidates, Duration::ZERO, options, &mut run, progress)?;
        let counted = candidates.chosen.into_iter().filter(|c| c.counted);
        Ok(counted
            .map(|c| CountedFunction {
                name: ground.program.name(c.id),
                cfg: c.analysed.cfg,
                counts: c.counts,
                exact: c.exact,
            })
            .collect())
    });
    restore::or_restore(&target, false, counted)
}

/// Lets a target run while its clones count, and calls what it is given now and then.
pub(crate) type Run<'a> = dyn FnMut(&mut Look<'_>) + 'a;
/// Looks at a target whose clones count; `false` where that is to end.
pub(crate) type Look<'a> = dyn FnMut() -> bool + 'a;

/// Lets a target run for a while.
pub(crate) fn wait(process: &Process, time: Duration, interrupt: &Interrupt, look: &mut Look<'_>) {
    let begun = Instant::now();
    let goes_on = || process.is_alive() && !interrupt.is_wanted();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|_| goes_on()) {
        std::thread::sleep(left.min(Duration::from_millis(50)));
        if !look() {
            break;
        }
    }
}

/// Counts what the candidates do while `run` lets them, in rounds of `time`, and adds the functions that they call often.
/// With a seed the clones that count lie in random order.
///
/// # Errors
/// Those of an installation and of taking it out.
pub(crate) fn count(
    ground: &Ground<'_, '_>,
    candidates: &mut Candidates,
    time: Duration,
    options: &OptimizeOptions,
    run: &mut Run<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<CountingReport, Error> {
    let mut report = CountingReport::default();
    if ground.target.installed.as_ref().is_some_and(reuse::is_full_of_counting) {
        let why = "clones that count have taken their half of the room for clones".to_owned();
        report.left_out = Some(why);
        return Ok(report);
    }
    let mut watch = Watch::new(&ground.target.process, ground.program.image());
    if let Some(found) = ground.program.gs_use().or_else(|| before(ground, &mut watch)) {
        return Ok(CountingReport::left_out(found));
    }
    let mut known: FxHashSet<FuncId> = candidates.refused.iter().map(|r| r.0).collect();
    known.extend(walk::kept(ground.program, &ground.lookup));
    let samples: u64 = candidates.samples.values().sum();
    let mut from = 0;
    for _ in 0..ROUNDS {
        progress(Progress::Counting { functions: candidates.chosen.len() - from });
        for c in &mut candidates.chosen[from..] {
            c.late_bound = late_bound::while_it_counts(c, samples);
        }
        let (before, new) = candidates.chosen.split_at_mut(from);
        let counted = round(ground, new, before, options.style(), &mut watch, run, &mut report);
        let why = match counted {
            Err(e) if is_reason(&e) => Some(e.to_string()),
            counted => counted?.map(|found| CountingReport::left_out(found).left_out.unwrap_or_default()),
        };
        if let Some(why) = why {
            restore::restore(ground.target.process.pid(), false)?;
            // What only counting brought in has no samples.
            candidates.chosen.truncate(if from == 0 { candidates.chosen.len() } else { from });
            report.left_out = Some(why);
            break;
        }
        options.interrupt.check()?;
        known.extend(candidates.chosen[from..].iter().map(|c| c.id));
        let is_new = |f| !known.contains(&f) && options.takes(ground.program, f);
        let callees = callees(ground.program, &candidates.chosen[from..], &is_new, time);
        from = candidates.chosen.len();
        let analyse = |&id: &FuncId| {
            let analysed = ground.program.analyse(id)?;
            let foreign = file_text::is_foreign(ground.program, &ground.files, id, &analysed);
            if foreign { Err(Refusal::ForeignChange) } else { Ok(analysed) }
        };
        for (&id, analysed) in callees.iter().zip(parallel::map(&callees, analyse)) {
            known.insert(id);
            match analysed {
                Ok(analysed) => candidates.chosen.push(Candidate::new(id, analysed, 0)),
                Err(reason) => candidates.refused.push((id, 0, reason)),
            }
        }
        if from == candidates.chosen.len() {
            break;
        }
    }
    // What came last was not counted.
    if report.left_out.is_none() {
        candidates.chosen.truncate(from);
    }
    // A profile keeps no order.
    candidates.chosen.sort_by_key(|c| c.id);
    Ok(report)
}

/// What code may do to its thread's GS base that came since the program was read, or is of no module.
fn before(ground: &Ground<'_, '_>, watch: &mut Watch<'_>) -> Option<GsUse> {
    if let Some(installed) = &ground.target.installed {
        watch.leave(installed.anchor.regions.iter().map(|r| r.text));
    }
    watch.look()
}

/// Whether nothing can be counted for this reason, so that counts are inferred.
fn is_reason(e: &Error) -> bool {
    use splice::Error as E;
    let by_splice = |e: &E| {
        matches!(
            e,
            E::GsBaseInUse { .. } | E::NoCounterMemory { .. } | E::CountsForGood | E::MapDenied { .. }
        )
    };
    reuse::no_room(e) || matches!(e, Error::Splice(e) if by_splice(e))
}

/// Counts these candidates once; `callers` are those of earlier rounds. Returns what code may do to its thread's GS base that
/// came meanwhile.
fn round(
    ground: &Ground<'_, '_>,
    chosen: &mut [Candidate],
    callers: &[Candidate],
    style: Style,
    watch: &mut Watch<'_>,
    run: &mut Run<'_>,
    report: &mut CountingReport,
) -> Result<Option<GsUse>, Error> {
    let mut offset = 0;
    let met: FxHashSet<FuncId> = chosen.iter().chain(callers).map(|c| c.id).collect();
    let only_called = |c: &Candidate| is_only_called(ground.program, c.id, &met);
    let only_called: Vec<bool> = chosen.iter().map(only_called).collect();
    let plans: Vec<CounterPlan> = chosen
        .iter_mut()
        .zip(&only_called)
        .map(|(c, &only_called)| prepare(ground.program, c, only_called, &mut offset))
        .collect();
    let counted = offset;
    let sites: Vec<Vec<Site>> = chosen.iter_mut().map(|c| watch_calls(c, &mut offset)).collect();
    if let Some(seed) = style.shuffle {
        // Other orders than those that come after it.
        let mut rng = Rng::new(seed ^ 0xc0);
        chosen.iter_mut().filter_map(|c| c.order.get_mut(1..)).for_each(|rest| rng.shuffle(rest));
    }
    let target = Target::open(ground.target.process.pid())?;
    let (counters, watched) = (0..counted, counted..offset);
    // All that leads into clones, whatever is left out afterwards: what does not come in is not counted.
    let style = Style { passes: Passes::default(), ..style };
    let wanted = Wanted {
        chosen,
        callers,
        style,
        counters: Some(&(counters.start..watched.end)),
        notes: &|_| Vec::new(),
    };
    let placed = ground.install(&target, wanted)?;
    let area = placed.report.counters.ok_or_else(|| Error::Build("clones that count nowhere".to_owned()))?;
    let begun = Instant::now();
    let anchor = Target::open(target.process.pid())?.installed.map(|i| i.anchor);
    watch.leave(anchor.iter().flat_map(|a| a.regions.iter().map(|r| r.text)));
    let (mut found, since) = (None, forked::now());
    let all_sites: Vec<Site> = sites.iter().flatten().copied().collect();
    let mut seen = Seen::default();
    run(&mut || {
        // A look that fails is one less.
        for words in splice::counter_words(&target.process, &area, watched.clone()).into_iter().flatten() {
            seen.take(&all_sites, counted, &words, &target.process);
        }
        found = found.or_else(|| watch.look());
        found.is_none()
    });
    let target = Target::open(ground.target.process.pid())?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid: target.process.pid() })?;
    let splice::Ended { report: undone, own_base } =
        splice::end_counting(&target.process, installed, &Policy::default())?;
    report.seconds += begun.elapsed().as_secs_f64();
    let left = undone.foreign.len();
    if left > 0 {
        return Err(Error::UndoIncomplete { pid: target.process.pid(), left });
    }
    if let Some(since) = since {
        // A tick may have been over when the first of them was born.
        forked::end_counting(target.process.pid(), installed.anchor.at, since.saturating_sub(2));
    }
    let values = splice::counters(&target.process, &area, counters)?;
    splice::release_counters(&target.process, &installed.anchor)?;
    if let Some((tid, base)) = own_base {
        return Err(splice::Error::GsBaseInUse { tid, base }.into());
    }
    // A virtual table leads to the clones that count.
    let originals: FxHashMap<Avma, Avma> = placed
        .built
        .cloned
        .iter()
        .map(|(f, clone)| (clone.start(), ground.program.extent(*f).entry))
        .collect();
    let original = |at| originals.get(&at).copied().unwrap_or(at);
    let mut seen = seen.sites();
    for (c, sites) in chosen.iter_mut().zip(&sites) {
        let of_site = |(site, seen): (&Site, SeenSite)| {
            let mut callees: FxHashMap<Avma, u64> = FxHashMap::default();
            seen.targets.into_iter().for_each(|(at, n)| *callees.entry(original(at)).or_default() += n);
            let (callees, bases) = (ranked(callees), ranked(seen.bases));
            SiteTargets { inst: site.inst, callees, bases, others: Others::default() }
        };
        c.targets = sites.iter().zip(seen.by_ref().take(sites.len())).map(of_site).collect();
    }

    let cloned: FxHashSet<FuncId> = placed.built.cloned.iter().map(|c| c.0).collect();
    let mut values = &values[..];
    for ((c, plan), only_called) in chosen.iter_mut().zip(&plans).zip(only_called) {
        let (own, rest) = values.split_at(c.counters.len().min(values.len()));
        values = rest;
        if cloned.contains(&c.id) {
            let solved = plan.solve(own);
            let leaves = leaves(&c.analysed.cfg);
            c.counts = solved.counts;
            for b in &leaves {
                let mut degree = 0;
                c.analysed.cfg.successors(*b, |_| degree += 1);
                c.counts.edges[b.index()] = vec![0; degree];
            }
            c.counted = true;
            c.exact = solved.exact && leaves.is_empty() && (only_called || c.sites.complete);
            report.functions += 1;
            report.counters += own.len();
            report.inexact += usize::from(!solved.exact);
        }
    }
    report.rounds += 1;
    Ok(found)
}

/// Gives a candidate all its blocks, those first that ran by what is known so far, and its counters.
fn prepare(program: &Program<'_>, c: &mut Candidate, only_called: bool, offset: &mut u32) -> CounterPlan {
    let cfg = &c.analysed.cfg;
    let liveness = Liveness::compute(cfg);
    let leaves = leaves(cfg);
    // Redirects lead into the middle of a clone: what control has passed before is counted behind that.
    c.sites = redirects::countable_sites(program, c.id, cfg, only_called);
    let countable = |point| c.sites.countable(point, cfg, &liveness);
    let plan = if leaves.is_empty() {
        CounterPlan::new(cfg, &c.counts, &countable)
    } else {
        let mut left = cfg.clone();
        leaves.iter().for_each(|b| left.blocks[b.index()].term = Term::Indirect);
        CounterPlan::new(&left, &Counts::default(), &countable)
    };
    let counter = |&(at, spot)| {
        *offset += COUNTER;
        Counter { at, spot, offset: *offset - COUNTER }
    };
    c.counters = plan.points().iter().map(counter).collect();
    (c.order, c.hot) = candidates::all_blocks(cfg, &c.counts);
    plan
}

/// Whether a function is entered by nothing but direct calls of the functions that were `met`, as far as its module shows. Those
/// are redirected; direct jumps from other functions are not.
fn is_only_called(program: &Program<'_>, id: FuncId, met: &FxHashSet<FuncId>) -> bool {
    let (module, entry) = (program.module(id), program.extent(id).entry);
    let here = AvmaRange::with_len(entry, 1);
    let by_address = module.branches.taken_in(here).len() > 0 || !module.held_in(here).is_empty();
    let is_met = |from| program.find(from).is_some_and(|f| met.contains(&f));
    !by_address
        && module.branches.calls_to(entry).all(is_met)
        && module.branches.jumps_into(here).all(|(from, _)| program.find(from) == Some(id))
}

/// Has a candidate keep where its indirect calls go.
fn watch_calls(c: &mut Candidate, offset: &mut u32) -> Vec<Site> {
    let sites = targets::sites(&c.analysed.cfg, offset);
    c.watches = sites.iter().flat_map(targets::watches).collect();
    sites
}

/// The blocks that leave a clone for good: they jump through a table that cannot be cloned, into the original. What is
/// counted behind them is what runs in clones.
fn leaves(cfg: &Cfg) -> Vec<BlockId> {
    let through_original = |t: u32| cfg.tables.get(t as usize).is_none_or(|t| t.cloneable.is_none());
    cfg.block_ids()
        .zip(&cfg.blocks)
        .filter(|(_, b)| matches!(b.term, Term::Switch { table } if through_original(table)))
        .map(|(id, _)| id)
        .collect()
}

/// The new functions that the counted ones called often, the most called first.
fn callees(
    program: &Program<'_>,
    counted: &[Candidate],
    is_new: &dyn Fn(FuncId) -> bool,
    time: Duration,
) -> Vec<FuncId> {
    let mut called: FxHashMap<FuncId, u64> = FxHashMap::default();
    for c in counted.iter().filter(|c| c.counted) {
        calls::of(program, c, |callee, count| {
            if is_new(callee) && program.module(callee).refused.is_none() {
                *called.entry(callee).or_default() += count;
            }
        });
    }
    let often = (u128::from(OFTEN) * time.as_millis() / 1000).max(1);
    let mut often: Vec<(u64, FuncId)> =
        called.into_iter().filter(|&(_, n)| u128::from(n) >= often).map(|(f, n)| (n, f)).collect();
    often.sort_unstable_by_key(|&(n, f)| (std::cmp::Reverse(n), f));
    often.truncate(MOST_CALLEES);
    often.into_iter().map(|(_, f)| f).collect()
}
