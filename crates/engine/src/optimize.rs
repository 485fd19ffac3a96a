//! `optimize`: from a pid to clones in execution.

use crate::build::Built;
use crate::candidates::{self, Candidates};
use crate::claim::Claim;
use crate::counting::{self, CountingReport};
use crate::dyno::{self, DynoReport};
use crate::file_text::{self, FileText};
use crate::ground::{Ground, Placed, Wanted};
use crate::lock::TargetLock;
use crate::lookup;
use crate::notes::{NotedFunction, Notes};
use crate::passes::{Pass, Passes, Style};
use crate::profile_store::Taken;
use crate::program::{FuncId, Program};
use crate::report::{FunctionCounts, OptimizeReport, StopMs, TargetState};
use crate::samples::{self, Samples};
use crate::source::CountSource;
use crate::{
    Error, Interrupt, Target, UserTime, late_bound, loops, map_store, perf_map, profile_store, redirects,
    restore, reuse, shares, shortcuts, unloadable, walk,
};
use addr::{AvmaRange, ReadMemory};
use emit::{AddressMap, Fragments};
use image::Image;
use profile::{BuildId, Profile};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracee::{Pid, Raised};

/// Address space that clones of all generations may take in one target. Bytes.
pub const MEMORY_CAP: u64 = 128 << 20;

/// How to optimize.
#[derive(Clone, Debug, Default)]
pub struct OptimizeOptions {
    /// When to break off.
    pub interrupt: Interrupt,
    /// How long to sample.
    pub sampling: Duration,
    /// After that, count edges exactly for so long a round; `None` infers them from samples.
    pub counting: Option<Duration>,
    /// Clone everything in random order, from this seed.
    pub shuffle: Option<u64>,
    /// Neither sample nor count: what to clone and how it ran is told by this.
    pub profile: Option<Arc<Profile>>,
    /// What is done to make clones faster.
    pub passes: Passes,
    /// Only these functions.
    pub only: Vec<String>,
    /// Only so many functions that can be cloned.
    pub max_functions: Option<usize>,
    /// Write a perf map for profilers.
    pub perf_map: bool,
    /// Address space that clones of all generations may take; [`MEMORY_CAP`] at most, and where this is `None`. Bytes.
    pub memory_cap: Option<u64>,
}

impl OptimizeOptions {
    /// How clones are to be laid out.
    pub(crate) fn style(&self) -> Style {
        Style { shuffle: self.shuffle, passes: self.passes }
    }

    /// The names of the passes that it goes without.
    pub(crate) fn left_out(&self) -> Vec<String> {
        self.passes.left_out().map(|p| p.to_string()).collect()
    }

    /// Whether a function may be rebuilt at all.
    pub(crate) fn takes(&self, program: &Program<'_>, f: FuncId) -> bool {
        self.passes.has(Pass::Libraries) || program.module_image(f).kind == image::ModuleKind::Main
    }
}

/// What is going on.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// Reading modules and functions.
    Reading,
    /// Taking samples.
    Sampling {
        /// So far.
        samples: usize,
        /// Still to go.
        left: Duration,
    },
    /// Building clones.
    Building,
    /// Building clones in random order.
    Shuffling {
        /// So many.
        functions: usize,
        /// Functions that there is no room for.
        left_out: usize,
    },
    /// Counting edges.
    Counting {
        /// Of so many functions.
        functions: usize,
    },
    /// Putting them in place.
    Installing,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Reading => f.write_str("reading the program"),
            Progress::Sampling { samples, left } => {
                write!(f, "profiling: {samples} samples, {:.0} s to go", left.as_secs_f64().ceil())
            }
            Progress::Counting { functions: 1 } => f.write_str("counting in 1 function"),
            Progress::Shuffling { functions, left_out: 0 } => write!(f, "building {functions} clones"),
            Progress::Shuffling { functions, left_out } => {
                write!(
                    f,
                    "building {functions} clones; {left_out} functions are left out, as there are too many"
                )
            }
            Progress::Counting { functions } => write!(f, "counting in {functions} functions"),
            Progress::Building => f.write_str("building clones"),
            Progress::Installing => f.write_str("installing"),
        }
    }
}

/// Profiles a process, rebuilds its hot functions and puts them in place.
///
/// # Errors
/// [`Error`]; until the installation begins the target is untouched.
pub fn optimize(
    pid: Pid,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<OptimizeReport, Error> {
    let (process, mut lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    let _favoured = Raised::favoured();
    restore::end_counting(pid)?;
    let options = &OptimizeOptions { interrupt: options.interrupt.watching(&process), ..options.clone() };
    let target = Target::open(pid)?;
    let was_optimized = restore::is_optimized(&target);
    let mut told = |p: Progress| {
        lock.tell(&p);
        progress(p);
    };
    let outcome = rebuild_or_reuse(&target, options, &mut told);
    let report = restore::or_restore(&target, was_optimized, outcome)?;
    // A file system of the target's that hangs is not to keep an undo out.
    drop(lock);
    Ok(OptimizeReport { perf_map: options.perf_map.then(|| perf_map::refresh(pid)), ..report })
}

/// Where there is no room for new clones, an earlier generation does.
fn rebuild_or_reuse(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<OptimizeReport, Error> {
    let may_reuse = reuse::is_possible(options);
    let is_full = target.installed.as_ref().is_some_and(|i| reuse::is_full(i, options));
    if may_reuse
        && is_full
        && let Some(report) = reuse::reuse(target, options, progress)?
    {
        return Ok(report);
    }
    match rebuild(target, options, progress) {
        Err(e) if may_reuse && reuse::no_room(&e) => {
            // Clones that counted have left their traces since.
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
    on_ground(target, options, progress, |ground, mut candidates, samples, progress| {
        let source = CountSource::decide(options, samples);
        let stacks = (source == CountSource::BranchStacks).then(|| candidates.count_by_stacks(samples));
        let counting = match source {
            CountSource::Counters(time) => {
                let mut run = |look: &mut counting::Look<'_>| {
                    counting::wait(&target.process, time, &options.interrupt, look);
                };
                Some(counting::count(ground, &mut candidates, time, options, &mut run, progress)?)
            }
            _ => None,
        };
        if options.shuffle.is_none() {
            profile_store::settle(&mut candidates.chosen);
        }
        candidates.order(samples, options.style());
        redirects::choose_sites(ground.program, &mut candidates.chosen);
        late_bound::choose(&mut candidates.chosen, options.style());
        shortcuts::choose(ground.program, &mut candidates.chosen, options.style());
        loops::choose(&mut candidates.chosen, options.style());

        options.interrupt.check()?;
        progress(Progress::Installing);
        let now = Target::open(target.process.pid())?;
        let program = ground.program;
        let totals = Totals::new(program, samples, options);
        let counted = Duration::from_secs_f64(counting.as_ref().map_or(0.0, |c| c.seconds));
        let taken = Taken { exe: target.exe(), samples, counted };
        let profile = profile_store::take_down(program, &candidates, options, &taken);
        // Of the build that was installed, as the last one.
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
        let placed = ground.install(&now, wanted)?;
        let report = summary.take().report(target, &placed, samples, source, counting, start.elapsed());
        let used = options.profile.as_ref().map(|p| profile_store::used(program, p, &candidates));
        let not_drawn = candidates.not_drawn;
        Ok(OptimizeReport { profile: used, stacks, without: options.left_out(), not_drawn, ..report })
    })
}

/// Finds out what there is to clone, and does something with it. The target is untouched until then.
///
/// # Errors
/// [`Error`]
pub(crate) fn on_ground<R>(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
    then: impl FnOnce(&Ground<'_, '_>, Candidates, &Samples, &mut dyn FnMut(Progress)) -> Result<R, Error>,
) -> Result<R, Error> {
    let pid = target.process.pid();
    if let Some(installed) = &target.installed {
        splice::settle(&target.process, &installed.anchor)?;
    }
    check_cap(target, options)?;

    progress(Progress::Reading);
    let image = target.image()?;
    let pristine = target.pristine();
    check_program(pid, &image, &pristine)?;
    let lookup = lookup::find(target, &image)?;
    let unmarked = unloadable::mark(target, &image, &lookup);
    let files = file_texts(target, &image);
    let samples = match (options.shuffle, &options.profile) {
        (Some(_), _) | (_, Some(_)) => Samples::default(),
        (None, None) => samples::take(&target.process, options, earlier_maps(target), progress)?,
    };
    progress(Progress::Building);
    let mut program = Program::new(image, &pristine);
    options.interrupt.check()?;
    program.leave(&unmarked, code::Refusal::ModuleMayUnload);
    program.keep(lookup.walk.iter().flat_map(|w| &w.words).map(|w| w.at));
    let mut candidates = match &options.profile {
        Some(profile) => profile_store::candidates(&program, pid, profile, options)?,
        None => candidates::choose(&program, pid, &samples, options)?,
    };
    if options.shuffle.is_some() {
        progress(Progress::Shuffling { functions: candidates.chosen.len(), left_out: candidates.not_drawn });
    }
    let all = candidates.chosen.len();
    candidates.chosen.retain(|c| options.takes(&program, c.id));
    let left_out = all - candidates.chosen.len();
    leave_foreign_changes(&program, &files, &mut candidates);
    walk::take(&program, &lookup, &mut candidates);
    if candidates.chosen.is_empty() {
        return Err(Error::NothingHot { pid, why: nothing(&candidates, &samples, left_out) });
    }
    match CountSource::decide(options, &samples) {
        CountSource::Counters(_) | CountSource::Samples if options.shuffle.is_none() => {
            candidates.infer(&samples);
        }
        _ => {}
    }
    let interrupt = options.interrupt.clone();
    let ground = Ground { target, program: &program, lookup, files, interrupt };
    then(&ground, candidates, &samples, progress)
}

fn check_cap(target: &Target, options: &OptimizeOptions) -> Result<(), Error> {
    let cap = options.memory_cap.unwrap_or(MEMORY_CAP).min(MEMORY_CAP);
    match &target.installed {
        Some(i) if i.mapped_bytes() >= cap => {
            Err(Error::MemoryCap { pid: target.process.pid(), mapped: i.mapped_bytes(), cap })
        }
        _ => Ok(()),
    }
}

/// Refuses what whet leaves alone as a whole.
fn check_program(pid: Pid, image: &Image, memory: &dyn ReadMemory) -> Result<(), Error> {
    if let Some(runtime) = image::runtime::detect(image, memory) {
        return Err(Error::Unsupported {
            pid,
            code: runtime.code(),
            why: format!(
                "it holds a runtime ({}) that looks code addresses up in tables of its own",
                runtime.code()
            ),
        });
    }
    Ok(())
}

/// The file text of every module that has a file.
fn file_texts(target: &Target, image: &Image) -> FxHashMap<usize, FileText> {
    let load = |(i, m)| Some((i, FileText::load(&target.process, image, m)?));
    image.modules().iter().enumerate().filter_map(load).collect()
}

/// The address maps of clones that may be running now.
fn earlier_maps(target: &Target) -> Vec<AddressMap> {
    target
        .installed
        .iter()
        .flat_map(|i| &i.caches)
        .filter_map(|c| c.map(&target.process).ok())
        .flat_map(|bytes| map_store::read(&bytes))
        .map(|(_, map)| map)
        .collect()
}

/// Takes out what somebody else has patched: whose code it is then is not for whet to say.
fn leave_foreign_changes(
    program: &Program<'_>,
    files: &FxHashMap<usize, FileText>,
    candidates: &mut Candidates,
) {
    for c in candidates.chosen.extract_if(.., |c| file_text::is_foreign(program, files, c.id, &c.analysed)) {
        candidates.refused.push((c.id, c.samples, code::Refusal::ForeignChange));
    }
}

fn nothing(candidates: &Candidates, samples: &Samples, left_out: usize) -> String {
    if left_out > 0 {
        format!("what could be cloned is libraries' and left out (functions: {left_out})")
    } else if samples.ips.is_empty() {
        "it used no CPU time in user mode while it was sampled".to_owned()
    } else {
        format!("nothing that it ran can be cloned (functions: {})", candidates.refused.len())
    }
}

/// The user samples that there were, in this optimization or in the profile.
struct Totals {
    all: u64,
    /// In the program itself.
    main: u64,
}

impl Totals {
    fn new(program: &Program<'_>, samples: &Samples, options: &OptimizeOptions) -> Self {
        match &options.profile {
            Some(profile) => {
                let main = program.image().main().build_id.as_deref().and_then(BuildId::new);
                let known = main.and_then(|id| profile.modules.get(&id));
                // Of the program a profile has only what was rebuilt.
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

/// The share of user time in each row, after the build that is installed in `now`.
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

/// Where whet's code is in a target.
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
        let Placed { built, caches, mapped, report: installed } = placed;
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
            seconds: round(took.as_secs_f64()),
            samples: samples.ips.len() as u64,
            lost_samples: samples.lost,
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
            map_stop_ms: round(installed.map_stop.as_secs_f64() * 1e3),
            whet_peak_rss_mb: peak_rss_mb(),
        }
    }
}

/// To four places.
pub(crate) fn round(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}

/// Peak resident memory of this program, in MB of 10^6 bytes.
pub(crate) fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|v| v.trim().strip_suffix(" kB"))
        .and_then(|v| v.trim().parse::<f64>().ok());
    round(kib.unwrap_or(0.0) * 1024.0 / 1e6)
}
