//! Exact counts without a PMU: hot functions run for a moment as clones with counters.
//!
//! Each candidate is cloned whole, in its own block order, with counters on the edges outside a maximum
//! spanning tree. The clones are installed, run, and undone. All other counts follow from the counters.
//! Functions that the counted code calls often, though no sample fell into them, are candidates of the next
//! round.

use crate::analyse::gs::GsUse;
use crate::analyse::program::{FuncId, Program};
use crate::base::parallel;
use crate::base::passes::{Passes, Style};
use crate::build::file_text;
use crate::build::installer::{Installer, Wanted};
use crate::build::memory_limit;
use crate::build::redirects;
use crate::build::round::{self, FunctionPlan, Offsets};
use crate::build::space;
use crate::build::unwind_hooks;
use crate::count::forked;
use crate::count::gs_watch::Watch;
use crate::count::prepare::with_installer;
use crate::count::recount::{self, Round};
use crate::family::facts;
use crate::family::kin::Kin;
use crate::plan::calls;
use crate::plan::candidate::{Candidate, Others, SiteTargets};
use crate::plan::candidates::{self, Candidates};
use crate::plan::shuffle::Rng;
use crate::plan::targets::{self, Seen, SeenSite, Site, ranked};
use crate::plan::through_redirects;
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::restore;
use crate::{Error, Interrupt, OptimizeOptions, Progress, Target};
use addr::{Avma, AvmaRange};
use code::{BlockId, Cfg, Liveness, Refusal, Term};
use emit::Counter;
use profile::{CounterPlan, Counts};
use rustc_hash::{FxHashMap, FxHashSet};
use splice::{CounterArea, Policy};
use std::time::{Duration, Instant};
use tracee::{Pid, Process};

/// The largest number of rounds with new clones. The second counts callees that samples missed; the third
/// counts the callees of those functions.
const NEW_ROUNDS: usize = 3;
/// The largest number of rounds, including rounds that reuse earlier clones.
const ROUNDS: usize = 4;
/// Earlier clones are reused if they have at least 1/`HELD` of the candidates' weight ([`Round::weigh`]).
const HELD: u64 = 2;
/// If earlier clones miss less than 1/`LEFT_OVER` of this weight, the rest is inferred, not counted.
const LEFT_OVER: u64 = 20;
/// A callee without samples is counted too if it is called at least this often per second.
const OFTEN: u64 = 20;
/// The largest number of callees that a round adds.
const MOST_CALLEES: usize = 6000;

/// Bytes of a counter.
const COUNTER: u32 = 8;

/// The result of counting.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct CountingReport {
    /// How often counting clones were installed.
    pub rounds: usize,
    /// Functions whose counts are known.
    pub functions: usize,
    /// The functions among them that earlier clones counted.
    #[serde(default)]
    pub again: usize,
    /// Counters in these functions.
    pub counters: usize,
    /// Functions whose counters contradict each other a little: threads were inside when counting began or
    /// ended.
    pub inexact: usize,
    /// How long the clones counted.
    pub seconds: f64,
    /// The member of the target's family in which they counted, if it was another process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_in: Option<i32>,
    /// Why nothing was counted and the counts were inferred from samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl CountingReport {
    fn left_out(found: GsUse) -> Self {
        let why = format!("some code in it {}, which counters need", found.what());
        Self { left_out: Some(why), ..Self::default() }
    }
}

/// The counts of one function.
#[derive(Clone, Debug)]
pub struct CountedFunction {
    /// Its name, or its module and SVMA.
    pub name: String,
    /// Its graph.
    pub cfg: Cfg,
    /// How often its blocks and edges ran.
    pub counts: Counts,
    /// True if the counters determine all counts without contradiction, and all of the function ran in its
    /// clone.
    pub exact: bool,
}

/// Counts what a process does while `work` runs, then undoes the clones as [`crate::undo`] does.
///
/// For tests: `work` is called once a round, while the counting clones are in force. Functions are chosen as
/// [`crate::optimize`] chooses them. The option for the time of counting has no effect here.
///
/// # Errors
/// Returns the errors of [`crate::optimize`].
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
    let counted = with_installer(
        &target,
        &Kin::default(),
        options,
        progress,
        |installer, mut candidates, _, progress| {
            count(installer, &mut candidates, Duration::ZERO, options, &mut run, progress)?;
            let counted = candidates.chosen.into_iter().filter(|c| c.counted);
            Ok(counted
                .map(|c| CountedFunction {
                    name: installer.program.name(c.id),
                    cfg: c.analysed.cfg,
                    counts: c.counts,
                    exact: c.exact,
                })
                .collect())
        },
    );
    restore::or_restore(&target, false, counted)
}

/// Lets a target run while its clones count, and calls the given function now and then.
pub(crate) type Run<'a> = dyn FnMut(&mut Look<'_>) + 'a;
/// Observes a target whose clones count; returns `false` when counting must end.
pub(crate) type Look<'a> = dyn FnMut() -> bool + 'a;

/// Lets a target run for `time`, or until `look` returns `false`, the target ends or the user interrupts.
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

/// Counts the candidates in rounds of `time` while `run` lets the target run. Adds the functions that they
/// call often. With a seed, the blocks of counting clones are in random order.
///
/// # Errors
/// Returns the errors of installation and of undo.
pub(crate) fn count(
    installer: &Installer<'_, '_>,
    candidates: &mut Candidates,
    time: Duration,
    options: &OptimizeOptions,
    run: &mut Run<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<CountingReport, Error> {
    let mut report = CountingReport::default();
    let (mut rounds, _) = recount::rounds(installer.target);
    let is_full = |target: &Target| target.installed.as_ref().is_some_and(space::is_full_of_counting);
    let full = "clones that count have taken their half of the room for clones";
    if is_full(installer.target) && rounds.is_empty() {
        report.left_out = Some(full.to_owned());
        return Ok(report);
    }
    let mut watch = Watch::new(&installer.target.process, installer.program.image());
    if let Some(found) = installer.program.gs_use().or_else(|| before(installer, &mut watch)) {
        return Ok(CountingReport::left_out(found));
    }
    let mut known: FxHashSet<FuncId> = candidates.refused.iter().map(|r| r.0).collect();
    known.extend(unwind_hooks::kept(installer.program, &installer.lookup));
    let samples: u64 = candidates.samples.values().sum();
    let sampled: FxHashSet<FuncId> = candidates.chosen.iter().map(|c| c.id).collect();
    let (mut from, mut new_rounds) = (0, 0);
    for _ in 0..ROUNDS {
        progress(Progress::Counting { functions: candidates.chosen.len() - from });
        let target = Target::open(installer.target.process.pid())?;
        let is_full = is_full(&target) || new_rounds == NEW_ROUNDS;
        let again = choose_round(&mut rounds, &candidates.chosen[from..], &target, is_full)?;
        if again.is_none() && is_full {
            report.left_out = (report.rounds == 0).then(|| full.to_owned());
            break;
        }
        new_rounds += usize::from(again.is_none());
        for c in &mut candidates.chosen[from..] {
            c.through_redirects = through_redirects::while_it_counts(c, samples);
        }
        let (before, new) = candidates.chosen.split_at_mut(from);
        let counted = match &again {
            Some(again) => count_again(installer, &target, new, again, &mut watch, run, &mut report),
            None => count_new(installer, &target, new, before, options.style(), &mut watch, run, &mut report),
        };
        let why = match counted {
            Err(e) if is_reason(&e) => Some(e.to_string()),
            counted => counted?.map(|found| CountingReport::left_out(found).left_out.unwrap_or_default()),
        };
        if let Some(why) = why {
            restore::restore(installer.target.process.pid(), false)?;
            report.left_out = Some(why);
            break;
        }
        options.interrupt.check()?;
        known.extend(candidates.chosen[from..].iter().map(|c| c.id));
        let is_new = |f| !known.contains(&f) && candidates::may_be_rebuilt(installer.program, f, options);
        let callees = callees(installer.program, &candidates.chosen[from..], &is_new, time);
        from = match again {
            // Candidates that the earlier clones did not count go to the next round, unless their weight is
            // small.
            Some(again) => {
                let (held, all) = again.weigh(&candidates.chosen[from..]);
                candidates.chosen[from..].sort_by_key(|c| !c.counted);
                let is_little = (all - held) * LEFT_OVER < all;
                let counted = candidates.chosen[from..].partition_point(|c| c.counted);
                if is_little { candidates.chosen.len() } else { from + counted }
            }
            None => candidates.chosen.len(),
        };
        let analyse = |&id: &FuncId| {
            let analysed = installer.program.analyse(id)?;
            let foreign = file_text::is_foreign(installer.program, installer.files, id, &analysed);
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
    // Functions that only counting added have no samples; keep them only if they were counted.
    candidates.chosen.retain(|c| c.counted || sampled.contains(&c.id));
    // The order of functions must not depend on the profile's order: sort by id.
    candidates.chosen.sort_by_key(|c| c.id);
    Ok(report)
}

/// Returns a use of the GS base in code that appeared after the program was read, or that belongs to no
/// module.
fn before(installer: &Installer<'_, '_>, watch: &mut Watch<'_>) -> Option<GsUse> {
    if let Some(installed) = &installer.target.installed {
        watch.leave(installed.anchor.regions.iter().map(|r| r.text));
    }
    watch.look()
}

/// Returns whether an error means that counting is impossible here, so that counts are inferred instead.
fn is_reason(e: &Error) -> bool {
    use splice::Error as E;
    let by_splice = |e: &E| {
        matches!(
            e,
            E::GsBaseInUse { .. } | E::NoCounterMemory { .. } | E::CountsForGood | E::MapDenied { .. }
        )
    };
    space::no_room(e) || matches!(e, Error::Splice(e) if by_splice(e))
}

/// Chooses the earlier round with most of the candidates' weight, if it has enough of it. With `any`, any
/// share suffices.
fn choose_round(
    rounds: &mut Vec<Round>,
    todo: &[Candidate],
    target: &Target,
    any: bool,
) -> Result<Option<Round>, Error> {
    loop {
        let weighed = rounds.iter().enumerate().map(|(i, r)| (r.weigh(todo), i));
        // Of equal rounds, choose the newest.
        let Some(((held, all), i)) = weighed.max_by_key(|&((held, _), i)| (held, i)) else { return Ok(None) };
        if held == 0 || (!any && held * HELD < all) {
            return Ok(None);
        }
        let round = rounds.swap_remove(i);
        if round.is_usable(target)? {
            return Ok(Some(round));
        }
    }
}

/// How one candidate is counted in a round.
struct Own {
    /// Its index among the candidates of the round.
    at: usize,
    plan: CounterPlan,
    /// The offset of its first counter.
    first: u32,
    /// Its watched indirect calls.
    sites: Vec<Site>,
    /// True if the counters cover all of its executions.
    whole: bool,
}

/// Counting clones that are in force.
struct Counting<'a> {
    target: &'a Target,
    area: CounterArea,
    offsets: Offsets,
    /// The functions that have counting clones.
    owns: Vec<Own>,
    /// The entry of each clone, with the entry of its original.
    originals: FxHashMap<Avma, Avma>,
}

/// Counts once more with earlier clones, for the candidates that have such clones. Returns a use of the GS
/// base in code that appeared meanwhile.
fn count_again(
    installer: &Installer<'_, '_>,
    target: &Target,
    chosen: &mut [Candidate],
    round: &Round,
    watch: &mut Watch<'_>,
    run: &mut Run<'_>,
    report: &mut CountingReport,
) -> Result<Option<GsUse>, Error> {
    let pid = target.process.pid();
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    if target.undos() != installer.target.undos() {
        return Err(Error::Changed { pid });
    }
    let own = |(at, c): (usize, &Candidate)| {
        let stored = round.plans.get(&c.analysed.cfg.entry).filter(|_| round.has(c))?;
        let plan = CounterPlan::again(&counted_part(&c.analysed.cfg), &stored.links)?;
        let sites = targets::sites(&c.analysed.cfg, &mut stored.watched.clone());
        Some(Own { at, plan, first: stored.first, sites, whole: stored.whole })
    };
    let owns: Vec<Own> = chosen.iter().enumerate().filter_map(own).collect();
    let offsets = round.offsets.all();
    memory_limit::check(pid, &[], Some(&offsets), tracee::preflight(pid)?.threads)?;
    let policy = Policy::default();
    let recount = splice::count_again(&target.process, installed, &round.journals, &offsets, &policy)?;
    report.again += owns.len();
    let originals = round.clones.clone();
    let counting = Counting { target, area: recount.area, offsets: round.offsets, owns, originals };
    counting.run(installer, chosen, watch, run, report)
}

/// Counts the candidates once in new clones; `callers` are the candidates of earlier rounds. Returns a use of
/// the GS base in code that appeared meanwhile.
#[allow(clippy::too_many_arguments, reason = "all of one round")]
fn count_new(
    installer: &Installer<'_, '_>,
    target: &Target,
    chosen: &mut [Candidate],
    callers: &[Candidate],
    style: Style,
    watch: &mut Watch<'_>,
    run: &mut Run<'_>,
    report: &mut CountingReport,
) -> Result<Option<GsUse>, Error> {
    // Offsets of rounds never overlap.
    let from = recount::rounds(target).1;
    let mut offset = from;
    let met: FxHashSet<FuncId> = chosen.iter().chain(callers).map(|c| c.id).collect();
    let only_called = |c: &Candidate| is_only_called(installer.program, c.id, &met);
    let only_called: Vec<bool> = chosen.iter().map(only_called).collect();
    let mut owns: Vec<Own> = Vec::with_capacity(chosen.len());
    for (at, (c, only_called)) in chosen.iter_mut().zip(only_called).enumerate() {
        let first = offset;
        let plan = prepare(installer.program, c, only_called, &mut offset);
        owns.push(Own { at, plan, first, sites: Vec::new(), whole: only_called || c.sites.complete });
    }
    let watched = offset;
    let mut plans = Vec::with_capacity(chosen.len());
    for (c, own) in chosen.iter_mut().zip(&mut owns) {
        let cfg = &c.analysed.cfg;
        plans.push(FunctionPlan {
            entry: cfg.entry,
            hash: profile::hash(cfg),
            first: own.first,
            watched: offset,
            whole: own.whole,
            links: own.plan.counted(),
        });
        own.sites = watch_calls(c, &mut offset);
    }
    if offset > round::MOST_OFFSETS {
        return Err(Error::MemoryCap {
            pid: target.process.pid(),
            mapped: offset.into(),
            cap: round::MOST_OFFSETS.into(),
        });
    }
    if let Some(seed) = style.shuffle {
        // Use other orders than the clones that are installed after counting.
        let mut rng = Rng::new(seed ^ 0xc0);
        chosen.iter_mut().filter_map(|c| c.order.get_mut(1..)).for_each(|rest| rng.shuffle(rest));
    }
    let offsets = Offsets { from, watched, to: offset };
    // Install all kinds of redirects, whatever passes are off: calls that do not enter a clone are not
    // counted.
    let style = Style { passes: Passes::default(), ..style };
    let wanted =
        Wanted { chosen, callers, style, counters: Some(offsets), notes: &|_| round::write(offsets, &plans) };
    let placed = installer.install(target, wanted, &mut |_| {})?;
    let area = placed.report.counters.ok_or_else(|| Error::Build("clones that count nowhere".to_owned()))?;
    let cloned: FxHashSet<FuncId> = placed.built.cloned.iter().map(|c| c.0).collect();
    owns.retain(|own| cloned.contains(&chosen[own.at].id));
    let entry = |f: FuncId| installer.program.extent(f).entry;
    let originals = placed.built.cloned.iter().map(|(f, clone)| (clone.start(), entry(*f))).collect();
    Counting { target, area, offsets, owns, originals }.run(installer, chosen, watch, run, report)
}

impl Counting<'_> {
    /// Lets the target run, ends counting, and stores the counts in the candidates.
    fn run(
        &self,
        installer: &Installer<'_, '_>,
        chosen: &mut [Candidate],
        watch: &mut Watch<'_>,
        run: &mut Run<'_>,
        report: &mut CountingReport,
    ) -> Result<Option<GsUse>, Error> {
        let Self { target, area, offsets, owns, originals } = self;
        let begun = Instant::now();
        let anchor = Target::open(target.process.pid())?.installed.map(|i| i.anchor);
        watch.leave(anchor.iter().flat_map(|a| a.regions.iter().map(|r| r.text)));
        let (mut found, since) = (None, facts::now());
        let all_sites: Vec<Site> = owns.iter().flat_map(|own| &own.sites).copied().collect();
        let (counters, watched) = (offsets.from..offsets.watched, offsets.watched..offsets.to);
        let mut seen = Seen::default();
        run(&mut || {
            // Ignore a failed read; the others suffice.
            for words in splice::counter_words(&target.process, area, watched.clone()).into_iter().flatten() {
                seen.take(&all_sites, offsets.watched, &words, &target.process);
            }
            found = found.or_else(|| watch.look());
            found.is_none()
        });
        let target = Target::open(installer.target.process.pid())?;
        let pid = target.process.pid();
        let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
        let splice::Ended { report: undone, own_base } =
            splice::end_counting(&target.process, installed, &Policy::default())?;
        report.seconds += begun.elapsed().as_secs_f64();
        let left = undone.foreign.len();
        if left > 0 {
            return Err(Error::UndoIncomplete { pid, left });
        }
        if let Some(since) = since {
            // Clock ticks are rounded: the first child may show an earlier tick than `since`.
            forked::end_counting(pid, installed.anchor.at, since.saturating_sub(2));
        }
        let values = splice::counters(&target.process, area, counters)?;
        splice::release_counters(&target.process, &installed.anchor)?;
        if let Some((tid, base)) = own_base {
            return Err(splice::Error::GsBaseInUse { tid, base }.into());
        }
        // A virtual table leads to counting clones, so map these targets to the originals.
        let original = |at| originals.get(&at).copied().unwrap_or(at);
        let mut seen = seen.sites();
        for own in owns {
            let of_site = |(site, seen): (&Site, SeenSite)| {
                let mut callees: FxHashMap<Avma, u64> = FxHashMap::default();
                seen.targets.into_iter().for_each(|(at, n)| *callees.entry(original(at)).or_default() += n);
                let (callees, bases) = (ranked(callees), ranked(seen.bases));
                SiteTargets { inst: site.inst, callees, bases, others: Others::default() }
            };
            let seen = seen.by_ref().take(own.sites.len());
            chosen[own.at].targets = own.sites.iter().zip(seen).map(of_site).collect();
        }
        for own in owns {
            let c = &mut chosen[own.at];
            let from = own.first.saturating_sub(offsets.from) / COUNTER;
            let own_values = values.iter().skip(from as usize).take(own.plan.counters());
            let solved = own.plan.solve(&own_values.copied().collect::<Vec<_>>());
            let leaves = leaves(&c.analysed.cfg);
            c.counts = solved.counts;
            for b in &leaves {
                let mut degree = 0;
                c.analysed.cfg.successors(*b, |_| degree += 1);
                c.counts.edges[b.index()] = vec![0; degree];
            }
            c.counted = true;
            c.exact = solved.exact && leaves.is_empty() && own.whole;
            report.functions += 1;
            report.counters += own.plan.counters();
            report.inexact += usize::from(!solved.exact);
        }
        report.rounds += 1;
        Ok(found)
    }
}

/// Gives a candidate its counters and all its blocks. Blocks that ran, as far as is known, come first.
fn prepare(program: &Program<'_>, c: &mut Candidate, only_called: bool, offset: &mut u32) -> CounterPlan {
    let cfg = &c.analysed.cfg;
    let liveness = Liveness::compute(cfg);
    let leaves = leaves(cfg);
    // Redirects lead into the middle of a clone, so executions before a redirect are counted behind it.
    c.sites = redirects::countable_sites(program, c.id, cfg, only_called);
    let countable = |point| c.sites.countable(point, cfg, &liveness);
    let plan = if leaves.is_empty() {
        CounterPlan::new(cfg, &c.counts, &countable)
    } else {
        CounterPlan::new(&counted_part(cfg), &Counts::default(), &countable)
    };
    let counter = |&(at, spot)| {
        *offset += COUNTER;
        Counter { at, spot, offset: *offset - COUNTER }
    };
    c.counters = plan.points().iter().map(counter).collect();
    (c.order, c.hot) = candidates::all_blocks(cfg, &c.counts);
    plan
}

/// Returns the graph that is counted. Control flow ends at blocks that leave a clone for good.
fn counted_part(cfg: &Cfg) -> Cfg {
    let mut left = cfg.clone();
    leaves(cfg).iter().for_each(|b| left.blocks[b.index()].term = Term::Indirect);
    left
}

/// Returns whether only direct calls in the functions of `met` enter a function, as far as its module shows.
/// Such calls are redirected; direct jumps from other functions are not.
fn is_only_called(program: &Program<'_>, id: FuncId, met: &FxHashSet<FuncId>) -> bool {
    let (module, entry) = (program.module(id), program.extent(id).entry);
    let here = AvmaRange::with_len(entry, 1);
    let by_address = module.branches.taken_in(here).len() > 0 || !module.held_in(here).is_empty();
    let is_met = |from| program.find(from).is_some_and(|f| met.contains(&f));
    !by_address
        && module.branches.calls_to(entry).all(is_met)
        && module.branches.jumps_into(here).all(|(from, _)| program.find(from) == Some(id))
}

/// Marks a candidate's indirect calls so that the clone records their targets.
fn watch_calls(c: &mut Candidate, offset: &mut u32) -> Vec<Site> {
    let sites = targets::sites(&c.analysed.cfg, offset);
    c.watches = sites.iter().flat_map(targets::watches).collect();
    sites
}

/// Returns the blocks that leave a clone for good: they jump into the original through a table that cannot be
/// cloned. The counts behind them are only those of executions in clones.
fn leaves(cfg: &Cfg) -> Vec<BlockId> {
    let through_original = |t: u32| cfg.tables.get(t as usize).is_none_or(|t| t.cloneable.is_none());
    cfg.block_ids()
        .zip(&cfg.blocks)
        .filter(|(_, b)| matches!(b.term, Term::Switch { table } if through_original(table)))
        .map(|(id, _)| id)
        .collect()
}

/// Returns the new functions that the counted functions called often, the most called first.
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
