//! Names of functions in stripped files, from files that debuginfod servers have.
//!
//! They are used for what is shown, never for decisions. A file is used only if it has the build-id of the
//! module.

use crate::Target;
use crate::records::profile_store::loaded;
use crate::show::debuginfod::{Debuginfod, OnDisk};
use addr::Avma;
use image::{FileParts, Files, Image, Mapping};
use profile::{BuildId, Profile};
use rustc_hash::FxHashMap;
use tracee::Pid;

/// Names by address.
pub(crate) type Names = FxHashMap<Avma, String>;

/// Returns names of those functions, given by the addresses of their entries, that have none in their own
/// files. Empty if no servers are named.
pub(crate) fn names(target: &Target, image: &Image, entries: &[Avma], debuginfod: &mut Debuginfod) -> Names {
    if !debuginfod.is_on() {
        return Names::default();
    }
    let name = |image: &Image, at: Avma| {
        Some(image.module_of(at)?.symbols.function_starting_at(at)?.name.to_owned())
    };
    let unnamed: Vec<Avma> = entries.iter().copied().filter(|&at| name(image, at).is_none()).collect();
    let mut fetched = Fetched { of_target: Box::new(target.files()), files: FxHashMap::default() };
    for module in unnamed.iter().filter_map(|&at| image.module_of(at)) {
        let id = module.build_id.as_deref().and_then(BuildId::new);
        if let Some(file) = id.and_then(|id| debuginfod.file(id)) {
            fetched.files.insert(module.extent.start, file);
        }
    }
    if fetched.files.is_empty() {
        return Names::default();
    }
    let Ok(named) = target.image_by(&fetched) else { return Names::default() };
    unnamed.into_iter().filter_map(|at| Some((at, name(&named, at)?))).collect()
}

/// Adds names to the functions of a profile that have none, for a form that is read by people.
///
/// # Errors
/// Errors of reading the target.
pub fn name_functions(
    pid: Pid,
    profile: &mut Profile,
    debuginfod: &mut Debuginfod,
) -> Result<(), crate::Error> {
    let target = Target::open(pid)?;
    let image = target.image()?;
    name_in_profile(&target, &image, profile, debuginfod);
    Ok(())
}

/// Works like [`name_functions`], for a target whose modules are loaded.
pub(crate) fn name_in_profile(
    target: &Target,
    image: &Image,
    profile: &mut Profile,
    debuginfod: &mut Debuginfod,
) {
    let biases: FxHashMap<BuildId, _> =
        loaded(image).into_iter().map(|(build, id)| (build, image.module(id).bias)).collect();
    let entries: Vec<Avma> = profile
        .modules
        .iter()
        .filter_map(|(id, m)| Some((biases.get(id)?, m)))
        .flat_map(|(bias, m)| m.functions.keys().map(|key| bias.avma(key.at)))
        .collect();
    let names = names(target, image, &entries, debuginfod);
    for (id, module) in &mut profile.modules {
        let Some(bias) = biases.get(id) else { continue };
        for (key, f) in module.functions.iter_mut().filter(|(_, f)| f.name.is_empty()) {
            if let Some(name) = names.get(&bias.avma(key.at)) {
                f.name.clone_from(name);
            }
        }
    }
}

/// Fetched files by the address of their module; other modules have the target's files.
struct Fetched<'a> {
    of_target: Box<dyn Files + 'a>,
    files: FxHashMap<Avma, OnDisk>,
}

impl Files for Fetched<'_> {
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>> {
        match self.files.get(&mapping.range.start) {
            Some(found) => Some(Box::new(found.clone())),
            None => self.of_target.open(mapping),
        }
    }
}
