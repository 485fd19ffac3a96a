//! What was counted, kept in a file: by module (its build-id) and function (its stated address and the hash of its
//! graph), so that it serves every process that runs the same build, on this host or another.
//!
//! The text form has a line for each fact, in a fixed order, so that two files can be compared line by line:
//!
//! ```text
//! whet-profile 1
//! exe /usr/sbin/mariadbd
//! runs 1
//! when 1760000000
//! sampled 8000
//! counted 3000
//! samples 16740
//! module 0f3a9c… mariadbd
//! function 0x5f8e10 9f8e7d6c5b4a3210 counted entered 1234 samples 17 size 0x1a0 global _Z3foov
//! +0 +e 1234 +10 1000 +20 234
//! call +6 0x7c1230 1234
//! end
//! ```
//!
//! `runs`: how many optimizations are summed up here; `when`: the latest of them, in seconds of the Unix epoch; `sampled`,
//! `counted`: for how long, in milliseconds; `samples`: user samples of the whole process; `left-out`: functions that
//! had no room. A function is `counted`, or `inferred` from samples; then come how often it was entered at its
//! entry, the samples in it, its size, whether its symbol is `global`, `local`, one of several of the same name
//! (`shared`) or there is `none`, and its name. A line that begins with a sign is a block: where it starts, where its
//! last instruction other than a `nop` is, how often it ran, and how often it led where; hexadecimal distances from the
//! function's entry. `call` tells where, whom (in another module: `ADDRESS@BUILD-ID`) and how often. What never ran is
//! left out. `#` begins a comment.

mod build_id;
mod fdata;
mod hash;
mod merge;
mod parse;
mod print;
mod record;
#[cfg(test)]
mod tests;

pub use build_id::BuildId;
pub use fdata::{Fdata, fdata};
pub use hash::hash;
pub use parse::ProfileError;

use addr::Svma;
use std::collections::{BTreeMap, BTreeSet};

/// The version of the text form that this whet writes and reads.
pub const PROFILE_VERSION: u32 = 1;

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
    /// [`hash`] of its graph.
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

/// How often the parts of one function ran. Offsets are distances from its entry, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FunctionProfile {
    /// The name of its symbol; empty where it has none.
    pub name: String,
    /// What kind of symbol that is.
    pub binding: Binding,
    /// Bytes of its main fragment.
    pub size: u64,
    /// Whether its edges were counted; else they were inferred from samples, and only their ratios mean something.
    pub counted: bool,
    /// Samples in it.
    pub samples: u64,
    /// How often it was entered at its entry.
    pub entered: u64,
    /// Blocks that ran, by where they start.
    pub blocks: BTreeMap<i64, BlockProfile>,
    /// Direct calls and tail calls, by where the instruction is and whom it calls.
    pub calls: BTreeMap<(i64, Callee), u64>,
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

/// Who is called.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Callee {
    /// In which module; `None`: in the caller's own.
    pub module: Option<BuildId>,
    /// Stated address of its entry.
    pub at: Svma,
}

impl FunctionProfile {
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
