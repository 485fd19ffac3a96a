//! Exact counts without a PMU: hot functions run for a moment as clones with counters.
//!
//! Each candidate is cloned whole, in its own block order, with counters on the edges outside a maximum
//! spanning tree. The clones are installed, run, and undone. All other counts follow from the counters.
//! Functions that the counted code calls often, though no sample fell into them, are candidates of the next
//! round.

use crate::analyse::gs::GsUse;
use crate::analyse::program::{Analysed, FuncId, Program};
use crate::base::parallel;
use crate::build::file_text;
use crate::build::installer::Installer;
use crate::build::space;
use crate::build::unwind_hooks;
use crate::count::gs_watch::Watch;
use crate::count::prepare::{Found, with_installer};
use crate::count::recount::{self, Round};
use crate::count::rounds::{CountingReport, Look, Rounds, Run};
use crate::family::kin::Kin;
use crate::plan::calls;
use crate::plan::candidate::{Candidate, Certainty, Measured};
use crate::plan::candidates::{self, Candidates};
use crate::plan::estimate;
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::restore;
use crate::{Error, OptimizeOptions, Progress, Target};
use code::{Cfg, Refusal};
use profile::Counts;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Duration;
use tracee::Pid;

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
    let (process, lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    restore::end_counting(pid)?;
    let target = lock.target(pid)?;
    let counted =
        with_installer(&target, &Kin::default(), options, progress, |installer, prepared, progress| {
            let first = match prepared.found {
                Found::Sampled(chosen) => estimate::first(chosen, prepared.samples, options.shuffle),
                Found::Profiled(counted, _) => {
                    counted.map(|all| all.into_iter().map(|c| c.measured).collect())
                }
            };
            let first = ToCount { candidates: first, time: Duration::ZERO, options };
            let (measured, _) = count(installer, first, &mut run, progress)?;
            let counted = measured.chosen.into_iter().filter(|c| c.is_counted());
            Ok(counted
                .map(|c| CountedFunction {
                    name: installer.program.name(c.id),
                    exact: c.certainty == Certainty::Exact,
                    cfg: c.candidate.analysed.cfg,
                    counts: c.counts,
                })
                .collect())
        });
    restore::or_restore(&target, false, counted)
}

/// Functions to be counted.
#[derive(Clone)]
pub(crate) struct ToCount<'a> {
    /// The functions, with counts as far as they are known.
    pub(crate) candidates: Candidates<Measured>,
    /// How long a round takes.
    pub(crate) time: Duration,
    /// The options of the command.
    pub(crate) options: &'a OptimizeOptions,
}

/// Counts functions in rounds while `run` lets the target run. Adds the functions that they call often. With
/// a seed, the blocks of counting clones are in random order.
///
/// # Errors
/// Returns the errors of installation and of undo.
pub(crate) fn count(
    installer: &Installer<'_, '_>,
    ToCount { candidates, time, options }: ToCount<'_>,
    run: &mut Run<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Candidates<Measured>, CountingReport), Error> {
    let mut report = CountingReport::default();
    let (mut earlier, _) = recount::rounds(installer.target);
    let is_full = |target: &Target| target.installed.as_ref().is_some_and(space::is_full_of_counting);
    let full = "clones that count have taken their half of the room for clones";
    if is_full(installer.target) && earlier.is_empty() {
        report.left_out = Some(full.to_owned());
        return Ok((candidates, report));
    }
    let mut watch = Watch::new(&installer.target.process, installer.program.image());
    if let Some(found) = installer.program.gs_use().or_else(|| before(installer, &mut watch)) {
        return Ok((candidates, CountingReport::left_out(found)));
    }
    let mut known: FxHashSet<FuncId> = candidates.refused.iter().map(|r| r.0).collect();
    known.extend(unwind_hooks::kept(installer.program, &installer.lookup));
    let sampled: FxHashSet<FuncId> = candidates.chosen.iter().map(|c| c.id).collect();
    let samples: u64 = candidates.samples.values().sum();
    let Candidates { chosen: todo, refused, samples: by_function, not_drawn } = candidates;
    let mut all = Functions { todo, done: Vec::new(), refused, known };
    let mut rounds = Rounds { installer, style: options.style(), samples, run, watch, report };
    let mut new_rounds = 0;
    for _ in 0..ROUNDS {
        progress(Progress::Counting { functions: all.todo.len() });
        let target = installer.target.again()?;
        let is_full = is_full(&target) || new_rounds == NEW_ROUNDS;
        let again = choose_round(&mut earlier, &all.todo, &target, is_full)?;
        if again.is_none() && is_full {
            rounds.report.left_out = (rounds.report.rounds == 0).then(|| full.to_owned());
            break;
        }
        new_rounds += usize::from(again.is_none());
        if let Some(why) = all.run(&mut rounds, &target, again.as_ref())? {
            restore::restore(installer.target, false)?;
            rounds.report.left_out = Some(why);
            break;
        }
        options.interrupt.check()?;
        all.advance(installer, again.as_ref(), options, time);
        if all.todo.is_empty() {
            break;
        }
    }
    let Functions { todo, mut done, refused, known: _ } = all;
    done.extend(todo);
    // Functions that only counting added have no samples; keep them only if they were counted.
    done.retain(|c| c.is_counted() || sampled.contains(&c.id));
    // The order of functions must not depend on the profile's order: sort by id.
    done.sort_by_key(|c| c.id);
    Ok((Candidates { chosen: done, refused, samples: by_function, not_drawn }, rounds.report))
}

/// The functions of a command that counts.
struct Functions {
    /// The functions of the next round.
    todo: Vec<Measured>,
    /// The functions of earlier rounds.
    done: Vec<Measured>,
    refused: Vec<(FuncId, u64, Refusal)>,
    /// All functions that need not be found again.
    known: FxHashSet<FuncId>,
}

impl Functions {
    /// Runs a round in new clones or in the clones of an earlier round. Returns the reason to stop counting,
    /// if there is one.
    fn run(
        &mut self,
        rounds: &mut Rounds<'_, '_, '_>,
        target: &Target,
        again: Option<&Round>,
    ) -> Result<Option<String>, Error> {
        let ended = match again {
            Some(again) => rounds.count_again(target, &self.todo, again),
            None => rounds.count_new(target, &self.todo, &self.done),
        };
        match ended {
            Err(e) if is_reason(&e) => Ok(Some(e.to_string())),
            ended => {
                let ended = ended?;
                let found = ended.found;
                self.todo = ended.apply(std::mem::take(&mut self.todo));
                Ok(found.map(|found| CountingReport::left_out(found).left_out.unwrap_or_default()))
            }
        }
    }

    /// Ends a round, which ran earlier clones if `again` is one of them. Adds the functions that the counted
    /// ones call often.
    fn advance(
        &mut self,
        installer: &Installer<'_, '_>,
        again: Option<&Round>,
        options: &OptimizeOptions,
        time: Duration,
    ) {
        let mut counted = std::mem::take(&mut self.todo);
        self.known.extend(counted.iter().map(|c| c.id));
        let is_new =
            |f| !self.known.contains(&f) && candidates::may_be_rebuilt(installer.program, f, options);
        let callees = callees(installer.program, &counted, &is_new, time);
        match again {
            Some(again) => self.todo = left_over(again, counted, &mut self.done),
            None => self.done.append(&mut counted),
        }
        for (&id, analysed) in callees.iter().zip(parallel::map(&callees, |&id| analyse(installer, id))) {
            self.known.insert(id);
            match analysed {
                Ok(analysed) => self.todo.push(Measured::unknown(Candidate { id, analysed, samples: 0 })),
                Err(reason) => self.refused.push((id, 0, reason)),
            }
        }
    }
}

/// Moves the functions that an earlier round has counted to `done`, and returns the others for the next
/// round. If the weight of the others is small, they are done too.
fn left_over(again: &Round, functions: Vec<Measured>, done: &mut Vec<Measured>) -> Vec<Measured> {
    let (held, all) = again.weigh(&functions);
    let is_little = (all - held) * LEFT_OVER < all;
    let (counted, rest): (Vec<_>, Vec<_>) = functions.into_iter().partition(|c| c.is_counted());
    done.extend(counted);
    if is_little {
        done.extend(rest);
        return Vec::new();
    }
    rest
}

/// Analyses a function that no sample fell into.
fn analyse(installer: &Installer<'_, '_>, id: FuncId) -> Result<Analysed, Refusal> {
    let analysed = installer.program.analyse(id)?;
    let foreign = file_text::is_foreign(installer.files, id, &analysed);
    if foreign { Err(Refusal::ForeignChange) } else { Ok(analysed) }
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
    todo: &[Measured],
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

/// Returns the new functions that the counted functions called often, the most called first.
fn callees(
    program: &Program<'_>,
    counted: &[Measured],
    is_new: &dyn Fn(FuncId) -> bool,
    time: Duration,
) -> Vec<FuncId> {
    let mut called: FxHashMap<FuncId, u64> = FxHashMap::default();
    for c in counted.iter().filter(|c| c.is_counted()) {
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
