//! Tracing threads that outlive their stop.
//!
//! A stop that is given up may leave interrupted threads that have not come to rest, because they are in an
//! uninterruptible wait. The kernel's flag of the interruption stays set, and may end a later wait of the
//! same system call with EINTR. So their tracer stays in the background until each thread has come to rest
//! and been resumed with its call repaired. It makes way for the next stop of the same target. A thread in
//! vfork needs no such tracer, as nothing ends its call early.
//!
//! A child of this process gets no such tracer: the kernel would report its stops to any thread here that
//! waits for its end.

use crate::Tid;
use crate::ptrace::own_tid;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The lingering threads, each with the flag that requests its end.
static LINGERING: Mutex<BTreeMap<Tid, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

/// Returns the lingering threads, without those that have ended. They do not remove themselves: a thread is a
/// tracer until it has ended.
fn lingering() -> MutexGuard<'static, BTreeMap<Tid, Arc<AtomicBool>>> {
    let mut all = LINGERING.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|tid, _| Path::new("/proc/self/task").join(tid.to_string()).exists());
    all
}

/// Registers the calling thread as lingering; returns the flag that requests its end.
pub(crate) fn begin() -> Arc<AtomicBool> {
    let end = Arc::new(AtomicBool::new(false));
    lingering().insert(own_tid(), Arc::clone(&end));
    end
}

/// Returns whether a tracer is a lingering thread of this program.
pub(crate) fn is_lingering(tracer: i32) -> bool {
    lingering().contains_key(&Tid(tracer))
}

/// Requests the end of a tracer if it is a lingering thread of this program; returns whether it is.
pub(crate) fn make_way(tracer: i32) -> bool {
    match lingering().get(&Tid(tracer)) {
        Some(end) => {
            end.store(true, Ordering::Relaxed);
            true
        }
        None => false,
    }
}
