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
    let names = names(module);
    let mut writer = Writer { names: &names, entered: HashMap::new(), out: Fdata::default() };
    for (key, f) in &module.functions {
        match names.get(&key.at).filter(|_| is_heaviest(module, *key)) {
            Some(name) => {
                writer.out.functions += 1;
                writer.branches(*key, f, name);
            }
            None => writer.out.unnamed += 1,
        }
    }
    let Writer { entered, mut out, .. } = writer;
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

/// The text of one module in progress.
struct Writer<'a> {
    names: &'a BTreeMap<Svma, String>,
    /// The number of known entries into each function.
    entered: HashMap<Svma, u64>,
    out: Fdata,
}

impl Writer<'_> {
    /// Writes the edges and the calls of a function.
    fn branches(&mut self, key: FunctionKey, f: &FunctionProfile, name: &str) {
        let inside = |at: i64| u64::try_from(at).is_ok_and(|at| at < f.size);
        let caller = |from: i64| inside(from).then_some((name, from));
        for block in f.blocks.values() {
            for (&to, &n) in &block.edges {
                if inside(block.last) && inside(to) {
                    let _ = writeln!(self.out.text, "1 {name} {:x} 1 {name} {to:x} 0 {n}", block.last);
                } else if !f.calls.keys().any(|(at, _)| *at == block.last) {
                    // This is a conditional tail call. A tail call by a plain jump is among the calls.
                    self.enters(caller(block.last), key.at.offset(to), n);
                }
            }
        }
        for ((at, callee), &n) in &f.calls {
            match callee.module {
                None => self.enters(caller(*at), callee.at, n),
                Some(_) => self.out.edges_left_out += 1,
            }
        }
        for (&at, site) in &f.sites {
            for (callee, n) in site.called(f.count_at(at)).filter(|c| c.1 > 0) {
                match callee.module {
                    None => self.enters(caller(at), callee.at, n),
                    Some(_) => self.out.edges_left_out += 1,
                }
            }
        }
    }

    /// Writes `n` calls of the function at `at`. `caller` is the calling function and the offset in it;
    /// `None` if the text cannot name the place.
    fn enters(&mut self, caller: Option<(&str, i64)>, at: Svma, n: u64) {
        let Some(((name, from), callee)) = caller.zip(self.names.get(&at)) else {
            self.out.edges_left_out += 1;
            return;
        };
        let sum = self.entered.entry(at).or_default();
        *sum = sum.saturating_add(n);
        let _ = writeln!(self.out.text, "1 {name} {from:x} 1 {callee} 0 0 {n}");
    }
}
