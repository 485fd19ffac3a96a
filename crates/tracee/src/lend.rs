//! The loan of a thread's priority to a thread of the target while the lender waits for it.
//!
//! On an overloaded host, a thread that is to stop waits for a CPU like all others. With a hundred busy
//! programs on two CPUs it waits a third of a second for each step. So the tracing thread lends its own
//! priority.
//!
//! The loan must end by itself when the lender dies, as law 3 demands. The kernel has one such way: priority
//! inheritance. A lock with priority inheritance (`FUTEX_LOCK_PI`) is a word that holds its owner's thread
//! id. The kernel does not check that the owner took the lock (`attach_to_pi_owner()` in
//! `kernel/futex/pi.c`): a waiter for the lock lends its priority to that thread. The word lies in the memory
//! of this program. Nothing in the target is read or written, and the target cannot see the lock.
//!
//! Only a real-time priority is worth lending: the kernel does not pass on nice values.

use crate::Tid;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Waits for `time`, and lends the calling thread's priority to `tid` meanwhile if the kernel supports it.
pub(crate) fn wait(tid: Tid, time: Duration) {
    let since = Instant::now();
    if let Ok(owner) = u32::try_from(tid.0) {
        let lock = AtomicU32::new(owner);
        // Not `PRIVATE`: only threads of this process may hold a private lock, and newer kernels check that.
        // `LOCK_PI2` (Linux 5.14), because its timeout is by `CLOCK_MONOTONIC`.
        if futex::lock_pi2(&lock, futex::Flags::empty(), Some(&from_now(time))).is_ok() {
            // The thread has ended, and the lock is now this thread's.
            let _ = futex::unlock_pi(&lock, futex::Flags::empty());
        }
    }
    // An old kernel, or an ended thread.
    std::thread::sleep(time.saturating_sub(since.elapsed()));
}

/// Returns the time on `CLOCK_MONOTONIC` after `time` from now.
fn from_now(time: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = now.tv_nsec + i64::from(time.subsec_nanos());
    let seconds = i64::try_from(time.as_secs()).unwrap_or(0);
    Timespec { tv_sec: now.tv_sec + seconds + ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// The current priority in the kernel, loans included: field 18 of `stat`; below 0 for a real-time
    /// priority.
    fn priority(tid: u32) -> i64 {
        let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(15).unwrap().parse().unwrap()
    }

    fn ended(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn priority_is_lent_and_returned() {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let id = child.id();
        let tid = Tid(id.cast_signed());
        let before = priority(id);
        let lender = std::thread::spawn(move || {
            let _raised = crate::Raised::own();
            wait(tid, Duration::from_millis(300));
            crate::priority::policy_of(Tid(0)) == libc::SCHED_FIFO
        });
        let mut highest = before;
        let since = Instant::now();
        while !lender.is_finished() {
            highest = highest.min(priority(id));
        }
        assert!(since.elapsed() >= Duration::from_millis(290));
        if lender.join().unwrap() {
            assert!(highest < 0, "nothing was lent: {highest}");
        }
        assert_eq!(priority(id), before);
        ended(child);
    }

    #[test]
    fn wait_lasts_as_long_for_an_ended_thread() {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let tid = Tid(child.id().cast_signed());
        let since = Instant::now();
        let waits = std::thread::spawn(move || wait(tid, Duration::from_millis(100)));
        ended(child);
        waits.join().unwrap();
        wait(tid, Duration::from_millis(100));
        assert!(since.elapsed() >= Duration::from_millis(200));
    }
}
