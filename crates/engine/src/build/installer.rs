//! Installs generations: the program at the time of its read, and how its clones get into the process.

use crate::analyse::program::Program;
use crate::base::options::{CodeCache, MEMORY_CAP};
use crate::base::passes::{Pass, Style};
use crate::base::phases::{Span, Spans};
use crate::build::caches::{self, Bounds, Built, BuiltCache};
use crate::build::clones::Clones;
use crate::build::code_files::{self, CodeFiles};
use crate::build::file_text::FileText;
use crate::build::lookup::Lookup;
use crate::build::memory_limit;
use crate::build::places::{self, Taken};
use crate::build::round::{self, Offsets};
use crate::build::unbound;
use crate::build::unwind_hooks;
use crate::{Error, Interrupt, Progress, Target};
use addr::{Avma, AvmaRange};
use image::{Image, Mapping, ModuleId};
use rustc_hash::FxHashMap;
use splice::{CachePlan, FirstStop, InstallReport, InstallTimes, Limit, Plan, Policy, ToggleReport};

/// The common input of all generations of one command.
pub(crate) struct Installer<'a, 'm> {
    /// The process as it was when the program was read.
    pub(crate) target: &'a Target,
    /// Its code.
    pub(crate) program: &'a Program<'m>,
    /// How its unwinders are redirected.
    pub(crate) lookup: Lookup,
    /// The code in its modules' files.
    pub(crate) files: &'a FxHashMap<ModuleId, FileText>,
    /// Returns the present mappings of the other members of the target's family, between which the clones are
    /// placed as well.
    pub(crate) elsewhere: &'a (dyn Fn() -> Vec<Mapping> + Sync),
    /// The memory of clones that stay.
    pub(crate) code_cache: CodeCache,
    /// Ends the work early.
    pub(crate) interrupt: Interrupt,
    /// Gets the time of each part.
    pub(crate) spans: &'a Spans,
}

/// The input of one generation.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The functions.
    pub(crate) clones: Clones<'a>,
    /// The layout.
    pub(crate) style: Style,
    /// Returns notes for a later whet.
    pub(crate) notes: &'a dyn Fn(&Built) -> Vec<u8>,
}

impl Wanted<'_> {
    /// Returns the offsets of the counters, if the clones are to count.
    fn offsets(&self) -> Option<Offsets> {
        match self.clones {
            Clones::ToCount(round) => Some(round.offsets),
            Clones::ToRun(_) => None,
        }
    }
}

/// An installed generation.
pub(crate) struct Placed {
    /// The build, without its caches.
    pub(crate) built: Built,
    /// The cache of the program itself.
    pub(crate) main: Option<CachePlan>,
    /// Bytes of address space it takes.
    pub(crate) mapped: u64,
    pub(crate) report: InstallReport,
    /// The files of its caches, if it was to have any.
    pub(crate) files: Option<CodeFiles>,
}

/// Makes the first stop in a process that no whet has touched. It installs the routines that let calls
/// interrupted by later stops finish unnoticed.
///
/// # Errors
/// Returns [`Error`]; the process is then unchanged, except for mappings that nothing refers to.
pub(crate) fn make_first_stop(target: &Target, image: &Image, lookup: &Lookup) -> Result<(), Error> {
    places::seek(|taken| {
        let anchor_at = places::anchor(&taken.limits(&target.maps_now()?), image.main().extent)?;
        let hook = unwind_hooks::hook(target, lookup, anchor_at)?;
        let first = FirstStop { anchor_at, lookup: lookup.find_object, hook: hook.as_ref() };
        first.make(&target.process, &Policy::default(), &mut ToggleReport::default())?;
        Ok(())
    })
}

/// Adds the notes for a later whet. `counters` are the offsets of a round.
fn add_notes(caches: &mut [BuiltCache], notes: Vec<u8>, counters: Option<Offsets>) {
    let Some(offsets) = counters else {
        if let Some(first) = caches.first_mut() {
            first.plan.notes = notes;
        }
        return;
    };
    // A cache with counters already has the list by which counting ends; the round's data follow it.
    for cache in &mut *caches {
        if cache.plan.notes.is_empty() {
            cache.plan.notes = splice::CounterSites::default().write();
        }
    }
    if let Some((first, others)) = caches.split_first_mut() {
        first.plan.notes.extend(notes);
        others.iter_mut().for_each(|c| c.plan.notes.extend(round::write(offsets, &[])));
    }
}

impl Installer<'_, '_> {
    /// Builds clones for the current address space, and installs them. `target` is the process in its present
    /// state.
    ///
    /// # Errors
    /// Returns [`Error`]; a failed installation leaves nothing behind.
    pub(crate) fn install(
        &self,
        target: &Target,
        wanted: Wanted<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Placed, Error> {
        places::seek(|taken| {
            let again = taken.reopened(self.target)?;
            self.install_between(taken, again.as_ref().unwrap_or(target), wanted, progress)
        })
    }

    fn install_between(
        &self,
        taken: &Taken,
        target: &Target,
        wanted: Wanted<'_>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Placed, Error> {
        progress(Progress::Building);
        let Wanted { clones, style, .. } = wanted;
        let pid = target.process.pid();
        let installed = target.installed.as_ref();
        let mut maps = target.maps_now()?;
        maps.extend((self.elsewhere)());
        // Clones that are soon removed are not worth a file.
        let in_files = matches!(clones, Clones::ToRun(_)) && self.code_cache == CodeCache::File;
        let mut built = self.build(wanted, &taken.limits(&maps), in_files)?;
        if built.cloned.is_empty() {
            return Err(Error::NothingHot { pid, why: "no function could be cloned".to_owned() });
        }
        progress(Progress::Installing);
        let main = built.caches.iter().position(|c| c.is_main);
        let mut caches: Vec<CachePlan> = built.caches.drain(..).map(|c| c.plan).collect();
        unbound::remove(target, &mut caches);
        let mapped: u64 = caches.iter().map(|c| c.text_range().len() + c.data_len()).sum();
        let before = installed.map_or(0, splice::Installed::mapped_bytes);
        if before + mapped > MEMORY_CAP {
            return Err(Error::MemoryCap { pid, mapped: before, cap: MEMORY_CAP });
        }
        let ready = tracee::preflight(pid)?;
        let counters = wanted.offsets().map(Offsets::all);
        memory_limit::check(pid, memory_limit::need(&caches, counters.as_ref(), ready.threads))?;
        let near = AvmaRange::with_len(caches.first().map_or(Avma(0), |c| c.text_at), 1);
        let anchor_at = places::anchor(&built.limits, near)?;
        let hook = unwind_hooks::hook(target, &self.lookup, anchor_at)?;
        if in_files {
            let generation = installed.map_or(Ok(1), splice::Installed::next_generation)?;
            code_files::prepare(&mut caches, target, &code_files::names(self.program, &built), generation)?;
        }
        // Clones that are soon removed are not worth a huge page.
        let huge = counters.is_none() && style.passes.has(Pass::HugePages);
        let plan = Plan { caches, lookup: self.lookup.find_object, hook, anchor_at, counters, huge };
        let report = splice::install(&target.process, installed, &plan, &Policy::default())?;
        let InstallTimes { mapping, filling, stopping } = report.times;
        for (span, took) in [(Span::Mapping, mapping), (Span::Filling, filling), (Span::Stopping, stopping)] {
            self.spans.add(span, took);
        }
        let files = in_files.then(|| code_files::publish(&plan.caches, report.not_from_files.as_deref()));
        let main = main.and_then(|i| plan.caches.into_iter().nth(i));
        Ok(Placed { built, main, mapped, report, files })
    }

    /// Builds the caches with their notes. If no function can be cloned, the result has no clones.
    fn build(
        &self,
        wanted: Wanted<'_>,
        limits: &[(AvmaRange, Limit)],
        in_files: bool,
    ) -> Result<Built, Error> {
        let Wanted { clones, style, notes } = wanted;
        let head = if in_files { symbols::HEAD } else { 0 };
        let build = |room| -> Result<Built, Error> {
            let bounds = Bounds { notes: room, head, interrupt: &self.interrupt, spans: self.spans };
            let mut built = caches::build(self.program, clones, limits.to_vec(), style, &bounds)?;
            let notes = notes(&built);
            add_notes(&mut built.caches, notes, wanted.offsets());
            Ok(built)
        };
        let first = build(0)?;
        if first.cloned.is_empty() || first.fits() {
            return Ok(first);
        }
        // Notes about the new clones may be somewhat longer.
        let notes = first.caches.first().map_or(0, |first| first.plan.notes.len() as u64);
        let second = build(notes.saturating_mul(2))?;
        if second.fits() {
            Ok(second)
        } else {
            Err(Error::Build("the notes about a cache depend on its address".to_owned()))
        }
    }
}
