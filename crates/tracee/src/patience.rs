//! Time limits of a stop of all threads.

use crate::{Process, Tid};
use std::collections::BTreeMap;
use std::time::Duration;

/// The times after which a stop is given up and all threads are resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a stuck thread: it waits in the kernel, or runs there without end. The time in which it only
    /// waited for a CPU does not count.
    pub blocked: Duration,
    /// For a thread that waits for a CPU, in all. The stopped threads wait as long; on such an overloaded
    /// host they would wait for a CPU as well.
    pub starved: Duration,
}

impl From<Duration> for Patience {
    fn from(both: Duration) -> Self {
        Self { blocked: both, starved: both }
    }
}

/// How often late threads are checked, and how many of them. Of a thousand threads that wait for a CPU, a few
/// are enough.
const EVERY: Duration = Duration::from_millis(10);
const FEW: usize = 16;

/// How long threads that should stop were held up by anything except the lack of a CPU.
#[derive(Debug, Default)]
pub(crate) struct Starvation {
    seen: Duration,
    blocked: Duration,
    /// CPU time that each thread had used at the last look. Nanoseconds.
    used: BTreeMap<Tid, u64>,
}

impl Starvation {
    /// Returns how long the threads were held up by anything except the lack of a CPU. `waited` is the time
    /// since their interruption; `late` are the threads that have not stopped yet.
    pub(crate) fn blocked_for(
        &mut self,
        process: &Process,
        late: impl Iterator<Item = Tid>,
        waited: Duration,
    ) -> Duration {
        let passed = waited.saturating_sub(self.seen);
        if passed < EVERY {
            return self.blocked;
        }
        self.seen = waited;
        let late: Vec<Tid> = late.take(FEW).collect();
        let used: BTreeMap<Tid, u64> =
            late.iter().filter_map(|&tid| Some((tid, cpu_time(process, tid)?))).collect();
        let starves = |tid: &Tid| {
            let ran = used.get(tid).zip(self.used.get(tid)).map(|(now, then)| now.saturating_sub(*then));
            // A thread that had a CPU for half of the time was able to stop.
            ran.is_none_or(|ran| u128::from(ran) < passed.as_nanos() / 2)
                && process.thread_status(*tid).is_ok_and(|s| s.state == 'R')
        };
        if !late.iter().all(starves) {
            self.blocked += passed;
        }
        self.used = used;
        self.blocked
    }
}

/// Returns the CPU time of a thread: the first field of its `schedstat`, in nanoseconds. `None` in a kernel
/// without it.
fn cpu_time(process: &Process, tid: Tid) -> Option<u64> {
    process.text(&format!("task/{tid}/schedstat")).ok()?.split(' ').next()?.parse().ok()
}
