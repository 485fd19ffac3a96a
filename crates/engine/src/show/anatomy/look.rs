//! Finds the requested function, and collects the facts about it.

use super::listing::{self, Clone, Subject};
use super::{Anatomy, CodeRange, Standing};
use crate::analyse::program::{FuncId, Program};
use crate::base::names::{self, Fit};
use crate::build::map_store;
use crate::records::notes::{NotedFunction, Notes};
use crate::records::profile_store::id_of;
use crate::show::reason::reason_in_words;
use crate::{Error, Target};
use addr::{Avma, AvmaRange, ReadMemory};
use code::Refusal;
use emit::AddressMap;
use profile::{Counts, FunctionKey, FunctionProfile, Profile};
use rustc_hash::FxHashMap;
use splice::Installed;
use std::collections::{BTreeMap, BTreeSet};

/// How many names are listed if several functions match.
const TOLD: usize = 12;

/// The target and the requested function.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub target: &'a Target,
    pub installed: &'a Installed,
    pub notes: &'a Notes,
    /// A name, a part of a single function's name, or an address in the original or the clone.
    pub wanted: &'a str,
}

/// Returns the requested function in full, with the notes on it if there are any.
///
/// # Errors
/// Returns [`Error::NoSuchFunction`], [`Error::SeveralFunctions`], and the errors of reading the target.
pub(crate) fn take_apart(q: &Question<'_>) -> Result<(Option<NotedFunction>, String, Avma, Anatomy), Error> {
    let maps = maps(q.target, q.installed);
    let pristine = q.target.pristine();
    let program = Program::new(q.target.image()?, &pristine);
    let id = find(q, &program, &maps)?;
    let entry = program.extent(id).entry;
    let noted = q.notes.functions.iter().find(|f| f.at == entry.0).cloned();
    let anatomy = anatomy(q, &program, id, noted.as_ref(), &maps);
    Ok((noted, program.name(id), entry, anatomy))
}

/// Returns the address maps of the newest generation's clones, by the originals' entries.
fn maps(target: &Target, installed: &Installed) -> FxHashMap<Avma, AddressMap> {
    let caches = installed.of(installed.generation());
    let maps = caches.filter_map(|c| c.map(&target.process).ok());
    maps.flat_map(|bytes| map_store::read(&bytes)).collect()
}

fn find(
    q: &Question<'_>,
    program: &Program<'_>,
    maps: &FxHashMap<Avma, AddressMap>,
) -> Result<FuncId, Error> {
    let pid = q.target.process.pid();
    let none = || Error::NoSuchFunction { pid, name: q.wanted.to_owned() };
    if let Some(at) = q.wanted.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok()).map(Avma) {
        let original = maps.iter().find(|(_, m)| m.fragments().contains(at)).map_or(at, |(entry, _)| *entry);
        return program.find(original).ok_or_else(none);
    }
    let noted: Vec<FuncId> =
        q.notes.functions.iter().filter_map(|f| program.entered_at(Avma(f.at))).collect();
    let mut fits: BTreeMap<Fit, Vec<FuncId>> = BTreeMap::new();
    let mut sort = |functions: &mut dyn Iterator<Item = FuncId>| {
        fits.clear();
        for id in functions {
            if let Some(fit) = Fit::of(&program.name(id), q.wanted) {
                fits.entry(fit).or_default().push(id);
            }
        }
        std::mem::take(&mut fits)
    };
    let (noted, mut all) = (sort(&mut noted.into_iter()), None);
    for fit in Fit::ALL {
        // For a part of a name, functions that whet worked on take precedence.
        let all = match noted.get(&fit) {
            Some(found) => found,
            None => match all.get_or_insert_with(|| sort(&mut program.functions())).get(&fit) {
                Some(found) => found,
                None => continue,
            },
        };
        let distinct: BTreeSet<FuncId> = all.iter().copied().collect();
        if let (Some(&one), 1) = (distinct.first(), distinct.len()) {
            return Ok(one);
        }
        let tell = |&id: &FuncId| {
            let name = program.name(id);
            let name = names::demangled(&name).unwrap_or(name);
            // The name is part of a message: a terminal must not execute control characters.
            format!("{} {}", program.extent(id).entry, name.replace(char::is_control, "\u{fffd}"))
        };
        return Err(Error::SeveralFunctions {
            pid,
            name: q.wanted.to_owned(),
            found: distinct.len(),
            some: distinct.iter().take(TOLD).map(tell).collect(),
        });
    }
    Err(none())
}

fn anatomy(
    q: &Question<'_>,
    program: &Program<'_>,
    id: FuncId,
    noted: Option<&NotedFunction>,
    maps: &FxHashMap<Avma, AddressMap>,
) -> Anatomy {
    let (extent, module) = (program.extent(id), program.module_image(id));
    let analysed = program.analyse(id);
    let map = maps.get(&extent.entry);
    let profile: Profile = q.notes.profile.parse().unwrap_or_default();
    let kept = analysed.as_ref().ok().and_then(|a| {
        let build = id_of(module)?;
        let key = FunctionKey { at: module.bias.svma(extent.entry), hash: profile::hash(&a.cfg) };
        profile.modules.get(&build)?.functions.get(&key)
    });
    let counts: Option<Counts> = kept.zip(analysed.as_ref().ok()).map(|(f, a)| f.counts(&a.cfg));
    let range = |r: AvmaRange| CodeRange { at: r.start.to_string(), bytes: r.len() };
    let clone_of = |map| Clone { map, bytes: bytes(&q.target.process, map) };
    let name = |at: Avma| name_of(program, id, maps, at);
    let blocks = match &analysed {
        Ok(a) => listing::blocks(&Subject {
            cfg: &a.cfg,
            counts: counts.as_ref(),
            clone: map.map(clone_of),
            name: &name,
        }),
        Err(_) => Vec::new(),
    };
    let standing = match (map, noted) {
        (Some(_), _) => Standing::Cloned,
        (None, Some(_)) => Standing::Refused,
        (None, None) => Standing::NotHot,
    };
    Anatomy {
        demangled: names::demangled(&program.name(id)),
        module: module.file_name().unwrap_or("?").to_owned(),
        stated: module.bias.svma(extent.entry).to_string(),
        original: extent.parts.iter().copied().map(range).collect(),
        clone: map.iter().flat_map(|m| m.fragments().ranges()).map(range).collect(),
        standing,
        why: why(q.notes, standing, noted, analysed.as_ref().err().copied(), kept),
        counted: kept.map(|f| f.origin == profile::Origin::Counted),
        entered: kept.map(|f| f.entered),
        redirects: map.map(|m| redirects(&q.target.process, q.installed, m)).unwrap_or_default(),
        blocks,
    }
}

/// Returns the present bytes of a clone.
fn bytes(memory: &dyn ReadMemory, map: &AddressMap) -> Vec<(AvmaRange, Vec<u8>)> {
    map.fragments().ranges().filter_map(|r| Some((r, memory.bytes(r).ok()?))).collect()
}

/// Returns the name of an address to which code leads; `None` inside the function itself.
fn name_of(
    program: &Program<'_>,
    own: FuncId,
    maps: &FxHashMap<Avma, AddressMap>,
    at: Avma,
) -> Option<String> {
    let clone = maps.iter().find(|(_, m)| m.fragments().contains(at)).map(|(entry, _)| *entry);
    let id = program.find(clone.unwrap_or(at))?;
    let name = names::short(&program.name(id));
    match (clone, id == own) {
        (Some(_), false) => Some(format!("clone of {name}")),
        (None, false) => match program.bound(at).and_then(|to| program.entered_at(to)) {
            Some(behind) => Some(format!("{} by its stub", names::short(&program.name(behind)))),
            None => Some(name),
        },
        (_, true) => None,
    }
}

/// Counts the places that lead into a clone, by kind.
fn redirects(memory: &dyn ReadMemory, installed: &Installed, map: &AddressMap) -> BTreeMap<String, usize> {
    let mut out = BTreeMap::new();
    for r in installed.of(installed.generation()).flat_map(|c| &c.records) {
        if crate::build::redirects::leads_to(r, memory).is_some_and(|to| map.fragments().contains(to)) {
            *out.entry(r.kind.name().to_owned()).or_default() += 1;
        }
    }
    out
}

fn why(
    notes: &Notes,
    standing: Standing,
    noted: Option<&NotedFunction>,
    now: Option<Refusal>,
    kept: Option<&FunctionProfile>,
) -> String {
    let sentence = reason_in_words;
    match (standing, noted.and_then(|f| f.reason.as_deref())) {
        (Standing::Cloned, Some(reason)) => {
            format!("cloned; its own entry is not redirected, calls to it are: {}", sentence(reason))
        }
        (Standing::Cloned, None) if notes.shuffle.is_some() => {
            "cloned like all functions, in random order".to_owned()
        }
        (Standing::Cloned, None) if kept.is_none() => {
            "cloned; its counts had no room in the target".to_owned()
        }
        (Standing::Cloned, None) => "cloned".to_owned(),
        (Standing::Refused, Some(reason)) => format!("left alone: {}", sentence(reason)),
        (Standing::Refused, None) => "hot, but without a clone in the newest generation".to_owned(),
        (Standing::NotHot, _) => {
            let not_hot =
                "not hot: it ran too rarely while the profile was taken, or was not among those asked for";
            match now {
                Some(reason) => format!("{not_hot}; and it would be left alone: {}", reason.why()),
                None => not_hot.to_owned(),
            }
        }
    }
}
