//! `explain`: what whet did to a process, and why it left the rest alone.

use crate::records::notes::{NotedFunction, Notes};
use crate::session::state::{TargetState, state_of};
use crate::show::anatomy::{self, Anatomy, Question, Standing};
use crate::show::debug_names::{self, Names};
use crate::show::debuginfod::Debuginfod;
use crate::{DynoReport, Error, Target, UserTime};
use addr::Avma;
use serde::Serialize;
use splice::Installed;
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
    /// Passes that were left out, for measurements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// User samples by which functions were chosen.
    pub samples: u64,
    /// The share of these samples in cloned functions.
    pub coverage: f64,
    /// The same share for the main program.
    pub coverage_main: f64,
    /// How all user time is distributed; absent without samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_time: Option<UserTime>,
    /// Why functions, or entries, were left alone: number for each reason.
    pub refusals: BTreeMap<String, usize>,
    /// Modelled executions of the counted functions, before and after; `None` if edges were not counted.
    pub dyno: Option<DynoReport>,
    /// The functions, hottest first. If a function was named, only that function.
    pub functions: Vec<FunctionReport>,
}

/// One function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionReport {
    /// Its name, or its module and SVMA.
    pub name: String,
    /// Process address of the original.
    pub at: String,
    /// Samples in it.
    pub samples: u64,
    /// Process address of the clone's entry.
    pub clone: Option<String>,
    /// Bytes of the fragment there.
    pub clone_bytes: Option<u64>,
    /// Process address of its warm blocks, if they lie apart, behind all hot code.
    pub warm: Option<String>,
    /// Bytes of the warm blocks.
    pub warm_bytes: Option<u64>,
    /// Why it was left alone; for a cloned function, why its entry was left alone; `not_hot` if it was never
    /// chosen.
    pub reason: Option<String>,
    /// Its graph with counts, original and clone side by side, if a single function was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anatomy: Option<Anatomy>,
}

/// Explains a target from the notes in it. A function is explained in full; it is named, or given by an
/// address of its original or its clone.
///
/// # Errors
/// [`Error::NotInstalled`], [`Error::NoSuchFunction`], [`Error::SeveralFunctions`].
pub fn explain(
    pid: Pid,
    function: Option<&str>,
    debuginfod: &mut Debuginfod,
) -> Result<ExplainReport, Error> {
    let target = Target::open(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let notes = Notes::of(&target.process, installed).ok_or(Error::NotInstalled { pid })?;
    let functions = match function {
        None => {
            let mut all: Vec<&NotedFunction> = notes.functions.iter().collect();
            all.sort_by_key(|f| (std::cmp::Reverse(f.samples), f.at));
            let names = match debuginfod.is_on().then(|| target.image()) {
                Some(Ok(image)) => debug_names::names(&target, &image, &entries(&all), debuginfod),
                Some(Err(_)) | None => Names::default(),
            };
            all.into_iter().map(|f| report(f, &names)).collect()
        }
        Some(wanted) => {
            let question = Question { target: &target, installed, notes: &notes, wanted };
            vec![one(anatomy::take_apart(&question).map_err(|e| target.cause(e))?)]
        }
    };
    Ok(of(&target, installed, &notes, functions))
}

/// Returns the entries of functions.
pub(crate) fn entries(functions: &[&NotedFunction]) -> Vec<Avma> {
    functions.iter().map(|f| Avma(f.at)).collect()
}

/// Builds the answer about a target with some of its functions.
pub(crate) fn of(
    target: &Target,
    installed: &Installed,
    notes: &Notes,
    functions: Vec<FunctionReport>,
) -> ExplainReport {
    ExplainReport {
        pid: target.process.pid().0,
        exe: target.exe(),
        state: state_of(installed),
        generation: installed.generation(),
        shuffle: notes.shuffle,
        without: notes.without.clone(),
        samples: notes.samples,
        coverage: notes.coverage,
        coverage_main: notes.coverage_main,
        user_time: notes.user_time.clone(),
        refusals: notes.refusals.clone(),
        dyno: notes.dyno,
        functions,
    }
}

fn one((noted, name, at, anatomy): (Option<NotedFunction>, String, Avma, Anatomy)) -> FunctionReport {
    let known = match noted {
        Some(f) => report(&f, &Names::default()),
        None => FunctionReport {
            name,
            at: at.to_string(),
            samples: 0,
            clone: None,
            clone_bytes: None,
            warm: None,
            warm_bytes: None,
            reason: (anatomy.standing == Standing::NotHot).then(|| "not_hot".to_owned()),
            anatomy: None,
        },
    };
    FunctionReport { anatomy: Some(anatomy), ..known }
}

/// Describes a function. It has its own name unless `names` has one.
pub(crate) fn report(f: &NotedFunction, names: &Names) -> FunctionReport {
    let address = |(at, _): (u64, u64)| format!("{at:#x}");
    FunctionReport {
        name: names.get(&Avma(f.at)).unwrap_or(&f.name).clone(),
        at: format!("{:#x}", f.at),
        samples: f.samples,
        clone: f.clone.map(address),
        clone_bytes: f.clone.map(|(_, len)| len),
        warm: f.warm.map(address),
        warm_bytes: f.warm.map(|(_, len)| len),
        reason: f.reason.clone(),
        anatomy: None,
    }
}
