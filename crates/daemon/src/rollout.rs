//! Limits for a careful rollout on one host: shares of targets, jitter, and a limit of stops.

use crate::config::Config;
use crate::states::{Job, Moment};
use crate::watch::Identity;
use std::collections::VecDeque;
use std::time::Duration;

/// The parts into which all targets are divided.
pub(crate) const LOTS: u16 = 10_000;
/// About how often a rebuild stops its target: it maps code, begins and ends up to three rounds of counting, and
/// installs.
const REBUILD: u32 = 10;
/// The time for which stops are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// Returns a target's lot: a number below [`LOTS`], evenly distributed, and the same for as long as the process
/// lives.
pub(crate) fn lot(id: Identity) -> u16 {
    // FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>), folded.
    let bytes = id.pid.to_le_bytes().into_iter().chain(id.start.to_le_bytes());
    let sum =
        bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, b| (sum ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    u16::try_from((sum ^ sum >> 32) % u64::from(LOTS)).unwrap_or(0)
}

/// Returns about how often a job stops its target.
fn stops(job: Job, config: &Config) -> u32 {
    match job {
        Job::Optimize { .. } => REBUILD,
        Job::Judge => crate::judge::stops(config.harm.within.0),
        Job::Undo | Job::Redo | Job::Mend | Job::Align => 1,
        Job::Check => 0,
    }
}

/// The stops of the last minute on this host, as far as the daemon causes them.
#[derive(Debug, Default)]
pub(crate) struct Stops(VecDeque<(Moment, u32)>);

impl Stops {
    /// Returns whether a job may begin now. A job that alone exceeds the limit begins if no other job began
    /// within a minute. Jobs that need no worker slot never wait.
    pub(crate) fn allow(&mut self, job: Job, now: Moment, config: &Config) -> bool {
        let Some(limit) = config.rollout.stops_per_minute.filter(|_| job.takes_a_place()) else {
            return true;
        };
        self.0.retain(|(at, _)| now < *at + MINUTE);
        let sum: u32 = self.0.iter().map(|(_, n)| n).sum();
        sum == 0 || sum.saturating_add(stops(job, config)) <= limit
    }

    /// Records that a job has begun.
    pub(crate) fn note(&mut self, job: Job, now: Moment, config: &Config) {
        self.0.retain(|(at, _)| now < *at + MINUTE);
        let stops = stops(job, config);
        if stops > 0 {
            self.0.push_back((now, stops));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_are_even() {
        let lots = (1..5000).map(|pid| lot(Identity { pid, start: 7 }));
        let low = lots.filter(|l| *l < LOTS / 10).count();
        assert!((400..600).contains(&low), "{low}");
        let starts = (1..5000).map(|start| lot(Identity { pid: 7, start }));
        let low = starts.filter(|l| *l < LOTS / 10).count();
        assert!((400..600).contains(&low), "{low}");
    }

    #[test]
    fn jobs_wait_for_the_limit_and_mending_does_not() {
        let mut config = Config::default();
        let (mut stops, rebuild) = (Stops::default(), Job::Optimize { fresh: false });
        let at = |s| Duration::from_secs(s);
        for second in 0..100 {
            assert!(stops.allow(rebuild, at(second), &config), "no limit by default");
            stops.note(rebuild, at(second), &config);
        }
        config.rollout.stops_per_minute = Some(2 * REBUILD);
        let mut stops = Stops::default();
        for second in [0, 1] {
            assert!(stops.allow(rebuild, at(second), &config));
            stops.note(rebuild, at(second), &config);
        }
        assert!(!stops.allow(rebuild, at(59), &config) && !stops.allow(Job::Judge, at(59), &config));
        assert!(stops.allow(Job::Undo, at(59), &config) && stops.allow(Job::Mend, at(59), &config));
        assert!(stops.allow(rebuild, at(60), &config), "a minute after the first");
        // A comparison alone has more stops than the limit.
        assert!(!stops.allow(Job::Judge, at(60), &config) && stops.allow(Job::Judge, at(61), &config));
    }
}
