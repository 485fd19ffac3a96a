//! Through which process the kernel is asked: one that has nothing to do, since its threads may have to wait when
//! they map memory.

use crate::Error;
use crate::family::facts;
use image::Mapping;
use std::time::Duration;
use tracee::{Pid, Process};

/// How long CPU times are watched.
const LOOK: Duration = Duration::from_millis(300);
/// How often, and at what distances, it is looked whether a process sleeps.
const LOOKS: u32 = 4;
const MOMENT: Duration = Duration::from_millis(1);
/// The most CPU time of a quiet process in that time: 1%. Nanoseconds.
const QUIET: u64 = 3_000_000;

/// What one look has shown of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    pid: Pid,
    /// CPU time during the look. Nanoseconds.
    used: u64,
    is_parent: bool,
    /// When it started: clock ticks since boot.
    start: u64,
}

/// Returns the quiet ones, the best first. The parent is the last choice, since it forks. Of processes that
/// are equally quiet, the oldest will stay.
fn quiet(mut seen: Vec<Seen>) -> Vec<Pid> {
    seen.retain(|s| s.used < QUIET);
    seen.sort_by_key(|s| (s.is_parent, s.used, s.start, s.pid));
    seen.into_iter().map(|s| s.pid).collect()
}

/// Returns a quiet process of the family of `pid` that has the same mapping and sleeps; `None` if there is none.
///
/// # Errors
/// Those of [`facts::family_of`].
pub(super) fn with_mapping(pid: Pid, mapping: &Mapping) -> Result<Option<Process>, Error> {
    let family = facts::family_of(pid)?;
    let parent = family.parent.pid;
    let all = family.members.into_iter().chain([family.parent]);
    let before: Vec<_> = all.filter_map(|f| Some((tracee::cpu_time_ns(f.pid)?, f))).collect();
    std::thread::sleep(LOOK);
    let seen = before.into_iter().filter_map(|(before, f)| {
        let used = tracee::cpu_time_ns(f.pid)?.saturating_sub(before);
        Some(Seen { pid: f.pid, used, is_parent: f.pid == parent, start: f.start })
    });
    // A process that waits for a CPU uses none either. One that sleeps may be awake for a moment.
    let sleeps = |process: &Process| {
        (0..LOOKS).any(|look| {
            std::thread::sleep(MOMENT * look);
            process.status().is_ok_and(|status| status.state == 'S')
        })
    };
    let open = |pid: Pid| Process::open(pid).ok().filter(|p| sleeps(p) && has(p, mapping));
    Ok(quiet(seen.collect()).into_iter().find_map(open))
}

/// Returns whether a process has a mapping now.
pub(super) fn has(process: &Process, mapping: &Mapping) -> bool {
    let maps = process.maps_text().ok().and_then(|text| image::maps::parse(&text).ok());
    maps.is_some_and(|maps| maps.contains(mapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_has_nothing_to_do() {
        let seen = |pid, used, is_parent, start| Seen { pid: Pid(pid), used, is_parent, start };
        // The parent, two backends of which one is busy, and two other processes.
        let all = vec![
            seen(10, 0, true, 1),
            seen(11, 90_000_000, false, 9),
            seen(12, 200_000, false, 8),
            seen(13, 0, false, 3),
            seen(14, 0, false, 2),
        ];
        assert_eq!(quiet(all), [14, 13, 12, 10].map(Pid));
        assert_eq!(quiet(vec![seen(10, QUIET, true, 1)]), []);
    }
}
