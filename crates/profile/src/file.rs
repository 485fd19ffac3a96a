//! Execution counts, kept in a file. They are listed by module (its build-id) and function (its stated
//! address and the hash of its graph). So they are valid for every process that runs the same build, on this
//! host or another.
//!
//! The text form has a line for each fact, in a fixed order, so two files can be compared line by line:
//!
//! ```text
//! whet-profile 3
//! exe /usr/sbin/mariadbd
//! runs 1
//! when 1760000000
//! sampled 8000
//! counted 3000
//! samples 16740
//! module 0f3a9c… mariadbd
//! function 0x5f8e10 9f8e7d6c5b4a3210 counted entered 1234 samples 17 size 0x1a0 global _Z3foov
//! shape 1f2e3d4c5b6a7988
//! hits +10 17
//! +0 +e 1234 +10 1000 +20 234
//! call +6 0x7c1230 1234
//! leads +c of 96 0x7c1440 90 0x1180@aa41… 4
//! table +c of 96 0x1622d48 95
//! end
//! ```
//!
//! - `runs`: the number of optimizations summed up in the file.
//! - `when`: the time of the latest of them, in seconds of the Unix epoch.
//! - `sampled`, `counted`: the durations of sampling and of counting, in milliseconds.
//! - `samples`: the user samples of the whole process.
//! - `left-out`: the number of functions that had no room.
//! - `function`: the stated address and the hash. Then the origin of the counts: `counted`; or `inferred`
//!   from samples; or inferred because threads `stayed` in the function while all others were counted. Then
//!   how often control entered at the function's entry, the samples in it, and its size in bytes. Then the
//!   kind of its symbol, `global`, `local`, `shared` (one of several local symbols of the same name) or
//!   `none`, and its name.
//! - `shape`: [`shape()`] of the function's code, by which it is found again in another build.
//! - `hits`: the samples of the function by block: each block's start and its samples.
//! - A line that begins with a sign is a block. It has the block's start, the start of its last instruction
//!   other than a `nop`, and its executions. The destination and the executions of each edge follow. Blocks
//!   and edges that never ran are left out.
//! - `call`: the instruction, the callee (`ADDRESS@BUILD-ID` in another module) and the number of calls.
//! - `leads`: an indirect call or jump, the number of its observations, and the functions that it reached,
//!   each with the number of observations that saw it.
//! - `table`: the same with the virtual tables that the call used.
//! - Blocks and instructions are given as distances in bytes from the function's entry, in hexadecimal.
//! - `#` begins a comment.
//!
//! Version 2 had no `shape`, and version 1 no `stayed`, `hits`, `leads` and `table`. Both are still read.

mod build_id;
mod carry;
mod fdata;
mod hash;
mod merge;
mod parse;
mod print;
mod record;
mod shape;
#[cfg(test)]
mod tests;
mod tokens;

pub use build_id::BuildId;
pub use fdata::{Fdata, fdata};
pub use hash::hash;
pub use parse::ProfileError;
pub use shape::shape;

use addr::Svma;
use std::collections::{BTreeMap, BTreeSet};

/// The version of the text form that this whet writes. It reads all versions from 1 on.
pub const PROFILE_VERSION: u32 = 3;

/// Execution counts of the code of some modules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// The paths of the profiled programs; for information.
    pub exes: BTreeSet<String>,
    /// The number of optimizations that are summed up.
    pub runs: u64,
    /// The time of the latest of them: seconds of the Unix epoch.
    pub when: u64,
    /// The duration of sampling. Milliseconds.
    pub sampled: u64,
    /// The duration of counting. Milliseconds.
    pub counted: u64,
    /// User samples of the whole process, including samples outside the functions below.
    pub samples: u64,
    /// The number of functions left out because they had no room: the least executed ones.
    pub left_out: u64,
    /// By build-id.
    pub modules: BTreeMap<BuildId, ModuleProfile>,
}

/// The profile of one module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleProfile {
    /// Its file name; for information.
    pub name: String,
    /// Its functions.
    pub functions: BTreeMap<FunctionKey, FunctionProfile>,
}

/// The key of a function within its module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FunctionKey {
    /// The stated address of its entry.
    pub at: Svma,
    /// [`hash()`] of its graph.
    pub hash: u64,
}

/// The kind of symbol that a function has. Other tools' names for the function depend on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Binding {
    /// No symbol.
    #[default]
    None,
    /// A local symbol whose name other symbols of the module have too.
    Shared,
    /// A local symbol with a name of its own.
    Local,
    /// A global symbol.
    Global,
}

/// The origin of counts. Better origins are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Origin {
    /// Inferred from samples: only the ratios of the counts are meaningful.
    #[default]
    Inferred,
    /// Inferred from samples, because nothing was counted although samples show that the function ran.
    /// Threads entered it before the counting and stayed in it.
    Stayed,
    /// Counted on the edges.
    Counted,
}

/// The execution counts of one function. Offsets are distances from its entry, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FunctionProfile {
    /// The name of its symbol; empty if it has none.
    pub name: String,
    /// The kind of its symbol.
    pub binding: Binding,
    /// The size of its main fragment. Bytes.
    pub size: u64,
    /// [`shape()`] of its main fragment; `None` if the profile was written by a whet that did not record it.
    pub shape: Option<u64>,
    /// The origin of its counts.
    pub origin: Origin,
    /// The samples in it.
    pub samples: u64,
    /// How often control entered at its entry.
    pub entered: u64,
    /// Samples by block, by the offset of the block's start.
    pub hits: BTreeMap<i64, u64>,
    /// The blocks that ran, by the offset of their start.
    pub blocks: BTreeMap<i64, BlockProfile>,
    /// The numbers of direct calls and tail calls, by the offset of the instruction and the callee's entry.
    pub calls: BTreeMap<(i64, Place), u64>,
    /// Indirect calls and jumps, by the offset of the instruction.
    pub sites: BTreeMap<i64, SiteProfile>,
}

/// The observed destinations of an indirect call or jump.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SiteProfile {
    /// The entries of the functions that it reached.
    pub callees: Looks,
    /// The virtual tables that it used.
    pub tables: Looks,
}

impl SiteProfile {
    /// Returns the callees, each with its number of calls, for an instruction that ran `ran` times. The
    /// executions are divided in proportion to the observations.
    pub fn called(&self, ran: u64) -> impl Iterator<Item = (&Place, u64)> {
        let saw = self.callees.saw.values().fold(0, |sum: u64, &n| sum.saturating_add(n));
        let all = u128::from(self.callees.all.max(saw).max(1));
        let share = move |n: u64| u64::try_from(u128::from(ran) * u128::from(n) / all).unwrap_or(ran);
        self.callees.saw.iter().map(move |(place, &n)| (place, share(n)))
    }
}

/// A sum of observations. An observation is a moment or a taken branch, depending on the source, so only
/// ratios are meaningful.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Looks {
    /// The number of all observations, including those whose result has no place because it does not outlive
    /// the process.
    pub all: u64,
    /// The number of observations of each place.
    pub saw: BTreeMap<Place, u64>,
}

/// The profile of one block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockProfile {
    /// The offset of its last instruction that is not a `nop`.
    pub last: i64,
    /// How often it ran.
    pub count: u64,
    /// How often control went from it to each destination, inside the function or outside, by the
    /// destination's offset.
    pub edges: BTreeMap<i64, u64>,
}

/// An address that stays valid when the process has ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The module; `None` for the module of the function whose profile contains this place.
    pub module: Option<BuildId>,
    /// The address as the module states it.
    pub at: Svma,
}

impl FunctionProfile {
    /// Returns whether its edges were counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.origin == Origin::Counted
    }

    /// Returns how often the block ran that contains the instruction at offset `at`; 0 if none is known to.
    #[must_use]
    pub fn count_at(&self, at: i64) -> u64 {
        self.blocks.range(..=at).next_back().filter(|(_, b)| at <= b.last).map_or(0, |(_, b)| b.count)
    }

    /// Returns the sum of its blocks' counts.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.blocks.values().fold(0, |sum, b| sum.saturating_add(b.count))
    }
}

impl Profile {
    /// Returns the number of functions in it.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.modules.values().map(|m| m.functions.len()).sum()
    }

    /// Leaves out the least executed functions until the text form has at most `limit` bytes.
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
