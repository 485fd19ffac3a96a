//! `status`: who carries a journal, found by looking, without any daemon.

use crate::report::{StatusReport, TargetState, TargetStatus};
use crate::{Error, Target};
use splice::{Installed, State};
use tracee::Pid;

/// Looks at one process, or at all.
///
/// # Errors
/// That of the one process; what cannot be looked at among all is counted.
pub fn status(pid: Option<Pid>) -> Result<StatusReport, Error> {
    let mut report = StatusReport { targets: Vec::new(), unreadable: 0 };
    if let Some(pid) = pid {
        report.targets.extend(of(&Target::open(pid)?)?);
        return Ok(report);
    }
    for pid in all_pids() {
        match Target::open(pid).and_then(|t| of(&t)) {
            Ok(Some(s)) => report.targets.push(s),
            Ok(None) => {}
            Err(Error::Tracee(tracee::Error::NoPermission { .. })) => report.unreadable += 1,
            // Gone meanwhile, a kernel thread, whet itself: nothing to tell.
            Err(_) => {}
        }
    }
    Ok(report)
}

fn all_pids() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<Pid> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).map(Pid).collect();
    pids.sort_unstable_by_key(|p| p.0);
    pids
}

fn of(target: &Target) -> Result<Option<TargetStatus>, Error> {
    let Some(installed) = &target.installed else { return Ok(None) };
    let generation = installed.generation();
    if generation == 0 && !installed.is_counting() {
        return Ok(None);
    }
    let counting = installed.caches.iter().filter(|c| installed.is_counting() && c.header.counting);
    let newest: Vec<_> = installed.of(generation).chain(counting.filter(|_| generation == 0)).collect();
    let since = newest.iter().map(|c| c.header.since_ns).min().unwrap_or(0);
    Ok(Some(TargetStatus {
        pid: target.process.pid().0,
        exe: target.exe(),
        state: state_of(installed),
        generation,
        since: rfc3339(since / 1_000_000_000),
        redirects: newest.iter().map(|c| c.records.len()).sum(),
        code_bytes: newest.iter().map(|c| c.header.code_bytes).sum(),
        mapped_bytes: installed.mapped_bytes(),
    }))
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

/// Seconds of the Unix epoch as a date (proleptic Gregorian; the civil-from-days algorithm of Howard Hinnant).
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
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
