//! What `status` reports of a process that holds a journal, or on which a whet works.

use crate::base::date;
use crate::build::space;
use crate::records::notes::Notes;
use crate::session::sign::Work;
use crate::session::state::{TargetState, state_of};
use crate::{Error, OptimizeOptions, Target};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tracee::Pid;

/// One target in `status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The target.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// Its state.
    pub state: TargetState,
    /// The newest generation; 0 if there is none yet.
    pub generation: u32,
    /// When the generation was installed, or when work on the first one began: RFC 3339, UTC.
    pub since: String,
    /// Redirects of that generation.
    pub redirects: usize,
    /// Bytes of its clones.
    pub code_bytes: u64,
    /// Bytes mapped by all generations.
    pub mapped_bytes: u64,
    /// Functions that have a clone.
    pub cloned: usize,
    /// Functions that were hot but left alone.
    pub refused: usize,
    /// Why functions, or entries, were left alone: number for each reason.
    pub refusals: BTreeMap<String, usize>,
    /// Share of the user samples that fell in cloned functions; `None` without samples.
    pub coverage: Option<f64>,
    /// The same share for the main program.
    pub coverage_main: Option<f64>,
    /// How all user time is distributed, by the same samples; absent without samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_time: Option<crate::UserTime>,
    /// The longest stop in the last install, undo or redo; `None` if it was not recorded.
    pub stop_ms: Option<f64>,
    /// CPU time it has used so far. Seconds.
    pub cpu_seconds: Option<f64>,
    /// The version of the journal if a newer whet wrote it. This whet can only undo it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_journal: Option<u32>,
    /// Rebuilt functions whose originals another program has changed since (a probe, a breakpoint, a hook).
    /// Such changes have no effect while clones run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_originals: Vec<String>,
    /// True if the memory cap, or the list of code caches, has no room for new clones: rebuilds use earlier
    /// ones.
    #[serde(default)]
    pub is_full: bool,
    /// The process id of the whet that works on the target now. During a comparison, `state` is the state
    /// that is restored.
    pub worked_on_by: Option<i32>,
}

/// The answer of `status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// Every process that holds a journal.
    pub targets: Vec<TargetStatus>,
    /// Processes that could not be read for lack of permission.
    pub unreadable: usize,
}

/// Summarizes a target's journal and notes. Returns `None` if no generation was installed and nothing
/// counts.
pub(crate) fn of(target: &Target, notes: Option<&Notes>) -> Option<TargetStatus> {
    let installed = target.installed.as_ref()?;
    let generation = installed.generation();
    if generation == 0 && !installed.is_counting() {
        return None;
    }
    let counting = installed.caches.iter().filter(|c| installed.is_counting() && c.header.counting);
    let newest: Vec<_> = installed.of(generation).chain(counting.filter(|_| generation == 0)).collect();
    let since = newest.iter().map(|c| c.header.since_ns).min().unwrap_or(0);
    let stopped = newest.iter().map(|c| c.header.stopped_ns).max().filter(|&ns| ns > 0);
    let sampled = notes.filter(|n| n.samples > 0);
    let cloned = |n: &Notes| n.functions.iter().filter(|f| f.clone.is_some()).count();
    Some(TargetStatus {
        pid: target.process.pid().0,
        exe: target.exe(),
        state: state_of(installed),
        generation,
        since: date::rfc3339(since / 1_000_000_000),
        redirects: newest.iter().map(|c| c.records.len()).sum(),
        code_bytes: newest.iter().map(|c| c.header.code_bytes).sum(),
        mapped_bytes: installed.mapped_bytes(),
        cloned: notes.map_or(0, cloned),
        refused: notes.map_or(0, |n| n.functions.len() - cloned(n)),
        refusals: notes.map(|n| n.refusals.clone()).unwrap_or_default(),
        coverage: sampled.map(|n| n.coverage),
        coverage_main: sampled.map(|n| n.coverage_main),
        user_time: notes.and_then(|n| n.user_time.clone()),
        stop_ms: stopped.map(|ns| (ns as f64 / 1e3).round() / 1e3),
        cpu_seconds: cpu_seconds(target),
        newer_journal: installed.newer(),
        changed_originals: Vec::new(),
        is_full: space::is_full(installed, &OptimizeOptions::default()),
        worked_on_by: None,
    })
}

/// Returns the status of a target on which a whet has just begun to work.
pub(crate) fn begun(target: &Target, work: &Work) -> TargetStatus {
    TargetStatus {
        pid: target.process.pid().0,
        exe: target.exe(),
        state: work.state.unwrap_or(TargetState::Profiling),
        generation: 0,
        since: date::rfc3339(work.since),
        redirects: 0,
        code_bytes: 0,
        mapped_bytes: 0,
        cloned: 0,
        refused: 0,
        refusals: BTreeMap::new(),
        coverage: None,
        coverage_main: None,
        user_time: None,
        stop_ms: None,
        cpu_seconds: cpu_seconds(target),
        newer_journal: None,
        changed_originals: Vec::new(),
        is_full: false,
        worked_on_by: Some(work.by),
    }
}

fn cpu_seconds(target: &Target) -> Option<f64> {
    target.process.cpu_time_ns().ok().map(|ns| (ns as f64 / 1e6).round() / 1e3)
}

/// Checks that a process id still denotes the process that started at `start`: clock ticks since boot.
///
/// # Errors
/// Returns [`Error::Tracee`] if the process has ended, or may not be read.
pub fn is_still(pid: Pid, start: u64) -> Result<(), Error> {
    let is = tracee::Process::open(pid)?.start_time()? == start;
    if is { Ok(()) } else { Err(tracee::Error::Gone(pid).into()) }
}
