//! Conversion of a module's profile to llvm-bolt's text profile (`.fdata`).
//!
//! Each line is a branch: `1 NAME OFFSET 1 NAME OFFSET MISPREDICTIONS COUNT`, with hexadecimal offsets from
//! the symbol. A line that begins with `0 [unknown] 0` is an entry from an unknown place. (Source:
//! llvm-project, bolt/lib/Profile/DataReader.cpp.)

use super::{Binding, BuildId, FunctionKey, FunctionProfile, ModuleProfile, Profile};
use addr::{Addr, Svma};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// A text profile, and what it leaves out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fdata {
    /// The text.
    pub text: String,
    /// The number of functions in it.
    pub functions: usize,
    /// Functions left out. Their symbol is missing, shares its name with others, or has a name that would
    /// need escapes. Or another graph at the same address has a greater weight.
    pub unnamed: usize,
    /// Edges and calls of the contained functions that are left out: to functions that the text cannot name,
    /// and to or from cold fragments, which have symbols of their own.
    pub edges_left_out: usize,
}

/// Returns the text profile of one module; empty if the profile does not have that module.
#[must_use]
pub fn fdata(profile: &Profile, module: &BuildId) -> Fdata {
    let Some(module) = profile.modules.get(module) else { return Fdata::default() };
    let mut out = Fdata::default();
    let names = names(module);
    // The number of known entries into each function.
    let mut entered: HashMap<Svma, u64> = HashMap::new();
    for (key, f) in &module.functions {
        match names.get(&key.at).filter(|_| is_heaviest(module, *key)) {
            Some(name) => {
                out.functions += 1;
                branches(*key, f, name, &names, &mut entered, &mut out);
            }
            None => out.unnamed += 1,
        }
    }
    for (key, f) in &module.functions {
        let rest = f.entered.saturating_sub(entered.get(&key.at).copied().unwrap_or(0));
        if rest > 0
            && is_heaviest(module, *key)
            && let Some(name) = names.get(&key.at)
        {
            let _ = writeln!(out.text, "0 [unknown] 0 1 {name} 0 0 {rest}");
        }
    }
    out
}

/// Returns the names that llvm-bolt gives to the functions. It numbers local symbols of the same name.
fn names(module: &ModuleProfile) -> BTreeMap<Svma, String> {
    let name = |f: &FunctionProfile| match f.binding {
        // Blanks and backslashes would need escapes, and versions of llvm-bolt differ in these.
        _ if f.name.is_empty() || f.name.contains([' ', '\\']) => None,
        Binding::Global => Some(f.name.clone()),
        Binding::Local => Some(format!("{}/1", f.name)),
        Binding::Shared | Binding::None => None,
    };
    module.functions.iter().filter_map(|(key, f)| Some((key.at, name(f)?))).collect()
}

/// Returns whether a function is the one to write of all with the same address: the one with the greatest
/// weight. Two versions of whet may find different graphs for a function, and the text can hold only one.
fn is_heaviest(module: &ModuleProfile, key: FunctionKey) -> bool {
    let same = FunctionKey { at: key.at, hash: 0 }..=FunctionKey { at: key.at, hash: u64::MAX };
    let weight = |(k, f): (&FunctionKey, &FunctionProfile)| (f.weight(), k.hash);
    module.functions.range(same).map(weight).max().is_none_or(|best| best.1 == key.hash)
}

fn branches(
    key: FunctionKey,
    f: &FunctionProfile,
    name: &str,
    names: &BTreeMap<Svma, String>,
    entered: &mut HashMap<Svma, u64>,
    out: &mut Fdata,
) {
    let inside = |at: i64| u64::try_from(at).is_ok_and(|at| at < f.size);
    let mut enters = |from: i64, at: Svma, n: u64, out: &mut Fdata| match names.get(&at) {
        Some(callee) if inside(from) => {
            let sum = entered.entry(at).or_default();
            *sum = sum.saturating_add(n);
            let _ = writeln!(out.text, "1 {name} {from:x} 1 {callee} 0 0 {n}");
        }
        _ => out.edges_left_out += 1,
    };
    for block in f.blocks.values() {
        for (&to, &n) in &block.edges {
            if inside(block.last) && inside(to) {
                let _ = writeln!(out.text, "1 {name} {:x} 1 {name} {to:x} 0 {n}", block.last);
            } else if !f.calls.keys().any(|(at, _)| *at == block.last) {
                // This is a conditional tail call. A tail call by a plain jump is among the calls.
                enters(block.last, key.at.offset(to), n, out);
            }
        }
    }
    for ((at, callee), &n) in &f.calls {
        match callee.module {
            None => enters(*at, callee.at, n, out),
            Some(_) => out.edges_left_out += 1,
        }
    }
    for (&at, site) in &f.sites {
        for (callee, n) in site.called(f.count_at(at)).filter(|c| c.1 > 0) {
            match callee.module {
                None => enters(at, callee.at, n, out),
                Some(_) => out.edges_left_out += 1,
            }
        }
    }
}
