//! Threads whose vfork is under way.
//!
//! The parent of a vfork waits until its child starts another program or ends. A child that ends lets its parent
//! continue first, and sends it SIGCHLD some tens of microseconds later (`do_exit()` in the kernel). If the parent is a
//! tracee then, the kernel delivers this signal even if the process ignores it (`sig_ignored()`), to any thread, and
//! ends that thread's call. So the vfork is over only when the signal has been sent.

use crate::process::{is_exiting, proc_text, state};
use crate::{Process, Tid};

/// Returns whether a thread waits in vfork, or the child that let it continue has not sent its signal yet.
pub(crate) fn is_under_way(process: &Process, tid: Tid) -> bool {
    is_waiting(process, tid) || is_child_ending(process, tid)
}

/// Returns whether a thread waits in the kernel for a child that it has created by vfork. A new thread before its first
/// instruction shows the same system call, but its wait is interruptible, or a tracer has stopped it.
pub(crate) fn is_waiting(process: &Process, tid: Tid) -> bool {
    let call = process.sleeps_in(tid);
    call.is_some_and(|nr| [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3].contains(&nr))
        && process.thread_status(tid).is_ok_and(|s| s.state == 'D')
}

/// Returns whether the last child of a thread is ending. A zombie has sent its signal, or does so before the kernel lets
/// a tracer seize the parent: both take `tasklist_lock`.
pub(crate) fn is_child_ending(process: &Process, tid: Tid) -> bool {
    let children = process.text(&format!("task/{tid}/children")).unwrap_or_default();
    let last = children.split_ascii_whitespace().next_back().and_then(|pid| pid.parse().ok());
    let stat = last.map(|pid| proc_text(pid, "stat")).unwrap_or_default();
    is_exiting(&stat) && !matches!(state(&stat), 'Z' | 'X' | 'x')
}
