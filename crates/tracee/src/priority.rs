//! A thread's priority, raised temporarily.
//!
//! A target with more runnable threads than the machine has CPUs starves the thread that stops it. Measured:
//! a stop of a thousand threads takes hundreds of milliseconds at normal priority and under ten with
//! real-time priority.
//!
//! The kernel is called directly. POSIX defines the C library's functions for processes, so musl has none for
//! threads.

use crate::Tid;
use crate::ptrace::own_tid;
use rustix::process::{getpriority_process, setpriority_process};

/// A raised priority. It is restored when this value is dropped, also by unwinding.
#[derive(Debug)]
pub struct Raised {
    tid: Tid,
    was: Was,
}

#[derive(Debug)]
enum Was {
    /// Nothing could be raised.
    Unchanged,
    Policy(libc::c_int, libc::c_int),
    Nice(libc::c_int),
}

/// A nice value above normal threads, but not the highest.
const FAVOURED: libc::c_int = -10;

/// Low among the real-time priorities: above all normal threads, below other real-time threads.
const FIFO_PRIORITY: libc::c_int = 2;

impl Raised {
    /// Raises the calling thread: SCHED_FIFO, else nice −20, else nothing, as the kernel allows.
    pub(crate) fn own() -> Self {
        let tid = own_tid();
        let policy = policy_of(tid);
        let mut priority: libc::c_int = 0;
        // SAFETY: the kernel's `struct sched_param` is one integer, and `priority` is valid for writes.
        let got = unsafe { libc::syscall(libc::SYS_sched_getparam, tid.0, &raw mut priority) };
        if policy < 0 || got < 0 {
            return Self { tid, was: Was::Unchanged };
        }
        if policy == libc::SCHED_OTHER || policy == libc::SCHED_BATCH || policy == libc::SCHED_IDLE {
            if set_policy(tid, libc::SCHED_FIFO, FIFO_PRIORITY) {
                return Self { tid, was: Was::Policy(policy, priority) };
            }
            if let Some(nice) = nice_of(tid)
                && set_nice(tid, -20)
            {
                return Self { tid, was: Was::Nice(nice) };
            }
        }
        Self { tid, was: Was::Unchanged }
    }

    /// Prefers the calling thread to normal threads, as far as the kernel allows. It is for work of a fixed
    /// CPU time that a busy target would starve. The work costs the target no more CPU time than before, and
    /// ends sooner.
    #[must_use]
    pub fn favoured() -> Self {
        let tid = own_tid();
        let nice = nice_of(tid).filter(|&nice| nice > FAVOURED && set_nice(tid, FAVOURED));
        Self { tid, was: nice.map_or(Was::Unchanged, Was::Nice) }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // Lowering is always allowed. If the thread has ended, nothing has to be restored.
        match self.was {
            Was::Unchanged => {}
            Was::Policy(policy, priority) => {
                set_policy(self.tid, policy, priority);
            }
            Was::Nice(nice) => {
                set_nice(self.tid, nice);
            }
        }
    }
}

fn set_policy(tid: Tid, policy: libc::c_int, priority: libc::c_int) -> bool {
    // SAFETY: the kernel's `struct sched_param` is one integer, and `priority` is valid for reads.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid.0, policy, &raw const priority) == 0 }
}

/// Returns the policy of a thread (0: the calling one), or -1.
pub(crate) fn policy_of(tid: Tid) -> libc::c_int {
    // SAFETY: takes one integer.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid.0) };
    libc::c_int::try_from(policy).unwrap_or(-1)
}

/// Nice values of "processes" are those of single threads on Linux.
fn nice_of(tid: Tid) -> Option<libc::c_int> {
    getpriority_process(Some(tid.raw()?)).ok()
}

fn set_nice(tid: Tid, nice: libc::c_int) -> bool {
    tid.raw().is_some_and(|pid| setpriority_process(Some(pid), nice).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn favour_is_restored() {
        let nice = || nice_of(own_tid());
        let before = nice();
        let favoured = Raised::favoured();
        if matches!(favoured.was, Was::Nice(_)) {
            assert_eq!(nice(), Some(FAVOURED));
            // A stop in between restores the favoured value.
            drop(Raised::own());
            assert_eq!(nice(), Some(FAVOURED));
        }
        drop(favoured);
        assert_eq!(nice(), before);
    }

    #[test]
    fn is_given_back() {
        let policy = || policy_of(Tid(0));
        let before = policy();
        let r = Raised::own();
        if matches!(r.was, Was::Policy(..)) {
            assert_eq!(policy(), libc::SCHED_FIFO);
        }
        drop(r);
        assert_eq!(policy(), before);
        let panicked = std::panic::catch_unwind(|| {
            let _r = Raised::own();
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(policy(), before);
    }
}
