//! Transfers a profile of another build of a program to the loaded build. A function that was compiled from
//! the same source has the same shape in both ([`profile::shape`]), at another address.
//!
//! A wrong pair costs speed, never correctness: counts decide the layout alone (law 2).

use super::loaded::{Loaded, loaded};
use super::pairs::{self, Function};
use crate::analyse::program::{FuncId, Program};
use crate::base::parallel;
use addr::Svma;
use image::ModuleId;
use profile::{BuildId, FunctionKey, FunctionProfile, ModuleProfile, Place, Profile};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// A profile in terms of the builds that are loaded.
#[derive(Clone, Debug)]
pub(crate) struct Adapted {
    /// The profile. Functions that were found in a loaded build have left their own build.
    pub(crate) profile: Profile,
    /// How many functions were found again in another build.
    pub(crate) found_again: usize,
}

/// The functions of an old build that were found in a loaded one.
struct Moved {
    old: BuildId,
    new: BuildId,
    /// By the entry in the old build.
    functions: BTreeMap<Svma, FuncId>,
}

/// Where functions of old builds are now.
type Places = FxHashMap<(BuildId, Svma), (BuildId, Svma)>;

/// Moves functions of a build that is not loaded to the loaded build of the same file name, if they can be
/// found by their shape. If the profile has several such builds of one file, the build with most samples is
/// used.
pub(crate) fn adapt(program: &Program<'_>, profile: &Profile) -> Adapted {
    let loaded = loaded(program.image());
    let moves: Vec<Moved> = loaded
        .iter()
        // A build that is in the profile needs no counts of another build.
        .filter(|(new, _)| !profile.modules.contains_key(new))
        .filter_map(|(new, &module)| {
            let (old, counted) = predecessor(program, &loaded, profile, module)?;
            let functions = find(program, module, counted);
            Some(Moved { old: old.clone(), new: new.clone(), functions })
        })
        .collect();
    let place = |f: FuncId| program.module_image(f).bias.svma(program.extent(f).entry);
    let places: Places = moves
        .iter()
        .flat_map(|m| m.functions.iter().map(move |(&at, &f)| (m, at, place(f))))
        .map(|(m, at, now)| ((m.old.clone(), at), (m.new.clone(), now)))
        .collect();
    let mut adapted = Adapted { profile: profile.clone(), found_again: 0 };
    for moved in &moves {
        carry(program, moved, &loaded, &places, &mut adapted);
    }
    adapted
}

/// Returns the profile's build of a loaded module's file that is not loaded itself.
fn predecessor<'a>(
    program: &Program<'_>,
    loaded: &Loaded,
    profile: &'a Profile,
    module: ModuleId,
) -> Option<(&'a BuildId, &'a ModuleProfile)> {
    let name = program.image().module(module).file_name()?;
    let olds = profile.modules.iter().filter(|(id, old)| old.name == name && !loaded.contains_key(id));
    let samples =
        |m: &ModuleProfile| m.functions.values().fold(0, |sum: u64, f| sum.saturating_add(f.samples));
    olds.max_by_key(|(_, old)| samples(old))
}

/// Finds the functions of an old build in a loaded module.
fn find(program: &Program<'_>, module: ModuleId, old: &ModuleProfile) -> BTreeMap<Svma, FuncId> {
    let olds: Vec<Function<'_>> = old
        .functions
        .iter()
        .filter_map(|(key, f)| Some(Function { at: key.at, size: f.size, shape: f.shape?, name: &f.name }))
        .collect();
    // Bytes are read only where the size is right: a server has tens of thousands of functions.
    let sizes: FxHashSet<u64> = olds.iter().map(|f| f.size).collect();
    let is_candidate = |&f: &FuncId| {
        let extent = program.extent(f);
        program.module(f).id == module
            && !extent.plt
            && extent.parts.first().is_some_and(|main| sizes.contains(&main.len()))
    };
    let candidates: Vec<FuncId> = program.functions().filter(is_candidate).collect();
    let described = parallel::map(&candidates, |&f| {
        let (extent, module) = (program.extent(f), program.module_image(f));
        let &main = extent.parts.first()?;
        let shape = profile::shape(&program.memory().bytes(main).ok()?);
        let name = module.symbols.function_starting_at(extent.entry).map_or("", |s| s.name);
        Some((f, Function { at: module.bias.svma(extent.entry), size: main.len(), shape, name }))
    });
    let (ids, news): (Vec<FuncId>, Vec<Function<'_>>) = described.into_iter().flatten().unzip();
    let pairs = pairs::pair(&olds, &news);
    pairs.into_iter().filter_map(|(old, new)| Some((olds.get(old)?.at, *ids.get(new)?))).collect()
}

/// Moves the profiles of the functions that were found to the loaded build.
fn carry(program: &Program<'_>, moved: &Moved, loaded: &Loaded, places: &Places, adapted: &mut Adapted) {
    let Some(old) = adapted.profile.modules.get(&moved.old).cloned() else { return };
    let place = |p: &Place| now(p, moved, loaded, places);
    let carried = |&(&key, f): &(&FunctionKey, &FunctionProfile)| {
        let &id = moved.functions.get(&key.at)?;
        let cfg = program.analyse(id).ok()?.cfg;
        let at = program.module_image(id).bias.svma(program.extent(id).entry);
        Some((key, FunctionKey { at, hash: profile::hash(&cfg) }, f.carried(&cfg, place)?))
    };
    let functions: Vec<_> = old.functions.iter().collect();
    let carried: Vec<_> = parallel::map(&functions, carried).into_iter().flatten().collect();
    let Some(rest) = adapted.profile.modules.get_mut(&moved.old) else { return };
    for (key, ..) in &carried {
        rest.functions.remove(key);
    }
    if rest.functions.is_empty() {
        adapted.profile.modules.remove(&moved.old);
    }
    let new = adapted.profile.modules.entry(moved.new.clone()).or_default();
    new.name = old.name;
    adapted.found_again += carried.len();
    new.functions.extend(carried.into_iter().map(|(_, key, f)| (key, f)));
}

/// Returns where a place of an old build is now; `None` if that is not known.
fn now(p: &Place, own: &Moved, loaded: &Loaded, places: &Places) -> Option<Place> {
    let old = p.module.as_ref().unwrap_or(&own.old);
    if loaded.contains_key(old) {
        return Some(p.clone());
    }
    let (new, at) = places.get(&(old.clone(), p.at))?;
    Some(Place { module: (*new != own.new).then(|| new.clone()), at: *at })
}
