//! `optimize`: from a pid to clones in execution.

use crate::analyse::program::{FuncId, Program};
use crate::base::phases::PhaseClock;
use crate::build::caches::Built;
use crate::build::installer::{Placed, Wanted};
use crate::build::redirects;
use crate::build::space;
use crate::count::counting::{self, CountingReport};
use crate::count::prepare::with_installer;
use crate::count::source::CountSource;
use crate::debuggers::perf_map;
use crate::plan::candidates::Candidates;
use crate::plan::inlining;
use crate::plan::loops;
use crate::plan::samples::Samples;
use crate::plan::through_redirects;
use crate::rebuild::report::{FunctionCounts, OptimizeReport, peak_rss_mb, round};
use crate::rebuild::reuse;
use crate::records::dyno::{self, DynoReport};
use crate::records::notes::{NotedFunction, Notes};
use crate::records::profile_store::{self, Taken};
use crate::records::shares;
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::restore;
use crate::session::state::{StopMs, TargetState};
use crate::{Error, OptimizeOptions, Progress, Target, UserTime};
use addr::AvmaRange;
use emit::Fragments;
use profile::BuildId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracee::{Pid, Raised};

/// Profiles a process, rebuilds its hot functions and installs them.
///
/// # Errors
/// Returns [`Error`]; the target is untouched until the installation begins.
pub fn optimize(
    pid: Pid,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<OptimizeReport, Error> {
    let mut clock = PhaseClock::start();
    let (process, mut lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    let _favoured = Raised::favoured();
    restore::end_counting(pid)?;
    let options = &OptimizeOptions { interrupt: options.interrupt.watching(&process), ..options.clone() };
    let target = Target::open(pid)?;
    let was_optimized = restore::is_optimized(&target);
    let mut told = |p: Progress| {
        clock.step(&p);
        lock.tell(&p);
        progress(p);
    };
    let outcome = rebuild_or_reuse(&target, options, &mut told);
    let report = restore::or_restore(&target, was_optimized, outcome)?;
    // Release the lock first: a hanging file system of the target must not block an undo.
    drop(lock);
    let perf_map = options.perf_map.then(|| perf_map::refresh(pid));
    Ok(OptimizeReport { perf_map, phases: clock.stop(), ..report })
}

/// Rebuilds, or uses an earlier generation if there is no room for new clones.
fn rebuild_or_reuse(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<OptimizeReport, Error> {
    let may_reuse = reuse::is_possible(options);
    let is_full = target.installed.as_ref().is_some_and(|i| space::is_full(i, options));
    if may_reuse
        && is_full
        && let Some(report) = reuse::reuse(target, options, progress)?
    {
        return Ok(report);
    }
    match rebuild(target, options, progress) {
        Err(e) if may_reuse && space::no_room(&e) => {
            // Counting clones have changed the target since it was opened.
            let target = Target::open(target.process.pid())?;
            reuse::reuse(&target, options, progress)?.ok_or(e)
        }
        outcome => outcome,
    }
}

fn rebuild(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<OptimizeReport, Error> {
    let start = Instant::now();
    with_installer(target, options, progress, |installer, mut candidates, samples, progress| {
        if options.prefer_earlier && reuse::is_possible(options) {
            let program = installer.program;
            let earlier = reuse::nearly_as_good(target, program, &candidates, samples, options)?;
            if let Some(earlier) = earlier {
                let asked = reuse::Asked { target, samples, options, begun: start };
                return earlier.put_in_force(&asked, program.image().main().extent, progress);
            }
        }
        let source = CountSource::decide(options, samples);
        let stacks = (source == CountSource::BranchStacks).then(|| candidates.count_by_stacks(samples));
        let counting = match source {
            CountSource::Counters(time) => {
                let mut run = |look: &mut counting::Look<'_>| {
                    counting::wait(&target.process, time, &options.interrupt, look);
                };
                Some(counting::count(installer, &mut candidates, time, options, &mut run, progress)?)
            }
            _ => None,
        };
        if options.shuffle.is_none() {
            profile_store::reduce_to_stored_counts(&mut candidates.chosen);
        }
        progress(Progress::LayingOut);
        candidates.order(samples, options.style());
        redirects::choose_sites(installer.program, &mut candidates.chosen);
        through_redirects::choose(&mut candidates.chosen, options.style());
        inlining::choose(installer.program, &mut candidates.chosen, options.style());
        loops::choose(&mut candidates.chosen, options.style());

        options.interrupt.check()?;
        progress(Progress::Building);
        let now = Target::open(target.process.pid())?;
        let program = installer.program;
        let totals = Totals::new(program, samples, options);
        let counted = Duration::from_secs_f64(counting.as_ref().map_or(0.0, |c| c.seconds));
        let taken = Taken { exe: target.exe(), samples, counted };
        let profile = profile_store::take_down(program, &candidates, options, &taken);
        // The summary is of the last build, which is the installed one.
        let summary = Cell::new(Summary::default());
        let notes = |built: &Built| {
            let mut of_this = Summary::new(program, &candidates, built, &totals);
            of_this.user_time = user_time(program, &candidates, built, samples, options, &now);
            let notes = of_this.notes(program, &candidates, built, options);
            summary.set(of_this);
            Notes { profile: profile.clone(), ..notes }.write()
        };
        let wanted = Wanted {
            chosen: &candidates.chosen,
            callers: &[],
            style: options.style(),
            counters: None,
            notes: &notes,
        };
        let placed = installer.install(&now, wanted, progress)?;
        let report = summary.take().report(target, &placed, samples, source, counting, start.elapsed());
        let used = options.profile.as_ref().map(|p| profile_store::used(program, p, &candidates));
        let not_drawn = candidates.not_drawn;
        Ok(OptimizeReport { profile: used, stacks, without: options.left_out(), not_drawn, ..report })
    })
}

/// The user samples of this optimization, or of the profile that it uses.
struct Totals {
    all: u64,
    /// Samples in the program itself.
    main: u64,
}

impl Totals {
    fn new(program: &Program<'_>, samples: &Samples, options: &OptimizeOptions) -> Self {
        match &options.profile {
            Some(profile) => {
                let main = program.image().main().build_id.as_deref().and_then(BuildId::new);
                let known = main.and_then(|id| profile.modules.get(&id));
                // A profile has only the program's rebuilt functions.
                let main =
                    known.map_or(0, |m| m.functions.values().map(|f| f.samples).fold(0, u64::saturating_add));
                Self { all: profile.samples, main }
            }
            None => Self {
                all: samples.ips.len() as u64,
                main: samples.ips.iter().filter(|ip| program.in_main(**ip)).count() as u64,
            },
        }
    }
}

/// The figures of one rebuild.
#[derive(Default)]
struct Summary {
    coverage: f64,
    coverage_main: f64,
    refusals: BTreeMap<String, usize>,
    functions: FunctionCounts,
    dyno: Option<DynoReport>,
    user_time: Option<UserTime>,
}

/// Returns the share of user time in each category, after the build that is installed in `now`.
fn user_time(
    program: &Program<'_>,
    candidates: &Candidates,
    built: &Built,
    samples: &Samples,
    options: &OptimizeOptions,
    now: &Target,
) -> Option<UserTime> {
    let fates = shares::Fates::new(candidates, built);
    UserTime::of(&match &options.profile {
        Some(p) => shares::of_profile(candidates, &fates, p.samples, |f| program.module(f).refused),
        None => shares::of_samples(program, &fates, &samples.ips, &own_code(now), &now.maps),
    })
}

/// Returns the address ranges of whet's code in a target.
fn own_code(target: &Target) -> Vec<AvmaRange> {
    let Some(installed) = &target.installed else { return Vec::new() };
    let anchor = AvmaRange::new(installed.anchor.routine(), installed.anchor.at);
    installed.caches.iter().map(|c| c.header.text).chain([anchor]).collect()
}

impl Summary {
    fn new(program: &Program<'_>, candidates: &Candidates, built: &Built, totals: &Totals) -> Self {
        let cloned: FxHashSet<FuncId> = built.cloned.iter().map(|(f, _)| *f).collect();
        let main = |f: &FuncId| program.module_image(*f).kind == image::ModuleKind::Main;
        let sum = |keep: &dyn Fn(&FuncId) -> bool| -> u64 {
            candidates.samples.iter().filter(|(f, _)| keep(f)).map(|(_, n)| n).sum()
        };
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { round(part as f64 / whole as f64) };
        let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
        let reasons = candidates.refused.iter().map(|r| r.2).chain(built.refused.iter().map(|r| r.1));
        for reason in reasons {
            *refusals.entry(reason.code().to_owned()).or_default() += 1;
        }
        let dropped = built.entry_only.iter().filter(|e| !**e).count();
        let functions = FunctionCounts {
            hot: candidates.chosen.len() + candidates.refused.len(),
            cloned: built.cloned.len(),
            refused: candidates.refused.len() + dropped,
            last: built.cloned.iter().map(|(f, _)| *f).max().map(|f| program.name(f)),
        };
        Self {
            coverage: share(sum(&|f| cloned.contains(f)), totals.all),
            coverage_main: share(sum(&|f| cloned.contains(f) && main(f)), totals.main),
            refusals,
            functions,
            dyno: dyno::of_caches(program, &candidates.chosen, &built.caches),
            user_time: None,
        }
    }

    fn notes(
        &self,
        program: &Program<'_>,
        c: &Candidates,
        built: &Built,
        options: &OptimizeOptions,
    ) -> Notes {
        let clones: FxHashMap<FuncId, &Fragments> = built.cloned.iter().map(|(f, at)| (*f, at)).collect();
        let fragment = |f: &FuncId, n| {
            let range = clones.get(f).and_then(|fragments| fragments.ranges().nth(n))?;
            Some((range.start.0, range.len()))
        };
        let mut reasons: FxHashMap<FuncId, &str> =
            built.refused.iter().map(|(f, r)| (*f, r.code())).collect();
        reasons.extend(c.refused.iter().map(|(f, _, r)| (*f, r.code())));
        let wanted = c.chosen.iter().map(|x| (x.id, x.samples)).chain(c.refused.iter().map(|x| (x.0, x.1)));
        let functions = wanted
            .map(|(f, samples)| NotedFunction {
                name: program.name(f),
                at: program.extent(f).entry.0,
                samples,
                clone: fragment(&f, 0),
                warm: fragment(&f, 1),
                reason: reasons.get(&f).map(|&r| r.to_owned()),
            })
            .collect();
        Notes {
            shuffle: options.shuffle,
            without: options.left_out(),
            samples: c.samples.values().sum(),
            coverage: self.coverage,
            coverage_main: self.coverage_main,
            user_time: self.user_time.clone(),
            refusals: self.refusals.clone(),
            functions,
            dyno: self.dyno,
            ..Notes::default()
        }
    }

    fn report(
        self,
        target: &Target,
        placed: &Placed,
        samples: &Samples,
        source: CountSource,
        counting: Option<CountingReport>,
        took: Duration,
    ) -> OptimizeReport {
        let Placed { built, caches, mapped, report: installed, files } = placed;
        let main = built.main_cache.and_then(|i| caches.get(i));
        let huge = main.is_some_and(|c| {
            let text = c.text_range();
            splice::huge_wanted(c.text.len() as u64)
                && target
                    .process
                    .huge_pages(text)
                    .is_ok_and(|huge| huge.iter().map(|r| r.len()).sum::<u64>() == text.len())
        });
        OptimizeReport {
            pid: target.process.pid().0,
            exe: target.exe(),
            state: TargetState::Optimized,
            generation: installed.generation,
            reused: None,
            is_full: false,
            seconds: round(took.as_secs_f64()),
            samples: samples.ips.len() as u64,
            lost_samples: samples.lost,
            phases: Vec::new(),
            source: source.name(samples).to_owned(),
            without: Vec::new(),
            functions: self.functions,
            not_drawn: 0,
            refusals: self.refusals,
            coverage: self.coverage,
            coverage_main: self.coverage_main,
            user_time: self.user_time,
            code_bytes: built.code_bytes,
            mapped_bytes: *mapped,
            huge_page: huge,
            redirects: installed.toggle.done.iter().map(|(k, &n)| (k.name().to_owned(), n)).collect(),
            skipped_redirects: installed.toggle.foreign.len(),
            stop_ms: StopMs::of(&installed.toggle.stops),
            counting,
            stacks: None,
            dyno: self.dyno,
            profile: None,
            perf_map: None,
            code_files: files.clone(),
            map_stop_ms: round(installed.map_stop.as_secs_f64() * 1e3),
            whet_peak_rss_mb: peak_rss_mb(),
        }
    }
}
