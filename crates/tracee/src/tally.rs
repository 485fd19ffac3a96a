//! How often this process has stopped others, and for how long at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static COUNT: AtomicU64 = AtomicU64::new(0);
static LONGEST_NS: AtomicU64 = AtomicU64::new(0);

/// The stops of all targets by this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// The number of stops, those of a single thread for system calls included.
    pub count: u64,
    /// The longest stop.
    pub longest: Duration,
}

/// Returns the stops so far.
#[must_use]
pub fn tally() -> Tally {
    Tally {
        count: COUNT.load(Ordering::Relaxed),
        longest: Duration::from_nanos(LONGEST_NS.load(Ordering::Relaxed)),
    }
}

/// Counts a stop that has ended.
pub(crate) fn count(stopped: Duration) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    LONGEST_NS.fetch_max(u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}
