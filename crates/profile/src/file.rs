//! What was counted, kept in a file: by module (its build-id) and function (its stated address and the hash of its
//! graph), so that it serves every process that runs the same build, on this host or another.
//!
//! The text form has a line for each fact, in a fixed order, so that two files can be compared line by line:
//!
//! ```text
//! whet-profile 2
//! exe /usr/sbin/mariadbd
//! runs 1
//! when 1760000000
//! sampled 8000
//! counted 3000
//! samples 16740
//! module 0f3a9c… mariadbd
//! function 0x5f8e10 9f8e7d6c5b4a3210 counted entered 1234 samples 17 size 0x1a0 global _Z3foov
//! hits +10 17
//! +0 +e 1234 +10 1000 +20 234
//! call +6 0x7c1230 1234
//! leads +c of 96 0x7c1440 90 0x1180@aa41… 4
//! table +c of 96 0x1622d48 95
//! end
//! ```
//!
//! `runs`: how many optimizations are summed up here; `when`: the latest of them, in seconds of the Unix epoch; `sampled`,
//! `counted`: for how long, in milliseconds; `samples`: user samples of the whole process; `left-out`: functions that
//! had no room. A function is `counted`, or `inferred` from samples, or this because threads `stayed` in it while all
//! others were counted; then come how often it was entered at its
//! entry, the samples in it, its size, whether its symbol is `global`, `local`, one of several of the same name
//! (`shared`) or there is `none`, and its name. `hits` tells which of its blocks those samples were in. A line that begins
//! with a sign is a block: where it starts, where its
//! last instruction other than a `nop` is, how often it ran, and how often it led where; hexadecimal distances from the
//! function's entry. `call` tells where, whom (in another module: `ADDRESS@BUILD-ID`) and how often. What never ran is
//! left out. `leads` tells of an indirect call or jump how often it was looked at, and to which functions it led how
//! often of these; `table` the same of the virtual table that it went by. `#` begins a comment.
//!
//! Version 1 had no `stayed`, `hits`, `leads` and `table`; it is still read.

mod build_id;
mod fdata;
mod hash;
mod merge;
mod parse;
mod print;
mod record;
#[cfg(test)]
mod tests;
mod tokens;

pub use build_id::BuildId;
pub use fdata::{Fdata, fdata};
pub use hash::hash;
pub use parse::ProfileError;

use addr::Svma;
use std::collections::{BTreeMap, BTreeSet};

/// The version of the text form that this whet writes; it reads all from 1 on.
pub const PROFILE_VERSION: u32 = 2;

/// How often the code of some modules ran.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Paths of the programs it was taken of; for information.
    pub exes: BTreeSet<String>,
    /// How many optimizations are summed up.
    pub runs: u64,
    /// The latest of them: seconds of the Unix epoch.
    pub when: u64,
    /// For how long samples were taken. Milliseconds.
    pub sampled: u64,
    /// For how long edges were counted. Milliseconds.
    pub counted: u64,
    /// User samples of the whole process, also those in no function below.
    pub samples: u64,
    /// Functions, the least run ones, for which there was no room.
    pub left_out: u64,
    /// By build-id.
    pub modules: BTreeMap<BuildId, ModuleProfile>,
}

/// One module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleProfile {
    /// Its file name; for information.
    pub name: String,
    /// Its functions.
    pub functions: BTreeMap<FunctionKey, FunctionProfile>,
}

/// Which function of a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionKey {
    /// Stated address of its entry.
    pub at: Svma,
    /// [`hash()`] of its graph.
    pub hash: u64,
}

/// What kind of symbol a function has: decides how other tools name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Binding {
    /// None.
    #[default]
    None,
    /// A local one whose name other symbols of the module have, too.
    Shared,
    /// A local one.
    Local,
    /// A global one.
    Global,
}

/// How counts were come by; the better, the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Origin {
    /// Inferred from samples: only their ratios mean something.
    #[default]
    Inferred,
    /// The same, as threads were in it for as long as was counted: nothing of it was entered anew, though it ran.
    Stayed,
    /// Its edges were counted.
    Counted,
}

/// How often the parts of one function ran. Offsets are distances from its entry, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FunctionProfile {
    /// The name of its symbol; empty where it has none.
    pub name: String,
    /// What kind of symbol that is.
    pub binding: Binding,
    /// Bytes of its main fragment.
    pub size: u64,
    /// How its counts were come by.
    pub origin: Origin,
    /// Samples in it.
    pub samples: u64,
    /// How often it was entered at its entry.
    pub entered: u64,
    /// Samples by where the block starts that they were in.
    pub hits: BTreeMap<i64, u64>,
    /// Blocks that ran, by where they start.
    pub blocks: BTreeMap<i64, BlockProfile>,
    /// Direct calls and tail calls, by where the instruction is and the entry of whom it calls.
    pub calls: BTreeMap<(i64, Place), u64>,
    /// Indirect calls and jumps, by where the instruction is.
    pub sites: BTreeMap<i64, SiteProfile>,
}

/// Where an indirect call or jump led, as far as it was seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SiteProfile {
    /// To the entries of which functions.
    pub callees: Looks,
    /// By which virtual tables.
    pub tables: Looks,
}

impl SiteProfile {
    /// Whom it called how often, where it ran so often.
    pub fn called(&self, ran: u64) -> impl Iterator<Item = (&Place, u64)> {
        let saw = self.callees.saw.values().fold(0, |sum: u64, &n| sum.saturating_add(n));
        let all = u128::from(self.callees.all.max(saw).max(1));
        let share = move |n: u64| u64::try_from(u128::from(ran) * u128::from(n) / all).unwrap_or(ran);
        self.callees.saw.iter().map(move |(place, &n)| (place, share(n)))
    }
}

/// What was seen, of so many looks. What a look is, a moment or a branch, depends on how it was come by: only ratios mean
/// something.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Looks {
    /// How many there were; those that saw nothing that outlives the process are in no place.
    pub all: u64,
    /// How many saw what.
    pub saw: BTreeMap<Place, u64>,
}

/// One block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockProfile {
    /// Its last instruction that is not a `nop`.
    pub last: i64,
    /// How often it ran.
    pub count: u64,
    /// How often it led where, inside the function or out of it.
    pub edges: BTreeMap<i64, u64>,
}

/// An address that outlives a process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// In which module; `None`: in that of the function that is told of.
    pub module: Option<BuildId>,
    /// As that states it.
    pub at: Svma,
}

impl FunctionProfile {
    /// Whether its edges were counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.origin == Origin::Counted
    }

    /// How often the block ran that an instruction is in.
    #[must_use]
    pub fn count_at(&self, at: i64) -> u64 {
        self.blocks.range(..=at).next_back().filter(|(_, b)| at <= b.last).map_or(0, |(_, b)| b.count)
    }

    /// Sum of its blocks' counts.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.blocks.values().fold(0, |sum, b| sum.saturating_add(b.count))
    }
}

impl Profile {
    /// How many functions it has.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.modules.values().map(|m| m.functions.len()).sum()
    }

    /// Leaves the least run functions out until the text form has at most `limit` bytes.
    pub fn shrink_to(&mut self, limit: usize) {
        let mut room = limit.saturating_sub(print::fixed_len(self));
        let mut ranked: Vec<(u64, usize, BuildId, FunctionKey)> = Vec::new();
        for (id, module) in &self.modules {
            for (&key, f) in &module.functions {
                ranked.push((f.weight(), print::function_len(key, f), id.clone(), key));
            }
        }
        ranked.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| (&a.2, a.3).cmp(&(&b.2, b.3))));
        let mut kept = 0;
        for (_, len, _, _) in &ranked {
            let Some(rest) = room.checked_sub(*len) else { break };
            room = rest;
            kept += 1;
        }
        for (_, _, id, key) in ranked.drain(kept..) {
            if let Some(module) = self.modules.get_mut(&id) {
                module.functions.remove(&key);
                self.left_out = self.left_out.saturating_add(1);
            }
        }
    }
}
