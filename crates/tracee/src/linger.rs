//! Tracing threads that outlive their stop.
//!
//! A stop that is given up leaves threads behind that were interrupted and have not come to rest: they sit in an
//! uninterruptible wait. The kernel's flag that somebody wants them stays up, and may end a later wait of the same
//! system call with EINTR. So their tracer stays, without anybody waiting for it, until each has come to rest, been
//! cured and let go. It makes way for the next stop of the same target.
//!
//! Not so for a child of ours: the kernel would tell of its stops to whoever in this program waits for its end.

use crate::Tid;
use crate::ptrace::own_tid;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Those that linger, each with the wish that it end.
static LINGERING: Mutex<BTreeMap<Tid, Arc<AtomicBool>>> = Mutex::new(BTreeMap::new());

/// Without those that have ended. They are not taken out by themselves: a thread is a tracer until it is no more.
fn lingering() -> MutexGuard<'static, BTreeMap<Tid, Arc<AtomicBool>>> {
    let mut all = LINGERING.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|tid, _| Path::new("/proc/self/task").join(tid.to_string()).exists());
    all
}

/// The calling thread begins to linger; the wish that it end.
pub(crate) fn begin() -> Arc<AtomicBool> {
    let end = Arc::new(AtomicBool::new(false));
    lingering().insert(own_tid(), Arc::clone(&end));
    end
}

/// Whether a tracer is one of ours that lingers.
pub(crate) fn is_lingering(tracer: i32) -> bool {
    lingering().contains_key(&Tid(tracer))
}

/// Whether a tracer has not ended meanwhile.
pub(crate) fn is_there(tracer: i32) -> bool {
    Path::new("/proc").join(tracer.to_string()).exists()
}

/// Has a tracer end soon, if it is one of ours that lingers; whether it is.
pub(crate) fn make_way(tracer: i32) -> bool {
    match lingering().get(&Tid(tracer)) {
        Some(end) => {
            end.store(true, Ordering::Relaxed);
            true
        }
        None => false,
    }
}
