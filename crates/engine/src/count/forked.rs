//! Children forked while functions were counted: they have clones that count, and bases, in memory of their own.

use crate::Target;
use crate::session::lock::TargetLock;
use addr::Avma;
use splice::Policy;
use std::fs;
use tracee::Pid;

/// Now, in the clock ticks in which `/proc/PID/stat` says when a process began: hundredths of a second, as `/proc/uptime` has
/// them behind its point. `None` where there is no such file.
pub(crate) fn now() -> Option<u64> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    text.split(' ').next()?.replace('.', "").parse().ok()
}

/// Ends counting in every process that began since then, with a copy of the target's anchor. One that cannot be opened is left
/// alone, as is one in which another whet is at work.
pub(crate) fn end_counting(target: Pid, anchor: Avma, since: u64) {
    let pid = |e: fs::DirEntry| e.file_name().to_str()?.parse().ok().map(Pid);
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(pid);
    for pid in all.filter(|&pid| pid != target) {
        let Ok(process) = tracee::Process::open(pid) else { continue };
        if process.start_time().is_ok_and(|began| began >= since) {
            end_in(pid, anchor);
        }
    }
}

fn end_in(pid: Pid, anchor: Avma) {
    let Ok((_, _lock)) = TargetLock::open(pid) else { return };
    let Ok(child) = Target::open(pid) else { return };
    if let Some(copy) = child.installed.as_ref().filter(|i| i.anchor.at == anchor && i.is_counting()) {
        // Should it not stop in time, it is as it was: right, and slower. Its next whet ends it.
        let _ = splice::undo(&child.process, copy, &Policy::default());
    }
}
