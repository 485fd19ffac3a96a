//! Reaps threads of the target that an exec has ended.
//!
//! A thread that calls exec ends all others. It waits in the kernel until their tracer has reaped them
//! (`de_thread()`), also those that were stopped. Until then, a seize of any thread of the target waits too
//! (`cred_guard_mutex`). So without this, target and whet would wait for each other.

use crate::{Process, Tid, ptrace};

/// As [`reap`], for all threads of a process. A group knows those no more that it has resumed.
pub(crate) fn reap_all(process: &Process) {
    reap(process, process.threads().unwrap_or_default());
}

/// Reaps those of the given threads that have ended, except the first thread, which no exec waits for. As an exec
/// leaves one thread, no more is done once two are found that live.
pub(crate) fn reap(process: &Process, tids: impl IntoIterator<Item = Tid>) {
    let mut living = 0;
    for tid in tids.into_iter().filter(|tid| tid.0 != process.pid().0) {
        // A wait for a thread that lives would take the report of its next stop.
        if process.thread_status(tid).is_ok_and(|s| s.is_ending()) {
            ptrace::reap(tid);
        } else {
            living += 1;
            if living == 2 {
                return;
            }
        }
    }
}
