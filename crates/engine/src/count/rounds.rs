//! One round of counting: its clones are installed or run again, count, and are undone.

use crate::analyse::gs::GsUse;
use crate::analyse::program::FuncId;
use crate::base::passes::{Passes, Style};
use crate::build::clones::{Clones, Counting};
use crate::build::installer::{Installer, Wanted};
use crate::build::memory_limit;
use crate::build::round::{self, FunctionPlan, Offsets};
use crate::count::forked;
use crate::count::gs_watch::Watch;
use crate::count::instrument::{COUNTER, Instruments, Own, ToInstrument, counted_part, instrument, leaves};
use crate::count::recount::{self, Round};
use crate::plan::candidate::{Certainty, Measured, Others, SiteTargets};
use crate::plan::laid_out::Instrumented;
use crate::plan::targets::{self, Seen, SeenSite, Site, ranked};
use crate::{Error, Interrupt, Target};
use addr::Avma;
use profile::{CounterPlan, Counts};
use rustc_hash::{FxHashMap, FxHashSet};
use splice::{CounterArea, Policy};
use std::time::{Duration, Instant};

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
    pub(crate) fn left_out(found: GsUse) -> Self {
        let why = format!("some code in it {}, which counters need", found.what());
        Self { left_out: Some(why), ..Self::default() }
    }
}

/// Lets a target run while its clones count, and calls the given function at intervals.
pub(crate) type Run<'a> = dyn FnMut(&mut Look<'_>) + 'a;
/// Observes a target whose clones count; returns `false` when counting must end.
pub(crate) type Look<'a> = dyn FnMut() -> bool + 'a;

/// Lets the targets of `interrupt` run for `time`, or until `look` returns `false`, a target ends or the user
/// interrupts.
pub(crate) fn wait(time: Duration, interrupt: &Interrupt, look: &mut Look<'_>) {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|_| interrupt.check().is_ok()) {
        std::thread::sleep(left.min(Duration::from_millis(50)));
        if !look() {
            break;
        }
    }
}

/// The rounds of one command.
pub(crate) struct Rounds<'a, 'm, 'r> {
    pub(crate) installer: &'a Installer<'a, 'm>,
    pub(crate) style: Style,
    /// Samples in all functions.
    pub(crate) samples: u64,
    /// Lets the target run.
    pub(crate) run: &'a mut Run<'r>,
    pub(crate) watch: Watch<'a>,
    pub(crate) report: CountingReport,
}

/// The result of one round.
pub(crate) struct Ended {
    known: FxHashMap<FuncId, Known>,
    /// A use of the GS base in code that appeared meanwhile.
    pub(crate) found: Option<GsUse>,
}

/// The result of a round for one function.
struct Known {
    counts: Counts,
    certainty: Certainty,
    targets: Vec<SiteTargets>,
}

impl Ended {
    /// Returns the functions with the counts of the round, if it counted them.
    pub(crate) fn apply(mut self, functions: Vec<Measured>) -> Vec<Measured> {
        let apply = |f: Measured| match self.known.remove(&f.id) {
            Some(Known { counts, certainty, targets }) => {
                Measured { candidate: f.candidate, counts, certainty, targets }
            }
            None => f,
        };
        functions.into_iter().map(apply).collect()
    }
}

/// Counting clones that are in force.
struct InForce<'a> {
    /// When they began to come into force, as start times of processes tell it.
    since: u64,
    area: CounterArea,
    offsets: Offsets,
    /// The functions that have counting clones.
    owns: Vec<Own<'a>>,
    /// The entry of each clone, with the entry of its original.
    originals: FxHashMap<Avma, Avma>,
}

impl Rounds<'_, '_, '_> {
    /// Counts once more with earlier clones, for the functions that have such clones.
    ///
    /// # Errors
    /// Returns the errors of the stops, of the memory limit and of undo.
    pub(crate) fn count_again(
        &mut self,
        target: &Target,
        functions: &[Measured],
        round: &Round,
    ) -> Result<Ended, Error> {
        let pid = target.process.pid();
        let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
        let own = |c| own_again(c, round);
        let owns: Vec<Own<'_>> = functions.iter().filter_map(own).collect();
        let offsets = round.offsets.all();
        memory_limit::check(pid, memory_limit::need(&[], Some(&offsets), tracee::preflight(pid)?.threads))?;
        let policy = Policy::default();
        let since = tracee::start_time_now();
        let recount = splice::count_again(&target.process, installed, &round.journals, &offsets, &policy)?;
        self.report.again += owns.len();
        let originals = round.clones.clone();
        self.finish(target, &InForce { since, area: recount.area, offsets: round.offsets, owns, originals })
    }

    /// Counts functions once in new clones; `callers` are the functions of earlier rounds.
    ///
    /// # Errors
    /// Returns the errors of installation and of undo.
    pub(crate) fn count_new(
        &mut self,
        target: &Target,
        functions: &[Measured],
        callers: &[Measured],
    ) -> Result<Ended, Error> {
        let (installer, style) = (self.installer, self.style);
        // Offsets of rounds never overlap.
        let from = recount::rounds(target).1;
        let round = ToInstrument { functions, callers, samples: self.samples, from, style };
        let Instruments { clones, watched, end } = instrument(installer.program, &round);
        if end > round::MOST_OFFSETS {
            return Err(Error::MemoryCap {
                pid: target.process.pid(),
                mapped: end.into(),
                cap: round::MOST_OFFSETS.into(),
            });
        }
        let offsets = Offsets { from, watched, to: end };
        let (clones, mut owns): (Vec<Instrumented<'_>>, Vec<Own<'_>>) = clones.into_iter().unzip();
        let plans: Vec<FunctionPlan> = owns.iter().map(Own::stored).collect();
        // Install all kinds of redirects, even if passes are left out: calls that do not enter a clone are
        // not counted.
        let style = Style { passes: Passes::default(), ..style };
        let clones = Clones::ToCount(Counting { clones: &clones, callers, offsets });
        let wanted = Wanted { clones, style, notes: &|_| round::write(offsets, &plans) };
        let since = tracee::start_time_now();
        let placed = installer.install(target, wanted, &mut |_| {})?;
        let nowhere = || Error::Build("clones that count nowhere".to_owned());
        let area = placed.report.counters.ok_or_else(nowhere)?;
        let cloned: FxHashSet<FuncId> = placed.built.cloned.iter().map(|c| c.0).collect();
        owns.retain(|own| cloned.contains(&own.function.id));
        let entry = |f: FuncId| installer.program.extent(f).entry;
        let originals = placed.built.cloned.iter().map(|(f, clone)| (clone.start(), entry(*f))).collect();
        self.finish(target, &InForce { since, area, offsets, owns, originals })
    }

    /// Lets the target run, ends counting, and reads the counts.
    fn finish(&mut self, target: &Target, in_force: &InForce<'_>) -> Result<Ended, Error> {
        let InForce { since, area, offsets, owns, .. } = in_force;
        let begun = Instant::now();
        let (found, seen) = self.observe(target, in_force)?;
        let target = Target::open(self.installer.target.process.pid())?;
        let pid = target.process.pid();
        let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
        let splice::Ended { report: undone, own_base } =
            splice::end_counting(&target.process, installed, &Policy::default())?;
        self.report.seconds += begun.elapsed().as_secs_f64();
        let left = undone.foreign.len();
        if left > 0 {
            return Err(Error::UndoIncomplete { pid, left });
        }
        // Clock ticks are rounded: the first child may show an earlier tick than `since`.
        forked::end_counting(pid, installed.anchor.at, since.saturating_sub(2));
        let values = splice::counters(&target.process, area, offsets.from..offsets.watched)?;
        splice::release_counters(&target.process, &installed.anchor)?;
        if let Some((tid, base)) = own_base {
            return Err(splice::Error::GsBaseInUse { tid, base }.into());
        }
        let mut seen = seen.sites();
        let mut known = FxHashMap::default();
        for own in owns {
            let targets = targets_of(own, seen.by_ref().take(own.sites.len()), &in_force.originals);
            let from = own.first.saturating_sub(offsets.from) / COUNTER;
            let own_values = values.iter().skip(from as usize).take(own.plan.counters());
            let (counts, certainty) = self.solve(own, &own_values.copied().collect::<Vec<_>>());
            known.insert(own.function.id, Known { counts, certainty, targets });
        }
        self.report.rounds += 1;
        Ok(Ended { known, found })
    }

    /// Lets the target run. Returns a use of the GS base in code that appeared meanwhile, and the observed
    /// targets of all watched calls.
    fn observe(&mut self, target: &Target, in_force: &InForce<'_>) -> Result<(Option<GsUse>, Seen), Error> {
        let InForce { area, offsets, owns, .. } = in_force;
        let anchor = Target::open(target.process.pid())?.installed.map(|i| i.anchor);
        self.watch.leave(anchor.iter().flat_map(|a| a.regions.iter().map(|r| r.text)));
        let all_sites: Vec<Site> = owns.iter().flat_map(|own| &own.sites).copied().collect();
        let watched = offsets.watched..offsets.to;
        let (mut found, mut seen) = (None, Seen::default());
        let watch = &mut self.watch;
        (self.run)(&mut || {
            // Ignore a failed read; the others suffice.
            for words in splice::counter_words(&target.process, area, watched.clone()).into_iter().flatten() {
                seen.take(&all_sites, offsets.watched, &words, &target.process);
            }
            found = found.or_else(|| watch.look());
            found.is_none()
        });
        Ok((found, seen))
    }

    /// Returns the counts that follow from the values of a function's counters.
    fn solve(&mut self, own: &Own<'_>, values: &[u64]) -> (Counts, Certainty) {
        let cfg = &own.function.analysed.cfg;
        let solved = own.plan.solve(values);
        let leaves = leaves(cfg);
        let mut counts = solved.counts;
        for b in &leaves {
            let mut edges = Vec::new();
            cfg.successors(*b, |_| edges.push(0));
            counts.blocks[b.index()].edges = edges;
        }
        self.report.functions += 1;
        self.report.counters += own.plan.counters();
        self.report.inexact += usize::from(!solved.exact);
        let exact = solved.exact && leaves.is_empty() && own.whole;
        (counts, if exact { Certainty::Exact } else { Certainty::Counted })
    }
}

/// Returns how an earlier round counts a function, if it has a clone of it.
fn own_again<'a>(function: &'a Measured, round: &Round) -> Option<Own<'a>> {
    let cfg = &function.analysed.cfg;
    let stored = round.plans.get(&cfg.entry).filter(|_| round.has(function))?;
    let plan = CounterPlan::again(&counted_part(cfg), &stored.links)?;
    let sites = targets::sites(cfg, &mut stored.watched.clone());
    let &FunctionPlan { first, watched, whole, .. } = stored;
    Some(Own { function, plan, first, watched, sites, whole })
}

/// Returns the observed targets of a function's calls. A virtual table leads to counting clones, so these
/// targets are mapped to the originals.
fn targets_of(
    own: &Own<'_>,
    seen: impl Iterator<Item = SeenSite>,
    originals: &FxHashMap<Avma, Avma>,
) -> Vec<SiteTargets> {
    let original = |at| originals.get(&at).copied().unwrap_or(at);
    let of_site = |(site, seen): (&Site, SeenSite)| {
        let mut callees: FxHashMap<Avma, u64> = FxHashMap::default();
        seen.targets.into_iter().for_each(|(at, n)| *callees.entry(original(at)).or_default() += n);
        let (callees, bases) = (ranked(callees), ranked(seen.bases));
        SiteTargets { inst: site.inst, callees, bases, others: Others::default() }
    };
    own.sites.iter().zip(seen).map(of_site).collect()
}
