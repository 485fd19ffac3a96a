//! A module's profile as llvm-bolt's text profile (`.fdata`).
//!
//! A line is a branch: `1 NAME OFFSET 1 NAME OFFSET MISPREDICTIONS COUNT`, offsets in hexadecimal from the symbol; one
//! from `0 [unknown] 0` is an entry of which nobody knows where it came from. (llvm-project, bolt/lib/Profile/DataReader.cpp.)

use super::{Binding, BuildId, FunctionKey, FunctionProfile, ModuleProfile, Profile};
use addr::{Addr, Svma};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// A text profile, and what could not be said in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fdata {
    /// The text.
    pub text: String,
    /// Functions it tells of.
    pub functions: usize,
    /// Functions left out, as they have no symbol, or one whose name is not theirs alone.
    pub unnamed: usize,
    /// Edges and calls of the functions it tells of that are left out: to functions it cannot name, and to or from cold
    /// fragments, which have symbols of their own.
    pub edges_left_out: usize,
}

/// Writes it for one module; empty where the profile does not have that.
#[must_use]
pub fn fdata(profile: &Profile, module: &BuildId) -> Fdata {
    let Some(module) = profile.modules.get(module) else { return Fdata::default() };
    let mut out = Fdata::default();
    let names = names(module);
    // What is known to enter each function.
    let mut entered: HashMap<Svma, u64> = HashMap::new();
    for (key, f) in &module.functions {
        match names.get(&key.at).filter(|_| is_newest(module, *key)) {
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
            && is_newest(module, *key)
            && let Some(name) = names.get(&key.at)
        {
            let _ = writeln!(out.text, "0 [unknown] 0 1 {name} 0 0 {rest}");
        }
    }
    out
}

/// How the tool names the functions: it numbers local symbols of the same name.
fn names(module: &ModuleProfile) -> BTreeMap<Svma, String> {
    let name = |f: &FunctionProfile| match f.binding {
        // A blank or a backslash would have to be escaped, in ways that versions differ in.
        _ if f.name.is_empty() || f.name.contains([' ', '\\']) => None,
        Binding::Global => Some(f.name.clone()),
        Binding::Local => Some(format!("{}/1", f.name)),
        Binding::Shared | Binding::None => None,
    };
    module.functions.iter().filter_map(|(key, f)| Some((key.at, name(f)?))).collect()
}

/// Where two versions of whet cut a function differently, only one of them can be told of.
fn is_newest(module: &ModuleProfile, key: FunctionKey) -> bool {
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
                // A conditional tail call; one by a plain jump is among the calls.
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
