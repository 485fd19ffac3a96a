//! Finds what can be cloned in a process.

use crate::analyse::program::Program;
use crate::base::options::MEMORY_CAP;
use crate::build::file_text::{self, FileText};
use crate::build::installer::Installer;
use crate::build::lookup;
use crate::build::map_store;
use crate::build::unloadable;
use crate::build::unwind_hooks;
use crate::count::sampling;
use crate::count::source::CountSource;
use crate::plan::candidates::{self, Candidates};
use crate::plan::samples::Samples;
use crate::records::profile_store;
use crate::{Error, OptimizeOptions, Progress, Target};
use addr::ReadMemory;
use emit::AddressMap;
use image::Image;
use rustc_hash::FxHashMap;
use tracee::Pid;

/// Finds the candidates of a target and passes them to `then`. The target is untouched until then.
///
/// # Errors
/// Returns [`Error`].
pub(crate) fn with_installer<R>(
    target: &Target,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
    then: impl FnOnce(&Installer<'_, '_>, Candidates, &Samples, &mut dyn FnMut(Progress)) -> Result<R, Error>,
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
        (None, None) => sampling::take(&target.process, options, earlier_maps(target), progress)?,
    };
    progress(Progress::Analysing);
    let mut program = Program::new(image, &pristine);
    options.interrupt.check()?;
    program.leave(&unmarked, code::Refusal::ModuleMayUnload);
    program.keep(lookup.places.iter().map(|p| p.at));
    let only = match options.only.as_slice() {
        [] => None,
        names => Some(candidates::named(&program, names).map_err(|name| no_such_function(pid, name))?),
    };
    let mut candidates = match &options.profile {
        Some(profile) => profile_store::candidates(&program, pid, profile, options, only.as_ref())?,
        None => candidates::choose(&program, &samples, options, only.as_ref())?,
    };
    if options.shuffle.is_some() {
        progress(Progress::Shuffling { functions: candidates.chosen.len(), left_out: candidates.not_drawn });
    }
    let all = candidates.chosen.len();
    candidates.chosen.retain(|c| candidates::may_be_rebuilt(&program, c.id, options));
    let left_out = all - candidates.chosen.len();
    leave_foreign_changes(&program, &files, &mut candidates);
    unwind_hooks::take(&program, &lookup, &mut candidates);
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
    let code_cache = options.code_cache;
    let installer = Installer { target, program: &program, lookup, files, code_cache, interrupt };
    then(&installer, candidates, &samples, progress)
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

/// Refuses programs that whet leaves alone as a whole.
pub(crate) fn check_program(pid: Pid, image: &Image, memory: &dyn ReadMemory) -> Result<(), Error> {
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

/// Opens the file of every module that has one.
pub(crate) fn file_texts(target: &Target, image: &Image) -> FxHashMap<usize, FileText> {
    let load = |(i, m)| Some((i, FileText::load(&target.process, image, m)?));
    image.modules().iter().enumerate().filter_map(load).collect()
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

/// Removes functions that another program has patched: whet must not decide which code is right.
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
    } else if samples.ips.is_empty() && candidates.refused.is_empty() {
        "it used no CPU time in user mode while it was sampled".to_owned()
    } else {
        format!("nothing of it can be cloned (functions: {})", candidates.refused.len())
    }
}
