//! How a target's unwinders learn of clones: which of them there are, what they ask, and what can be led to the anchor.
//!
//! libgcc from GCC 12 on glibc 2.35 or later asks `_dl_find_object`, which costs the target a pointer. All others walk the
//! list of modules by `dl_iterate_phdr`: the words by which modules with such an unwinder call it are led. Other modules
//! call the original, so that programs that walk the list for reasons of their own see no module of whet's.
//! Where a C library has no `_dl_find_object`, the address that it exports is led as well, for unwinders loaded later.
//! Static programs call either function directly: see `direct`.

use crate::build::direct::{self, DirectCalls};
use crate::build::unwinder;
use crate::{Error, Target};
use addr::{Avma, AvmaRange, Bias, ReadMemory, Svma};
use image::{Image, Module, ModuleKind};
use splice::{FindObject, RedirectKind};
use std::collections::BTreeSet;

const WALK: &str = "dl_iterate_phdr";
const FIND_OBJECT: &str = "_dl_find_object";
/// What only an unwinder defines (Itanium C++ ABI, exception handling, level I; libgcc; LLVM's libunwind). The last is
/// `unw_step` of the nongnu one, whose header renames it; Debian builds that without the C++ names since 1.8.
const UNWINDER: [&str; 5] =
    ["_Unwind_RaiseException", "_Unwind_Backtrace", "_Unwind_Find_FDE", "unw_step", "_ULx86_64_step"];

/// What is to be led through the anchor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// `_dl_find_object`, where an unwinder asks it.
    pub find_object: Option<FindObject>,
    /// The functions whose calls are led, which is done by `places` or was done by an older whet.
    pub functions: Vec<Avma>,
    /// What leads to them now and is to be changed.
    pub places: Vec<Place>,
}

/// A place by which a function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Where.
    pub at: Avma,
    /// How it holds an address.
    pub form: Form,
    /// The function.
    pub function: Avma,
    /// What answers in its place.
    pub routine: Routine,
}

/// How a place holds an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A word of data, to which this is added.
    Word(Bias),
    /// The displacement of a direct call.
    Displacement,
}

/// A routine of the anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routine {
    /// That for `_dl_find_object`.
    FindObject,
    /// That for `dl_iterate_phdr`.
    Walk,
}

impl Routine {
    /// Returns its address in an anchor whose code page is at `code_at`.
    #[must_use]
    pub fn at(self, code_at: Avma) -> Avma {
        match self {
            Routine::FindObject => code_at,
            Routine::Walk => splice::Anchor::module_list_routine(code_at),
        }
    }
}

impl Place {
    /// A word by which `dl_iterate_phdr` is called.
    fn word(at: Avma, bias: Bias, function: Avma) -> Self {
        Self { at, form: Form::Word(bias), function, routine: Routine::Walk }
    }

    /// What is added to a word.
    fn bias(&self) -> Option<Bias> {
        match self.form {
            Form::Word(bias) => Some(bias),
            Form::Displacement => None,
        }
    }

    /// The bytes that change.
    #[must_use]
    pub fn range(&self) -> AvmaRange {
        let len = match self.form {
            Form::Word(_) => 8,
            Form::Displacement => 4,
        };
        AvmaRange::with_len(self.at, len)
    }

    /// Returns its bytes where it leads to an address, and zeros behind them. `None` where the address is out of reach.
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

/// What there is in a target.
#[derive(Clone, Debug)]
struct Found {
    /// `_dl_find_object` can be led through the anchor.
    find_object: bool,
    /// A module with an unwinder that walks the list of modules.
    walker: Option<String>,
    /// `dl_iterate_phdr` is libc's alone, or why it cannot be led.
    walk: Result<Avma, &'static str>,
    /// Some code in it may unwind, with or without names.
    may_unwind: bool,
}

/// What of `dl_iterate_phdr` is led.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Nothing,
    /// The words by which modules with an unwinder call it.
    Walkers(Avma),
    /// These, and the address that the C library exports.
    All(Avma),
}

/// What is led beside `_dl_find_object`. An error is the reason why a target must be left alone.
fn way(found: &Found) -> Result<Way, String> {
    match (found.find_object, &found.walker, found.walk) {
        (true, None, _) => Ok(Way::Nothing),
        (true, Some(_), Ok(walk)) => Ok(Way::Walkers(walk)),
        (false, _, Ok(walk)) => Ok(Way::All(walk)),
        (false, None, Err(_)) if !found.may_unwind => Ok(Way::Nothing),
        (true, Some(walker), Err(why)) => {
            Err(format!("an unwinder in it ({walker}) cannot be told of new code: {why}"))
        }
        (false, _, Err(why)) => Err(format!("its unwinder cannot be told of new code: {why}")),
    }
}

/// Looks for both ways, in a target that whet has not touched or has: an unwinder may have been loaded since.
///
/// # Errors
/// [`Error::Unsupported`] where exceptions could not cross clones.
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
    // An older whet led the entry of the function itself, so all calls are led.
    if let Some(hook) = anchor.and_then(|a| a.hook.as_ref())
        && let Some(entry) = hook.records.iter().find(|r| r.kind == RedirectKind::Entry)
    {
        return Ok(Lookup { find_object, functions: vec![entry.at], places: Vec::new() });
    }
    let walkers: Vec<&Module> = image.modules().iter().filter(|m| walks(m)).collect();
    let found = Found {
        find_object: find_object.is_some(),
        walker: walkers.first().map(|m| m.file_name().unwrap_or("?").to_owned()),
        walk: libc_walk(image),
        may_unwind,
    };
    let (function, places) = match way(&found).map_err(|why| unsupported(target, why))? {
        Way::Nothing => return Ok(Lookup { find_object, functions: Vec::new(), places: Vec::new() }),
        Way::Walkers(function) => (function, calls(&walkers, function)),
        Way::All(function) => {
            (function, export(image, function).into_iter().chain(calls(&walkers, function)).collect())
        }
    };
    for (place, bias, module) in places.iter().filter_map(|p| Some((p, p.bias()?, image.module_of(p.at)?))) {
        let holds = bias.avma(Svma(target.pristine().u64(place.at).unwrap_or(0)));
        // A slot that is not bound yet leads into its own module.
        let is_led = anchor.is_some_and(|a| place.routine.at(a.routine()) == holds);
        if holds != function && !is_led && !module.extent.contains(holds) {
            let name = module.file_name().unwrap_or("?");
            return Err(unsupported(target, format!("{name} calls somebody else's dl_iterate_phdr")));
        }
    }
    Ok(Lookup { find_object, functions: vec![function], places })
}

/// The same in a static program that holds an unwinder.
fn in_static(target: &Target, image: &Image) -> Result<Lookup, String> {
    let asked = direct::asked(image, &target.pristine())?;
    let find_object = asked.find_object.as_ref().map(|c| FindObject { slot: None, value: c.function.0 });
    // The routine leads on to what was there when the anchor was made.
    let leads_on = target.installed.as_ref().map(|i| i.anchor.original);
    if leads_on.is_some_and(|original| original != find_object.map_or(0, |f| f.value)) {
        return Err("it was optimized before its unwinder was found".to_owned());
    }
    let ways = [(asked.find_object, Routine::FindObject), (asked.walk, Routine::Walk)];
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

/// The words by which modules call `dl_iterate_phdr`.
fn calls(walkers: &[&Module], function: Avma) -> Vec<Place> {
    let words = |m: &&Module| -> Vec<Avma> {
        let of_walk = |r: &&image::Reloc| r.addend == 0 && m.symbol_of(r) == Some(WALK);
        m.relocations.iter().filter(of_walk).map(|r| r.at).collect()
    };
    walkers.iter().flat_map(words).map(|at| Place::word(at, Bias(0), function)).collect()
}

/// The word by which modules that are loaded later find `dl_iterate_phdr`.
fn export(image: &Image, function: Avma) -> Option<Place> {
    image.modules().iter().find_map(|m| Some(Place::word(m.export_word(WALK)?, m.bias, function)))
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
    let in_loader = image.module_of(found.slot?).is_some_and(|m| {
        m.symbols.exported("_rtld_global_ro").is_some() || m.kind == ModuleKind::Interpreter
    });
    (in_code && in_loader).then_some(found)
}

/// The C library's `dl_iterate_phdr`, if nobody else answers in its place.
fn libc_walk(image: &Image) -> Result<Avma, &'static str> {
    if image.main().static_exe {
        return Err("it is statically linked");
    }
    let mut all = image.modules().iter().filter_map(|m| Some((m, m.symbols.exported(WALK)?)));
    let (libc, at) = all.next().ok_or("nothing in it lists modules")?;
    if all.next().is_some() {
        return Err("more than one of its modules answers dl_iterate_phdr");
    }
    let is_library = matches!(libc.kind, ModuleKind::Library | ModuleKind::Interpreter);
    if is_library && libc.nodelete { Ok(at) } else { Err("dl_iterate_phdr is not its C library's") }
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
        let found = |find_object, walker: Option<&str>, walk, may_unwind| {
            way(&Found { find_object, walker: walker.map(str::to_owned), walk, may_unwind })
        };
        let at = Avma(0x7000);
        // libgcc 12 on glibc 2.36, in any C library.
        assert_eq!(found(true, None, Ok(at), true), Ok(Way::Nothing));
        assert_eq!(found(true, None, Err("odd"), true), Ok(Way::Nothing));
        // LLVM's libunwind there.
        assert_eq!(found(true, Some("libunwind.so.1"), Ok(at), true), Ok(Way::Walkers(at)));
        let why = found(true, Some("libunwind.so.1"), Err("odd"), true).unwrap_err();
        assert!(why.contains("libunwind.so.1") && why.contains("odd"), "{why}");
        // glibc 2.31, whatever unwinds; musl.
        assert_eq!(found(false, None, Ok(at), false), Ok(Way::All(at)));
        assert_eq!(found(false, Some("libgcc_s.so.1"), Ok(at), true), Ok(Way::All(at)));
        // A static program, with an unwinder and without.
        let alone = Err("it is statically linked");
        assert!(found(false, None, alone, true).is_err());
        assert!(found(false, Some("prog"), alone, true).is_err());
        assert_eq!(found(false, None, alone, false), Ok(Way::Nothing));
    }
}
