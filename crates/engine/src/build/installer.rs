//! Where generations are put: the program as it was read, and how clones of it get into the process.

use crate::analyse::program::Program;
use crate::base::options::MEMORY_CAP;
use crate::base::passes::{Pass, Style};
use crate::build::caches::{self, Bounds, Built};
use crate::build::file_text::FileText;
use crate::build::lookup::Lookup;
use crate::build::memory_limit;
use crate::build::round::{self, Offsets};
use crate::build::unwind_hooks;
use crate::plan::candidate::Candidate;
use crate::{Error, Interrupt, Target};
use addr::{Avma, AvmaRange};
use image::Image;
use rustc_hash::FxHashMap;
use splice::{CachePlan, FirstStop, InstallReport, Plan, Policy, ToggleReport};

/// How many more places to try where the target maps faster than whet builds.
const PLACES: usize = 3;

/// What all generations of one command are made from.
pub(crate) struct Installer<'a, 'm> {
    /// The process as it was when the program was read.
    pub(crate) target: &'a Target,
    /// Its code.
    pub(crate) program: &'a Program<'m>,
    /// How its unwinders are told.
    pub(crate) lookup: Lookup,
    /// What its modules' files say, by the module's place in the image.
    pub(crate) files: FxHashMap<usize, FileText>,
    /// When to break off.
    pub(crate) interrupt: Interrupt,
}

/// What a generation is made of.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The functions, with the orders of their blocks.
    pub(crate) chosen: &'a [Candidate],
    /// Functions of earlier generations: their direct calls lead to clones, too.
    pub(crate) callers: &'a [Candidate],
    /// How they are laid out.
    pub(crate) style: Style,
    /// Where its clones only count: the offsets at which they do.
    pub(crate) counters: Option<Offsets>,
    /// What the next whet should know.
    pub(crate) notes: &'a dyn Fn(&Built) -> Vec<u8>,
}

/// A generation in place.
pub(crate) struct Placed {
    pub(crate) built: Built,
    pub(crate) caches: Vec<CachePlan>,
    /// Bytes of address space it takes.
    pub(crate) mapped: u64,
    pub(crate) report: InstallReport,
}

/// Makes the stop by which no later one is felt, in a process that no whet has touched.
///
/// # Errors
/// [`Error`]; the process is as it was then, but for mappings that nothing refers to.
pub(crate) fn make_first_stop(target: &Target, image: &Image, lookup: &Lookup) -> Result<(), Error> {
    let holes = caches::holes(&target.maps);
    let near = [image.main().extent];
    let request = splice::Request { mappings: &holes, near: &near, len: 2 << 20, low: false };
    let anchor_at = splice::place(&request).map_err(splice::Error::from)?;
    let hook = unwind_hooks::hook(target, lookup, anchor_at)?;
    let first = FirstStop { anchor_at, lookup: lookup.find_object, hook: hook.as_ref() };
    first.make(&target.process, &Policy::default(), &mut ToggleReport::default())?;
    Ok(())
}

impl Installer<'_, '_> {
    /// Builds clones for the address space as it is now, and installs them. `target` is the process as it is now.
    ///
    /// # Errors
    /// [`Error`]; what was not installed leaves nothing.
    pub(crate) fn install(&self, target: &Target, wanted: Wanted<'_>) -> Result<Placed, Error> {
        let mut again = None;
        for _ in 0..PLACES {
            match self.install_once(again.as_ref().unwrap_or(target), wanted) {
                // Something was mapped at the chosen place meanwhile: a thread's stack, a library. The anchor may be there by now.
                Err(Error::Splice(splice::Error::Map { errno: splice::EEXIST, .. })) => {
                    again = Some(Target::open(target.process.pid())?);
                }
                other => return other,
            }
        }
        self.install_once(again.as_ref().unwrap_or(target), wanted)
    }

    fn install_once(&self, target: &Target, wanted: Wanted<'_>) -> Result<Placed, Error> {
        let Wanted { chosen, callers, style, counters, notes } = wanted;
        let pid = target.process.pid();
        let installed = target.installed.as_ref();
        if target.undos() != self.target.undos() {
            return Err(Error::Changed { pid });
        }
        let maps = image::maps::parse(&target.process.maps_text()?)?;
        let build = |notes| {
            let bounds = Bounds { notes, interrupt: &self.interrupt };
            caches::build(self.program, chosen, callers, &maps, style, &bounds)
        };
        let noted = |mut built: Built| {
            let notes = notes(&built);
            match &counters {
                // What says how to end counting is there already, unless nothing counts.
                Some(offsets) => {
                    for (i, cache) in built.caches.iter_mut().enumerate() {
                        if cache.notes.is_empty() {
                            cache.notes = splice::CounterSites::default().write();
                        }
                        match i {
                            0 => cache.notes.extend(&notes),
                            _ => cache.notes.extend(round::write(*offsets, &[])),
                        }
                    }
                }
                None => built.caches.first_mut().into_iter().for_each(|first| first.notes = notes.clone()),
            }
            built
        };
        let mut built = noted(build(0)?);
        if built.cloned.is_empty() {
            return Err(Error::NothingHot { pid, why: "no function could be cloned".to_owned() });
        }
        if !built.fits() {
            // What is noted of other clones may be somewhat more.
            let notes = built.caches.first().map_or(0, |first| first.notes.len() as u64);
            built = noted(build(notes.saturating_mul(2))?);
            if !built.fits() {
                return Err(Error::Build("the notes about a cache depend on its address".to_owned()));
            }
        }
        let mapped: u64 = built.caches.iter().map(|c| c.text_range().len() + c.data_len()).sum();
        let before = installed.map_or(0, splice::Installed::mapped_bytes);
        if before + mapped > MEMORY_CAP {
            return Err(Error::MemoryCap { pid, mapped: before, cap: MEMORY_CAP });
        }
        let ready = tracee::preflight(pid)?;
        let counters = counters.map(Offsets::all);
        memory_limit::check(pid, &built.caches, counters.as_ref(), ready.threads)?;
        let anchor_at = Self::place_anchor(&built)?;
        let hook = unwind_hooks::hook(target, &self.lookup, anchor_at)?;
        let caches = std::mem::take(&mut built.caches);
        // What is to go again soon is not worth a huge page.
        let huge = counters.is_none() && style.passes.has(Pass::HugePages);
        let plan = Plan { caches, lookup: self.lookup.find_object, hook, anchor_at, counters, huge };
        let report = splice::install(&target.process, installed, &plan, &Policy::default())?;
        Ok(Placed { built, caches: plan.caches, mapped, report })
    }

    /// The place of a new anchor: near the first cache.
    fn place_anchor(built: &Built) -> Result<Avma, Error> {
        let near = AvmaRange::with_len(built.caches.first().map_or(Avma(0), |c| c.text_at), 1);
        let request = splice::Request { mappings: &built.holes, near: &[near], len: 2 << 20, low: false };
        Ok(splice::place(&request).map_err(splice::Error::from)?)
    }
}
