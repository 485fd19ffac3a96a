//! `optimize`: from a pid to clones in execution.

use crate::base::phases::PhaseClock;
use crate::build::caches::Built;
use crate::build::clones::Clones;
use crate::build::installer::{Installer, Placed, Wanted};
use crate::build::space;
use crate::count::prepare::{Found, with_installer};
use crate::count::source::{self, Counts};
use crate::debuggers::perf_map;
use crate::family::kin::Kin;
use crate::plan::lay_out::lay_out;
use crate::rebuild::figures::Basis;
use crate::rebuild::report::{Done, Figures, InForce, OptimizeReport};
use crate::rebuild::reuse;
use crate::records::notes::Notes;
use crate::records::profile_store::{self, Taken};
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::restore;
use crate::{Error, OptimizeOptions, Progress, Target};
use std::cell::Cell;
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
    optimize_with(pid, &Kin::default(), options, progress)
}

/// Does the same for a process with its family: all members are sampled, and the clones are placed where each
/// of them has room.
///
/// # Errors
/// As [`optimize`].
pub(crate) fn optimize_with(
    pid: Pid,
    kin: &Kin,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<OptimizeReport, Error> {
    let mut clock = PhaseClock::start();
    let (process, mut lock) = TargetLock::open(pid)?;
    Claim::overrule(&process);
    let _favoured = Raised::favoured();
    restore::end_counting(pid)?;
    let options = &OptimizeOptions { interrupt: options.interrupt.watching(&process), ..options.clone() };
    let target = lock.target(pid)?;
    let was_optimized = restore::is_optimized(&target);
    let mut on_progress = |p: Progress| {
        clock.step(&p);
        lock.show(&p);
        progress(p);
    };
    let outcome = rebuild_or_reuse(&target, kin, options, &mut on_progress);
    let done = restore::or_restore(&target, was_optimized, outcome)?;
    // Release the lock first: a hanging file system of the target must not block an undo.
    drop(lock);
    let perf_map = options.perf_map.then(|| perf_map::refresh(pid));
    let phases = clock.stop(&done.spans);
    Ok(done.report(&target, options, phases, perf_map))
}

/// Rebuilds, or uses an earlier generation if there is no room for new clones.
fn rebuild_or_reuse(
    target: &Target,
    kin: &Kin,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Done, Error> {
    let may_reuse = reuse::is_possible(options);
    let is_full = target.installed.as_ref().is_some_and(|i| space::is_full(i, options));
    if may_reuse
        && is_full
        && let Some(done) = reuse::reuse(target, kin, options, progress)?
    {
        return Ok(done);
    }
    match rebuild(target, kin, options, progress) {
        Err(e) if may_reuse && space::no_room(&e) => {
            // Counting clones have changed the target since it was opened.
            let target = target.again()?;
            reuse::reuse(&target, kin, options, progress)?.ok_or(e)
        }
        outcome => outcome,
    }
}

fn rebuild(
    target: &Target,
    kin: &Kin,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Done, Error> {
    let begun = Instant::now();
    with_installer(target, kin, options, progress, |installer, prepared, progress| {
        let program = installer.program;
        let samples = prepared.samples;
        if options.prefer_earlier
            && reuse::is_possible(options)
            && let Found::Sampled(candidates) = &prepared.found
            && let Some(earlier) = reuse::nearly_as_good(target, program, candidates, samples, options)?
        {
            let context = reuse::Context { target, samples, options, begun };
            return earlier.put_in_force(&context, program.image().main().extent, progress);
        }
        let adapted = match &prepared.found {
            Found::Profiled(_, adapted) => Some(adapted.clone()),
            Found::Sampled(_) => None,
        };
        let counts = source::count(installer, kin, prepared, options, progress)?;
        let Counts { candidates, source, counting, stacks } = counts;
        progress(Progress::LayingOut);
        let counted = Duration::from_secs_f64(counting.as_ref().map_or(0.0, |c| c.seconds));
        let taken = Taken { exe: target.exe(), samples, counted };
        let profile = profile_store::take_down(program, &candidates.chosen, options, &taken);
        let laid_out = candidates.map(|counted| lay_out(program, counted, options.style()));
        options.interrupt.check()?;
        // The time of clones that count belongs to the counting.
        drop(installer.spans.take());
        progress(Progress::Building);
        let now = &target.again()?;
        let basis = Basis { program, laid_out: &laid_out, samples, options, now };
        let in_force = install(installer, &basis, &profile, progress)?;
        Ok(Done {
            took: begun.elapsed(),
            samples: samples.ips.len(),
            lost_samples: samples.lost,
            source: source.name(samples),
            counting,
            stacks,
            profile: adapted.map(|a| profile_store::used(program, &a, &laid_out)),
            not_drawn: laid_out.not_drawn,
            spans: installer.spans.take(),
            in_force,
        })
    })
}

/// Builds and installs the clones. `profile` is kept in the target.
fn install(
    installer: &Installer<'_, '_>,
    basis: &Basis<'_, '_>,
    profile: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<InForce, Error> {
    // The figures are of the last build, which is the installed one.
    let last = Cell::new(Figures::default());
    let notes = |built: &Built| {
        let figures = Figures::new(basis, built);
        let notes = figures.notes(basis, built);
        last.set(figures);
        Notes { profile: profile.to_owned(), ..notes }.write()
    };
    let clones = Clones::ToRun(&basis.laid_out.chosen);
    let wanted = Wanted { clones, style: basis.options.style(), notes: &notes };
    let placed = installer.install(basis.now, wanted, progress)?;
    Ok(in_force(installer.target, placed, last.take()))
}

fn in_force(target: &Target, placed: Placed, figures: Figures) -> InForce {
    let Placed { built, main, mapped, report, files } = placed;
    let huge_page = main.is_some_and(|c| {
        let text = c.text_range();
        splice::huge_wanted(c.text.len() as u64)
            && target
                .process
                .huge_pages(text)
                .is_ok_and(|huge| huge.iter().map(|r| r.len()).sum::<u64>() == text.len())
    });
    InForce {
        generation: report.generation,
        reused: None,
        is_full: false,
        figures,
        code_bytes: built.code_bytes,
        mapped_bytes: mapped,
        huge_page,
        toggle: report.toggle,
        map_stop: report.map_stop,
        code_files: files,
    }
}
