//! Names of functions in stripped files, from debuginfod servers (<https://sourceware.org/elfutils/Debuginfod.html>).
//!
//! They are used for what is shown, never for decisions. Nothing is fetched unless the environment of the command
//! names servers in `DEBUGINFOD_URLS`; the daemon shows nothing and fetches nothing. The program
//! `debuginfod-find` of elfutils fetches and caches, by the user's settings. A file is used only if it has the
//! build-id of the module.

use crate::Target;
use crate::records::profile_store::loaded;
use addr::Avma;
use image::{FileParts, Files, Image, Mapping};
use profile::{BuildId, Profile};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use tracee::Pid;

/// The variable that names the servers.
const SERVERS: &str = "DEBUGINFOD_URLS";
/// The client of elfutils.
const CLIENT: &str = "debuginfod-find";
/// The most modules for which files are fetched.
const MOST_MODULES: usize = 16;

/// Names by address.
pub(crate) type Names = FxHashMap<Avma, String>;

/// Returns whether the caller's environment names servers.
pub(crate) fn is_on() -> bool {
    std::env::var_os(SERVERS).is_some_and(|v| !v.is_empty())
}

/// Returns names of those functions, given by the addresses of their entries, that have none in their own
/// files. Empty if no servers are named.
pub(crate) fn names(target: &Target, image: &Image, entries: &[Avma]) -> Names {
    if !is_on() {
        return Names::default();
    }
    let name = |image: &Image, at: Avma| {
        Some(image.module_of(at)?.symbols.function_starting_at(at)?.name.to_owned())
    };
    let mut fetched = Fetched { of_target: Box::new(target.files()), files: FxHashMap::default() };
    let unnamed: Vec<Avma> = entries.iter().copied().filter(|&at| name(image, at).is_none()).collect();
    for module in unnamed.iter().filter_map(|&at| image.module_of(at)) {
        let is_new = !fetched.files.contains_key(&module.extent.start);
        if is_new && fetched.files.len() < MOST_MODULES {
            let file = module.build_id.as_deref().and_then(BuildId::new).and_then(|id| fetch(&id));
            fetched.files.insert(module.extent.start, file);
        }
    }
    if fetched.files.values().all(Option::is_none) {
        return Names::default();
    }
    let Ok(named) = target.image_by(&fetched) else { return Names::default() };
    unnamed.into_iter().filter_map(|at| Some((at, name(&named, at)?))).collect()
}

/// Adds names to the functions of a profile that have none, for a form that is read by people.
///
/// # Errors
/// Errors of reading the target.
pub fn name_functions(pid: Pid, profile: &mut Profile) -> Result<(), crate::Error> {
    let target = Target::open(pid)?;
    let image = target.image()?;
    name_in_profile(&target, &image, profile);
    Ok(())
}

/// Works like [`name_functions`], for a target whose modules are loaded.
pub(crate) fn name_in_profile(target: &Target, image: &Image, profile: &mut Profile) {
    let biases: FxHashMap<BuildId, _> =
        loaded(image).into_iter().map(|(build, id)| (build, image.module(id).bias)).collect();
    let entries: Vec<Avma> = profile
        .modules
        .iter()
        .filter_map(|(id, m)| Some((biases.get(id)?, m)))
        .flat_map(|(bias, m)| m.functions.keys().map(|key| bias.avma(key.at)))
        .collect();
    let names = names(target, image, &entries);
    for (id, module) in &mut profile.modules {
        let Some(bias) = biases.get(id) else { continue };
        for (key, f) in module.functions.iter_mut().filter(|(_, f)| f.name.is_empty()) {
            if let Some(name) = names.get(&bias.avma(key.at)) {
                f.name.clone_from(name);
            }
        }
    }
}

/// Fetches the file with the symbols of a build.
fn fetch(id: &BuildId) -> Option<OnDisk> {
    let answer = Command::new(CLIENT)
        .args(["debuginfo", &id.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = std::str::from_utf8(&answer.stdout).ok()?.trim();
    // Opening a pipe would wait for its other end.
    if !answer.status.success() || !std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
        return None;
    }
    let file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    Some(OnDisk { file, size })
}

/// Fetched files by the address of their module; other modules have the target's files.
struct Fetched<'a> {
    of_target: Box<dyn Files + 'a>,
    files: FxHashMap<Avma, Option<OnDisk>>,
}

impl Files for Fetched<'_> {
    fn open(&self, mapping: &Mapping) -> Option<Box<dyn FileParts>> {
        match self.files.get(&mapping.range.start) {
            Some(Some(found)) => {
                Some(Box::new(OnDisk { file: found.file.try_clone().ok()?, size: found.size }))
            }
            _ => self.of_target.open(mapping),
        }
    }
}

struct OnDisk {
    file: File,
    size: u64,
}

impl FileParts for OnDisk {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        from.checked_add(len).filter(|end| *end <= self.size)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut bytes, from).ok()?;
        Some(bytes)
    }
}
