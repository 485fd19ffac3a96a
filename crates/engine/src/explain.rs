//! `explain`: what was done to a process, and why the rest was left alone.

use crate::notes::{NotedFunction, Notes};
use crate::report::TargetState;
use crate::status::state_of;
use crate::{DynoReport, Error, Target};
use serde::Serialize;
use std::collections::BTreeMap;
use tracee::Pid;

/// The answer of `explain`.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainReport {
    /// The target.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// Its state.
    pub state: TargetState,
    /// The newest generation.
    pub generation: u32,
    /// The seed of a random layout.
    pub shuffle: Option<u64>,
    /// User samples the choice was made from.
    pub samples: u64,
    /// Share of them in cloned functions.
    pub coverage: f64,
    /// The same for the main program.
    pub coverage_main: f64,
    /// Why functions, or entries, were left alone: reason to count.
    pub refusals: BTreeMap<String, usize>,
    /// What the counted functions make the CPU do, before and after; `None` where edges were not counted.
    pub dyno: Option<DynoReport>,
    /// The functions, hottest first; with a function named, only that one.
    pub functions: Vec<FunctionReport>,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionReport {
    /// Name, or module and stated address.
    pub name: String,
    /// Process address of the original.
    pub at: String,
    /// Samples in it.
    pub samples: u64,
    /// Process address of the clone, where it is entered.
    pub clone: Option<String>,
    /// Bytes of the clone there.
    pub clone_bytes: Option<u64>,
    /// Process address of those of its blocks that run seldom, where they lie apart, behind all code that runs often.
    pub warm: Option<String>,
    /// Bytes of them.
    pub warm_bytes: Option<u64>,
    /// Why it was left alone; for a cloned function, why only its entry was.
    pub reason: Option<String>,
}

/// Explains a target from the notes in it.
///
/// # Errors
/// [`Error::NotInstalled`], [`Error::NoSuchFunction`].
pub fn explain(pid: Pid, function: Option<&str>) -> Result<ExplainReport, Error> {
    let target = Target::open(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let generation = installed.generation();
    let notes = Notes::of(&target.process, installed).ok_or(Error::NotInstalled { pid })?;
    let mut functions: Vec<&NotedFunction> = match function {
        None => notes.functions.iter().collect(),
        Some(wanted) => {
            let found: Vec<_> = notes.functions.iter().filter(|f| is(f, wanted)).collect();
            if found.is_empty() {
                return Err(Error::NoSuchFunction { pid, name: wanted.to_owned() });
            }
            found
        }
    };
    functions.sort_by_key(|f| (std::cmp::Reverse(f.samples), f.at));
    Ok(ExplainReport {
        pid: pid.0,
        exe: target.exe(),
        state: state_of(installed),
        generation,
        shuffle: notes.shuffle,
        samples: notes.samples,
        coverage: notes.coverage,
        coverage_main: notes.coverage_main,
        refusals: notes.refusals.clone(),
        dyno: notes.dyno,
        functions: functions.into_iter().map(report).collect(),
    })
}

/// Whether a function is the one asked for: by name, by entry, or by an address inside its clone.
fn is(f: &NotedFunction, wanted: &str) -> bool {
    let at = wanted.strip_prefix("0x").and_then(|h| u64::from_str_radix(h, 16).ok());
    match at {
        None => f.name == wanted,
        Some(at) => {
            let inside = |&(start, len): &(u64, u64)| at >= start && at - start < len;
            f.at == at || f.clone.iter().chain(&f.warm).any(inside)
        }
    }
}

fn report(f: &NotedFunction) -> FunctionReport {
    let address = |(at, _): (u64, u64)| format!("{at:#x}");
    FunctionReport {
        name: f.name.clone(),
        at: format!("{:#x}", f.at),
        samples: f.samples,
        clone: f.clone.map(address),
        clone_bytes: f.clone.map(|(_, len)| len),
        warm: f.warm.map(address),
        warm_bytes: f.warm.map(|(_, len)| len),
        reason: f.reason.clone(),
    }
}
