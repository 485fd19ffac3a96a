//! Finds what can be cloned in a process.

use crate::analyse::program::Program;
use crate::base::options::MEMORY_CAP;
use crate::base::phases::Spans;
use crate::build::file_text::{self, FileText};
use crate::build::installer::Installer;
use crate::build::lookup;
use crate::build::map_store;
use crate::build::unloadable;
use crate::build::unwind_hooks;
use crate::count::sampling;
use crate::family::kin::Kin;
use crate::plan::candidate::{Candidate, Counted};
use crate::plan::candidates::{self, Candidates};
use crate::plan::samples::Samples;
use crate::records::profile_store::{self, Adapted};
use crate::session::target::check_program;
use crate::{Error, OptimizeOptions, Progress, Target};
use emit::AddressMap;
use image::{Image, ModuleId};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tracee::Pid;

/// The functions to clone: with counts from a profile, or without counts.
pub(crate) enum Found {
    /// They were chosen by samples, or for a random layout.
    Sampled(Candidates<Candidate>),
    /// A profile has them, with their counts.
    Profiled(Candidates<Counted>, Arc<Adapted>),
}

/// The functions to clone, and the samples of the target.
pub(crate) struct Prepared<'a> {
    /// The functions.
    pub(crate) found: Found,
    /// All samples.
    pub(crate) samples: &'a Samples,
}

/// Finds the functions of a target to clone and passes them to `then`. The target is untouched until then.
///
/// # Errors
/// Returns [`Error`].
pub(crate) fn with_installer<R>(
    target: &Target,
    kin: &Kin,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
    then: impl FnOnce(&Installer<'_, '_>, Prepared<'_>, &mut dyn FnMut(Progress)) -> Result<R, Error>,
) -> Result<R, Error> {
    let pid = target.process.pid();
    if let Some(installed) = &target.installed {
        splice::recover_pending(&target.process, &installed.anchor)?;
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
        (None, None) => sampling::take(&target.process, kin, options, earlier_maps(target), progress)?,
    };
    progress(Progress::Analysing);
    let mut program = Program::new(image, &pristine);
    options.interrupt.check()?;
    program.leave(&unmarked, code::Refusal::ModuleMayUnload);
    program.keep(lookup.places.iter().map(|p| p.at));
    let installer = Installer {
        target,
        program: &program,
        lookup,
        files: &files,
        elsewhere: &|| kin.maps(),
        code_cache: options.code_cache,
        interrupt: options.interrupt.clone(),
        spans: &Spans::default(),
    };
    let found = find(&installer, options, &samples, progress)?;
    then(&installer, Prepared { found, samples: &samples }, progress)
}

/// Chooses the functions to clone, by a profile or by samples.
fn find(
    installer: &Installer<'_, '_>,
    options: &OptimizeOptions,
    samples: &Samples,
    progress: &mut dyn FnMut(Progress),
) -> Result<Found, Error> {
    let (pid, program) = (installer.target.process.pid(), installer.program);
    let only = match options.only.as_slice() {
        [] => None,
        names => Some(candidates::named(program, names).map_err(|name| no_such_function(pid, name))?),
    };
    Ok(match &options.profile {
        Some(profile) => {
            let adapted = Arc::new(profile_store::adapt(program, profile));
            let all = profile_store::candidates(program, pid, &adapted, options, only.as_ref())?;
            Found::Profiled(usable(installer, all, options, samples, progress)?, adapted)
        }
        None => {
            let all = candidates::choose(program, samples, options, only.as_ref())?;
            Found::Sampled(usable(installer, all, options, samples, progress)?)
        }
    })
}

/// Removes the functions that must not be rebuilt.
///
/// # Errors
/// Returns [`Error::NothingHot`] if none is left.
fn usable<F: AsRef<Candidate>>(
    installer: &Installer<'_, '_>,
    mut candidates: Candidates<F>,
    options: &OptimizeOptions,
    samples: &Samples,
    progress: &mut dyn FnMut(Progress),
) -> Result<Candidates<F>, Error> {
    let &Installer { target, program, ref lookup, files, .. } = installer;
    if options.shuffle.is_some() {
        progress(Progress::Shuffling { functions: candidates.chosen.len(), left_out: candidates.not_drawn });
    }
    let all = candidates.chosen.len();
    candidates.chosen.retain(|c| candidates::may_be_rebuilt(program, c.as_ref().id, options));
    let left_out = all - candidates.chosen.len();
    // Another program has patched these functions: whet must not decide which code is right.
    let is_foreign = |c: &Candidate| file_text::is_foreign(files, c.id, &c.analysed);
    candidates.refuse(|c| is_foreign(c).then_some(code::Refusal::ForeignChange));
    let kept = unwind_hooks::kept(program, lookup);
    candidates.refuse(|c| kept.contains(&c.id).then_some(code::Refusal::RuntimeInternal));
    if candidates.chosen.is_empty() {
        let why = nothing(&candidates, samples, left_out);
        return Err(Error::NothingHot { pid: target.process.pid(), why });
    }
    Ok(candidates)
}

fn no_such_function(pid: Pid, name: &str) -> Error {
    Error::NoSuchFunction { pid, name: name.to_owned() }
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

/// Opens the file of every module that has one.
pub(crate) fn file_texts(target: &Target, image: &Image) -> FxHashMap<ModuleId, FileText> {
    let load = |(id, m)| Some((id, FileText::load(&target.process, image, m)?));
    image.numbered_modules().filter_map(load).collect()
}

/// Returns the address maps of clones that may be running now.
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

fn nothing<F>(candidates: &Candidates<F>, samples: &Samples, left_out: usize) -> String {
    if left_out > 0 {
        format!("what could be cloned is libraries' and left out (functions: {left_out})")
    } else if samples.ips.is_empty() && candidates.refused.is_empty() {
        "it used no CPU time in user mode while it was sampled".to_owned()
    } else {
        format!("nothing of it can be cloned (functions: {})", candidates.refused.len())
    }
}
