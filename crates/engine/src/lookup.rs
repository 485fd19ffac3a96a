//! How a target's unwinders learn of clones: which of them there are, what they ask, and what can be led to the anchor.
//!
//! libgcc from GCC 12 on glibc 2.35 or later asks `_dl_find_object`, which costs the target a pointer. All others walk the
//! list of modules by `dl_iterate_phdr`: that one is led by a jump at its entry, for good, and only where there is
//! such an unwinder, as programs that walk the list for reasons of their own would see modules that are none.

use crate::{Error, Target};
use addr::Avma;
use image::{Image, Module, ModuleKind};
use splice::FindObject;
use std::collections::BTreeSet;

const WALK: &str = "dl_iterate_phdr";
const FIND_OBJECT: &str = "_dl_find_object";
/// What only an unwinder defines (Itanium C++ ABI, exception handling, level I; libgcc; LLVM's libunwind). The last is
/// `unw_step` of the nongnu one, whose header renames it; Debian builds that without the C++ names since 1.8.
const UNWINDER: [&str; 5] =
    ["_Unwind_RaiseException", "_Unwind_Backtrace", "_Unwind_Find_FDE", "unw_step", "_ULx86_64_step"];

/// What is to be led through the anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The pointer behind `_dl_find_object`.
    pub slot: Option<FindObject>,
    /// `dl_iterate_phdr` (an address in it), where it is led or must be.
    pub walk: Option<Avma>,
}

/// What there is in a target.
#[derive(Clone, Debug)]
struct Found {
    /// `_dl_find_object` can be led through the anchor.
    find_object: bool,
    /// A module with an unwinder that walks the list of modules.
    walker: Option<String>,
    /// `dl_iterate_phdr` is libc's alone, or why it cannot be led.
    walk: Result<Avma, &'static str>,
}

/// Which ways are used: `_dl_find_object`, and `dl_iterate_phdr`. An error is the reason why a target must be left alone.
fn ways(found: &Found) -> Result<(bool, Option<Avma>), String> {
    match (found.find_object, &found.walker, found.walk) {
        (true, None, _) => Ok((true, None)),
        (find_object, _, Ok(walk)) => Ok((find_object, Some(walk))),
        (true, Some(walker), Err(why)) => {
            Err(format!("an unwinder in it ({walker}) cannot be told of new code: {why}"))
        }
        (false, _, Err(why)) => Err(format!("its unwinder cannot be told of new code: {why}")),
    }
}

/// Looks for both ways in a target that whet has not touched; in one that it has, they are what they were, and
/// `dl_iterate_phdr` may be needed since then.
///
/// # Errors
/// [`Error::Unsupported`] where exceptions could not cross clones.
pub fn find(target: &Target, image: &Image) -> Result<Lookup, Error> {
    let anchor = target.installed.as_ref().map(|i| &i.anchor);
    let slot = match anchor {
        Some(a) => a.slot.map(|slot| FindObject { slot, value: a.original }),
        None => find_object(target, image),
    };
    if let Some(hook) = anchor.and_then(|a| a.hook) {
        return Ok(Lookup { slot, walk: Some(hook.record.at) });
    }
    let walker = image.modules().iter().find(|m| walks(m));
    let found = Found {
        find_object: slot.is_some(),
        walker: walker.map(|m| m.file_name().unwrap_or("?").to_owned()),
        walk: libc_walk(image),
    };
    match ways(&found) {
        Ok((_, walk)) => Ok(Lookup { slot, walk }),
        Err(why) => Err(unsupported(target, why)),
    }
}

/// The answer where `dl_iterate_phdr` would have to be led, and cannot be.
pub fn unsupported(target: &Target, why: String) -> Error {
    Error::Unsupported { pid: target.process.pid(), code: "no_unwind_lookup", why }
}

/// The pointer behind libc's `_dl_find_object`.
fn find_object(target: &Target, image: &Image) -> Option<FindObject> {
    let stub = image.modules().iter().find_map(|m| m.symbols.exported(FIND_OBJECT))?;
    let found = splice::decode_stub(&target.process, stub)?;
    // The pointer must lead into the loader's code; anything else is not what it was taken for.
    let in_code = image.mapping_of(Avma(found.value)).is_some_and(|m| m.perms.x);
    let in_loader = image.module_of(found.slot).is_some_and(|m| {
        m.symbols.exported("_rtld_global_ro").is_some() || m.kind == ModuleKind::Interpreter
    });
    (in_code && in_loader).then_some(found)
}

/// glibc's `dl_iterate_phdr`, if nobody else answers in its place.
fn libc_walk(image: &Image) -> Result<Avma, &'static str> {
    if image.main().static_exe {
        return Err("it is statically linked");
    }
    let mut all = image.modules().iter().filter_map(|m| Some((m, m.symbols.exported(WALK)?)));
    let (libc, at) = all.next().ok_or("nothing in it lists modules")?;
    if all.next().is_some() {
        return Err("more than one of its modules answers dl_iterate_phdr");
    }
    let is_glibc =
        libc.kind == ModuleKind::Library && libc.symbols.exported("gnu_get_libc_version").is_some();
    if is_glibc && libc.nodelete { Ok(at) } else { Err("its C library is not the one of GNU") }
}

/// Whether a module holds an unwinder that walks the list of modules.
fn walks(module: &Module) -> bool {
    let module_of_a_program = matches!(module.kind, ModuleKind::Main | ModuleKind::Library);
    if !module_of_a_program || module.symbols.exported(WALK).is_some() {
        return false;
    }
    let names = imports(module);
    // One that asks _dl_find_object takes its answer.
    if !names.contains(WALK) || names.contains(FIND_OBJECT) {
        return false;
    }
    if UNWINDER.iter().any(|name| module.symbols.named(name).next().is_some()) {
        return true;
    }
    // A program without symbols may hold one all the same, unless it has somebody else unwind. Of a library that is only
    // believed where it brings the rest of a language's exceptions along.
    let by_others = names.iter().any(|n| n.starts_with("_Unwind_"));
    let own = |f: &unwind::Fde| f.personality.is_some_and(|p| module.extent.contains(p));
    !by_others && (module.kind == ModuleKind::Main || module.frames.fdes().iter().any(own))
}

/// Names a module asks others for.
fn imports(module: &Module) -> BTreeSet<&str> {
    let bound = module.relocations.iter().filter_map(|r| module.symbol_of(r));
    let slots = module.slots.iter().map(|s| s.name.as_str());
    bound
        .chain(slots)
        .filter(|n| n.starts_with("_Unwind_") || [WALK, FIND_OBJECT].contains(n))
        .filter(|n| module.symbols.exported(n).is_none())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_is_led() {
        let found = |find_object, walker: Option<&str>, walk| {
            ways(&Found { find_object, walker: walker.map(str::to_owned), walk })
        };
        let at = Avma(0x7000);
        // libgcc 12 on glibc 2.36, in any C library.
        assert_eq!(found(true, None, Ok(at)), Ok((true, None)));
        assert_eq!(found(true, None, Err("odd")), Ok((true, None)));
        // LLVM's libunwind there.
        assert_eq!(found(true, Some("libunwind.so.1"), Ok(at)), Ok((true, Some(at))));
        let why = found(true, Some("libunwind.so.1"), Err("odd")).unwrap_err();
        assert!(why.contains("libunwind.so.1") && why.contains("odd"), "{why}");
        // glibc 2.31, whatever unwinds.
        assert_eq!(found(false, None, Ok(at)), Ok((false, Some(at))));
        assert_eq!(found(false, Some("libgcc_s.so.1"), Ok(at)), Ok((false, Some(at))));
        // A static program.
        assert!(found(false, None, Err("it is statically linked")).is_err());
        assert!(found(false, Some("prog"), Err("it is statically linked")).is_err());
    }
}
