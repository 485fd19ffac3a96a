//! Children forked while functions were counted: their memory has counting clones and GS bases of its own.

use crate::Target;
use crate::session::lock::TargetLock;
use addr::Avma;
use splice::Policy;
use std::fs;
use tracee::Pid;

/// Ends counting in every process that started since then with a copy of the target's anchor. A process that
/// cannot be opened, or on which another whet works, is left alone.
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
        // If the child does not stop in time, it stays correct but slower. The next whet that works on it
        // ends counting.
        let _ = splice::undo(&child.process, copy, &Policy::default());
    }
}
