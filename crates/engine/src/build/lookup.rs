//! How a target's unwinders find clones: which unwinders there are, which functions they call, which calls
//! can be redirected to the anchor.
//!
//! libgcc from GCC 12 on glibc 2.35 or later calls `_dl_find_object`. To redirect it, one pointer of the
//! target is changed. All other unwinders iterate over modules by `dl_iterate_phdr`. For these, the words by
//! which modules with such an unwinder call the function are redirected. Other modules call the original, so
//! a program that iterates for its own reasons sees no module of whet's. If a C library has no
//! `_dl_find_object`, the address that it exports for `dl_iterate_phdr` is redirected as well, for unwinders
//! that are loaded later. Static programs call either function directly: see `direct`.

use crate::build::direct::{self, DirectCalls};
use crate::build::unwinder;
use crate::{Error, Target};
use addr::{Avma, AvmaRange, Bias, ReadMemory, Svma};
use image::{Image, Module, ModuleKind};
use splice::{FindObject, RedirectKind};
use std::collections::BTreeSet;

const ITERATE_PHDR: &str = "dl_iterate_phdr";
const FIND_OBJECT: &str = "_dl_find_object";
/// Names that only an unwinder defines (Itanium C++ ABI, exception handling, level I; libgcc; LLVM's
/// libunwind). The last is `unw_step` of the nongnu libunwind, whose header renames it; since 1.8 Debian
/// builds that library without the C++ names.
const UNWINDER: [&str; 5] =
    ["_Unwind_RaiseException", "_Unwind_Backtrace", "_Unwind_Find_FDE", "unw_step", "_ULx86_64_step"];

/// The lookup functions that must be redirected to the anchor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// `_dl_find_object`, if an unwinder calls it.
    pub find_object: Option<FindObject>,
    /// The functions whose calls are redirected, by `places` or already by an older whet.
    pub functions: Vec<Avma>,
    /// The places that lead to these functions now and must be changed.
    pub places: Vec<Place>,
}

/// A place by which a function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The address of the place.
    pub at: Avma,
    /// How the place holds an address.
    pub form: Form,
    /// The function.
    pub function: Avma,
    /// The routine of the anchor that replaces the function.
    pub routine: Routine,
}

/// How a place holds an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A word of data; the bias is added to it.
    Word(Bias),
    /// The displacement of a direct call.
    Displacement,
}

/// A routine of the anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routine {
    /// The routine for `_dl_find_object`.
    FindObject,
    /// The routine for `dl_iterate_phdr`.
    IteratePhdr,
}

impl Routine {
    /// Returns its address in an anchor whose code page is at `code_at`.
    #[must_use]
    pub fn at(self, code_at: Avma) -> Avma {
        match self {
            Routine::FindObject => code_at,
            Routine::IteratePhdr => splice::Anchor::module_list_routine(code_at),
        }
    }
}

impl Place {
    /// Returns a word by which `dl_iterate_phdr` is called.
    fn word(at: Avma, bias: Bias, function: Avma) -> Self {
        Self { at, form: Form::Word(bias), function, routine: Routine::IteratePhdr }
    }

    /// Returns the bias that is added to a word.
    fn bias(&self) -> Option<Bias> {
        match self.form {
            Form::Word(bias) => Some(bias),
            Form::Displacement => None,
        }
    }

    /// Returns the range of bytes that change.
    #[must_use]
    pub fn range(&self) -> AvmaRange {
        let len = match self.form {
            Form::Word(_) => 8,
            Form::Displacement => 4,
        };
        AvmaRange::with_len(self.at, len)
    }

    /// Returns the place's bytes when it leads to an address, padded with zeros. Returns `None` if the
    /// address is out of reach.
    #[must_use]
    pub fn holding(&self, to: Avma) -> Option<[u8; 8]> {
        match self.form {
            Form::Word(bias) => Some(bias.svma(to).0.to_le_bytes()),
            Form::Displacement => {
                let [a, b, c, d] = emit::branch_displacement(self.range().end, to)?;
                Some([a, b, c, d, 0, 0, 0, 0])
            }
        }
    }
}

/// The lookup functions and unwinders of a target.
#[derive(Clone, Debug)]
struct Found {
    /// True if `_dl_find_object` can be redirected to the anchor.
    find_object: bool,
    /// A module with an unwinder that iterates over modules.
    unwinder: Option<String>,
    /// The address of libc's `dl_iterate_phdr`, or why it cannot be redirected.
    iterate_phdr: Result<Avma, &'static str>,
    /// True if some code may unwind, with or without symbols.
    may_unwind: bool,
}

/// Which callers of `dl_iterate_phdr` are redirected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Nothing,
    /// The words by which modules with an unwinder call it.
    Unwinders(Avma),
    /// These words, and the address that the C library exports.
    All(Avma),
}

/// Returns the redirects of unwinders besides that of `_dl_find_object`. An error is the reason why the
/// target must be left alone.
fn way(found: &Found) -> Result<Way, String> {
    match (found.find_object, &found.unwinder, found.iterate_phdr) {
        (true, None, _) => Ok(Way::Nothing),
        (true, Some(_), Ok(iterate_phdr)) => Ok(Way::Unwinders(iterate_phdr)),
        (false, _, Ok(iterate_phdr)) => Ok(Way::All(iterate_phdr)),
        (false, None, Err(_)) if !found.may_unwind => Ok(Way::Nothing),
        (true, Some(unwinder), Err(why)) => {
            Err(format!("an unwinder in it ({unwinder}) cannot find new code: {why}"))
        }
        (false, _, Err(why)) => Err(format!("its unwinder cannot find new code: {why}")),
    }
}

/// Finds both lookup functions. Also runs in targets that whet has optimized, since an unwinder may be loaded
/// later.
///
/// # Errors
/// Returns [`Error::Unsupported`] if exceptions could not pass through clones.
pub fn find(target: &Target, image: &Image) -> Result<Lookup, Error> {
    let may_unwind = unwinder::may_unwind(image, &target.pristine());
    if image.main().static_exe && may_unwind {
        return in_static(target, image).map_err(|why| unsupported(target, why));
    }
    let anchor = target.installed.as_ref().map(|i| &i.anchor);
    let find_object = match anchor {
        Some(a) => a.slot.map(|slot| FindObject { slot: Some(slot), value: a.original }),
        None => find_object(target, image),
    };
    // An older whet redirected the entry of the function itself, so all its calls are redirected.
    if let Some(hook) = anchor.and_then(|a| a.hook.as_ref())
        && let Some(entry) = hook.records.iter().find(|r| r.kind == RedirectKind::Entry)
    {
        return Ok(Lookup { find_object, functions: vec![entry.at], places: Vec::new() });
    }
    let unwinders: Vec<&Module> = image.modules().iter().filter(|m| lists_modules(m)).collect();
    let found = Found {
        find_object: find_object.is_some(),
        unwinder: unwinders.first().map(|m| m.file_name().unwrap_or("?").to_owned()),
        iterate_phdr: libc_iterate_phdr(image),
        may_unwind,
    };
    let (function, places) = match way(&found).map_err(|why| unsupported(target, why))? {
        Way::Nothing => return Ok(Lookup { find_object, functions: Vec::new(), places: Vec::new() }),
        Way::Unwinders(function) => (function, calls(&unwinders, function)),
        Way::All(function) => {
            (function, export(image, function).into_iter().chain(calls(&unwinders, function)).collect())
        }
    };
    for (place, bias, module) in places.iter().filter_map(|p| Some((p, p.bias()?, image.module_of(p.at)?))) {
        let holds = bias.avma(Svma(target.pristine().u64(place.at).unwrap_or(0)));
        // A slot that is not bound yet leads into its own module.
        let is_led = anchor.is_some_and(|a| place.routine.at(a.routine()) == holds);
        if holds != function && !is_led && !module.extent.contains(holds) {
            let name = module.file_name().unwrap_or("?");
            return Err(unsupported(
                target,
                format!("{name} calls a dl_iterate_phdr that is not the C library's"),
            ));
        }
    }
    Ok(Lookup { find_object, functions: vec![function], places })
}

/// Finds both lookup functions in a static program that contains an unwinder.
fn in_static(target: &Target, image: &Image) -> Result<Lookup, String> {
    let lookup_calls = direct::lookup_calls(image, &target.pristine())?;
    let find_object =
        lookup_calls.find_object.as_ref().map(|c| FindObject { slot: None, value: c.function.0 });
    // The anchor's routine continues to the function that was found when the anchor was created.
    let leads_on = target.installed.as_ref().map(|i| i.anchor.original);
    if leads_on.is_some_and(|original| original != find_object.map_or(0, |f| f.value)) {
        return Err("it was optimized before its unwinder was found".to_owned());
    }
    let ways =
        [(lookup_calls.find_object, Routine::FindObject), (lookup_calls.iterate_phdr, Routine::IteratePhdr)];
    let mut lookup = Lookup { find_object, functions: Vec::new(), places: Vec::new() };
    for (DirectCalls { function, displacements }, routine) in
        ways.into_iter().filter_map(|(calls, routine)| Some((calls?, routine)))
    {
        lookup.functions.push(function);
        let place = |r: AvmaRange| Place { at: r.start, form: Form::Displacement, function, routine };
        lookup.places.extend(displacements.into_iter().map(place));
    }
    Ok(lookup)
}

/// Returns the words by which modules call `dl_iterate_phdr`.
fn calls(unwinders: &[&Module], function: Avma) -> Vec<Place> {
    let words = |m: &&Module| -> Vec<Avma> {
        let of_function = |r: &&image::Reloc| r.addend == 0 && m.symbol_of(r) == Some(ITERATE_PHDR);
        m.relocations.iter().filter(of_function).map(|r| r.at).collect()
    };
    unwinders.iter().flat_map(words).map(|at| Place::word(at, Bias(0), function)).collect()
}

/// Returns the word by which modules that are loaded later find `dl_iterate_phdr`.
fn export(image: &Image, function: Avma) -> Option<Place> {
    image.modules().iter().find_map(|m| Some(Place::word(m.export_word(ITERATE_PHDR)?, m.bias, function)))
}

/// Returns the error for a target whose `dl_iterate_phdr` must be redirected and cannot be.
pub fn unsupported(target: &Target, why: String) -> Error {
    Error::Unsupported { pid: target.process.pid(), code: "no_unwind_lookup", why }
}

/// Returns the pointer behind libc's `_dl_find_object`.
fn find_object(target: &Target, image: &Image) -> Option<FindObject> {
    let stub = image.modules().iter().find_map(|m| m.symbols.exported(FIND_OBJECT))?;
    let found = splice::decode_stub(&target.process, stub)?;
    // The pointer must lead into the loader's code; otherwise the stub was decoded wrongly.
    let in_code = image.mapping_of(Avma(found.value)).is_some_and(|m| m.perms.x);
    let in_loader = image.module_of(found.slot?).is_some_and(|m| {
        m.symbols.exported("_rtld_global_ro").is_some() || m.kind == ModuleKind::Interpreter
    });
    (in_code && in_loader).then_some(found)
}

/// Returns the C library's `dl_iterate_phdr`, if no other module defines one.
fn libc_iterate_phdr(image: &Image) -> Result<Avma, &'static str> {
    if image.main().static_exe {
        return Err("it is statically linked");
    }
    let mut all = image.modules().iter().filter_map(|m| Some((m, m.symbols.exported(ITERATE_PHDR)?)));
    let (libc, at) = all.next().ok_or("nothing in it lists modules")?;
    if all.next().is_some() {
        return Err("more than one of its modules answers dl_iterate_phdr");
    }
    let is_library = matches!(libc.kind, ModuleKind::Library | ModuleKind::Interpreter);
    if is_library && libc.nodelete { Ok(at) } else { Err("dl_iterate_phdr is not its C library's") }
}

/// Returns whether a module contains an unwinder that iterates over modules.
fn lists_modules(module: &Module) -> bool {
    let module_of_a_program = matches!(module.kind, ModuleKind::Main | ModuleKind::Library);
    if !module_of_a_program || module.symbols.exported(ITERATE_PHDR).is_some() {
        return false;
    }
    let names = imports(module);
    // An unwinder that calls `_dl_find_object` uses its result.
    if !names.contains(ITERATE_PHDR) || names.contains(FIND_OBJECT) {
        return false;
    }
    if UNWINDER.iter().any(|name| module.symbols.named(name).next().is_some()) {
        return true;
    }
    // A program without symbols may still contain an unwinder, unless it imports one. A library without
    // symbols is assumed to contain one only if it also has its own personality routine for exceptions.
    let by_others = names.iter().any(|n| n.starts_with("_Unwind_"));
    let own = |f: &unwind::Fde| f.personality.is_some_and(|p| module.extent.contains(p));
    !by_others && (module.kind == ModuleKind::Main || module.frames.fdes().iter().any(own))
}

/// Returns the names of unwinder and lookup functions that a module imports.
fn imports(module: &Module) -> BTreeSet<&str> {
    let bound = module.relocations.iter().filter_map(|r| module.symbol_of(r));
    let slots = module.slots.iter().map(|s| s.name.as_str());
    bound
        .chain(slots)
        .filter(|n| n.starts_with("_Unwind_") || [ITERATE_PHDR, FIND_OBJECT].contains(n))
        .filter(|n| module.symbols.exported(n).is_none())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needed_lookups_are_redirected() {
        let found = |find_object, unwinder: Option<&str>, iterate_phdr, may_unwind| {
            way(&Found { find_object, unwinder: unwinder.map(str::to_owned), iterate_phdr, may_unwind })
        };
        let at = Avma(0x7000);
        // libgcc 12 on glibc 2.36, in any C library.
        assert_eq!(found(true, None, Ok(at), true), Ok(Way::Nothing));
        assert_eq!(found(true, None, Err("odd"), true), Ok(Way::Nothing));
        // LLVM's libunwind there.
        assert_eq!(found(true, Some("libunwind.so.1"), Ok(at), true), Ok(Way::Unwinders(at)));
        let why = found(true, Some("libunwind.so.1"), Err("odd"), true).unwrap_err();
        assert!(why.contains("libunwind.so.1") && why.contains("odd"), "{why}");
        // glibc 2.31 with any unwinder; musl.
        assert_eq!(found(false, None, Ok(at), false), Ok(Way::All(at)));
        assert_eq!(found(false, Some("libgcc_s.so.1"), Ok(at), true), Ok(Way::All(at)));
        // A static program, with an unwinder and without.
        let alone = Err("it is statically linked");
        assert!(found(false, None, alone, true).is_err());
        assert!(found(false, Some("prog"), alone, true).is_err());
        assert_eq!(found(false, None, alone, false), Ok(Way::Nothing));
    }
}
