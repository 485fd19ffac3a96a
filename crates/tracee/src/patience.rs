//! How long a stop of all threads may take.

use crate::{Process, Tid};
use std::collections::BTreeMap;
use std::time::Duration;

/// After what time a stop is given up and all threads go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a thread that is stuck: it waits in the kernel, or runs there without an end. The time for which it only waited
    /// for a CPU does not count.
    pub blocked: Duration,
    /// For a thread that waits for a CPU, in all. The threads that have stopped wait as long; on a host with so much to do
    /// they would wait for a CPU as well.
    pub starved: Duration,
}

impl From<Duration> for Patience {
    fn from(both: Duration) -> Self {
        Self { blocked: both, starved: both }
    }
}

/// How often late threads are looked at, and how many of them: of a thousand that wait for a CPU any few do.
const EVERY: Duration = Duration::from_millis(10);
const FEW: usize = 16;

/// For how long threads that are to stop were kept from it by something else than the want of a CPU.
#[derive(Debug, Default)]
pub(crate) struct Starvation {
    seen: Duration,
    blocked: Duration,
    /// CPU time that each had used at the last look. Nanoseconds.
    used: BTreeMap<Tid, u64>,
}

impl Starvation {
    /// That time, as of `waited` since they were told to stop, when `late` have not stopped yet.
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
            // One that was given a CPU for half of the time had its chance.
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

/// CPU time a thread has used: the first field of its `schedstat`, in nanoseconds. `None` in a kernel without it.
fn cpu_time(process: &Process, tid: Tid) -> Option<u64> {
    process.text(&format!("task/{tid}/schedstat")).ok()?.split(' ').next()?.parse().ok()
}
