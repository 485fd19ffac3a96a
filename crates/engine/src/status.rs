//! `status`: who carries a journal, found by looking, without any daemon.

use crate::notes::Notes;
use crate::report::{StatusReport, TargetState, TargetStatus};
use crate::sign::Work;
use crate::{Error, OptimizeOptions, Target, Watcher, reuse};
use splice::{Installed, State};
use std::collections::BTreeMap;
use tracee::Pid;

/// Looks at one process, or at all.
///
/// # Errors
/// That of the one process; what cannot be looked at among all is counted.
pub fn status(pid: Option<Pid>) -> Result<StatusReport, Error> {
    Watcher::new(pid).look()
}

/// What a target's journal and notes say; `None` where there is nothing of whet's in force or to come back.
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
        since: rfc3339(since / 1_000_000_000),
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
        is_full: reuse::is_full(installed, &OptimizeOptions::default()),
        worked_on_by: None,
    })
}

/// A target on which a whet has just begun to work.
pub(crate) fn begun(target: &Target, work: &Work) -> TargetStatus {
    TargetStatus {
        pid: target.process.pid().0,
        exe: target.exe(),
        state: work.state.unwrap_or(TargetState::Profiling),
        generation: 0,
        since: rfc3339(work.since),
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

/// Makes sure that an id still is the process that started then: clock ticks since boot.
///
/// # Errors
/// [`Error::Tracee`] where it has ended, or may not be looked at.
pub fn is_still(pid: Pid, start: u64) -> Result<(), Error> {
    let is = tracee::Process::open(pid)?.start_time()? == start;
    if is { Ok(()) } else { Err(tracee::Error::Gone(pid).into()) }
}

/// The journal's word in the contract's.
#[must_use]
pub fn state_of(installed: &Installed) -> TargetState {
    if installed.is_counting() {
        return TargetState::Counting;
    }
    match installed.state() {
        State::Applied => TargetState::Optimized,
        State::Undone => TargetState::Undone,
        State::Prepared => TargetState::Interrupted,
    }
}

/// Seconds of the Unix epoch as a date; empty past the year 9999, which only a forged journal tells of.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    at.map_or_else(String::new, |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
