//! The daemon's metrics of this host. `target_metrics` has those of each target.

use crate::exposition::{Family, Kind};
use crate::states::{Layout, Outcome, State};
use std::time::Duration;

/// Counts since the daemon's start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counted {
    /// Rebuilds that were put in force.
    pub rebuilds: u64,
    /// Rebuilds that were started warm.
    pub warm: u64,
    /// Rebuilds by an earlier layout, for whatever reason.
    pub earlier: u64,
    /// Rebuilds by an earlier layout because there was no room for new clones.
    pub full: u64,
    /// Targets whose clones were undone because they did harm.
    pub taken_back: u64,
    /// Jobs that failed with a reason.
    pub failed: u64,
    /// Workers that died or took too long, except workers that the daemon killed after a request to end.
    pub crashed: u64,
    /// Targets that ended, or became another program.
    pub ended: u64,
    /// Failed writes of files.
    pub unwritten: u64,
    /// Scans of all processes.
    pub looks: u64,
    /// CPU time spent on scans.
    pub looking: Duration,
    /// The time of the last scan: seconds of the Unix epoch.
    pub looked_at: i64,
    /// Stops of targets by workers.
    pub stops: u64,
}

impl Counted {
    /// Counts the end of a job.
    pub fn outcome(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Optimized { layout, .. } => {
                self.rebuilds += 1;
                self.warm += u64::from(layout.is_warm());
                self.earlier += u64::from(matches!(layout, Layout::Earlier | Layout::EarlierAsFull));
                self.full += u64::from(*layout == Layout::EarlierAsFull);
            }
            Outcome::Failed { .. } => self.failed += 1,
            Outcome::Crashed(_) => self.crashed += 1,
            Outcome::Checked(_) | Outcome::Judged(..) | Outcome::Toggled(_) | Outcome::Killed => {}
        }
    }

    /// Returns the counters.
    pub(crate) fn families(&self) -> Vec<Family> {
        let counters: [(&'static str, &'static str, f64); 12] = [
            ("whet_rebuilds", "Rebuilds that were put in force.", self.rebuilds as f64),
            ("whet_warm_starts", "Rebuilds from a kept profile.", self.warm as f64),
            ("whet_rebuilds_by_earlier", "Rebuilds by an earlier generation.", self.earlier as f64),
            (
                "whet_rebuilds_without_room",
                "Rebuilds by an earlier generation because there was no room for new clones.",
                self.full as f64,
            ),
            ("whet_taken_back", "Rebuilds that were undone because they did harm.", self.taken_back as f64),
            ("whet_jobs_failed", "Jobs that failed with a reason.", self.failed as f64),
            (
                "whet_workers_crashed",
                "Workers that died or took too long, except workers that the daemon killed after a request to end.",
                self.crashed as f64,
            ),
            (
                "whet_targets_ended",
                "Processes on the list that ended, or became another program.",
                self.ended as f64,
            ),
            ("whet_files_unwritten", "Files that could not be written.", self.unwritten as f64),
            ("whet_looks", "Scans of all processes.", self.looks as f64),
            ("whet_stops", "Stops of targets by this daemon.", self.stops as f64),
            ("whet_looking_seconds", "CPU time spent on scans.", self.looking.as_secs_f64()),
        ];
        let counters = counters.map(|(name, help, n)| Family::single(name, Kind::Counter, help, n));
        let last = Family::single(
            "whet_last_look_timestamp_seconds",
            Kind::Gauge,
            "Time of the last scan of all processes, in seconds of the Unix epoch.",
            self.looked_at as f64,
        );
        counters.into_iter().chain([last]).collect()
    }
}

/// Returns what holds for the host now: the number of live targets in each state, the kill switch, the
/// configuration, the version.
pub(crate) fn of_host(states: [u64; State::ALL.len()], off: bool, config_error: bool) -> Vec<Family> {
    let flag = |name, help, on: bool| Family::single(name, Kind::Gauge, help, f64::from(u8::from(on)));
    let each = State::ALL.iter().zip(states);
    vec![
        Family {
            name: "whet_targets",
            kind: Kind::Gauge,
            help: "Processes on the list, by state.",
            samples: each.map(|(s, n)| (vec![("state", s.word().to_owned())], n as f64)).collect(),
        },
        flag("whet_switched_off", "Whether the kill-switch file exists.", off),
        flag(
            "whet_config_error",
            "Whether the last reload found an error; the configuration before is in force.",
            config_error,
        ),
        Family {
            name: "whet_build",
            kind: Kind::Info,
            help: "The version of the daemon.",
            samples: vec![(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)],
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::{open_metrics, prometheus};

    #[test]
    fn outcomes_are_counted_and_written() {
        let mut counted = Counted { looking: Duration::from_millis(1500), stops: 7, ..Counted::default() };
        counted.outcome(&Outcome::Optimized { generation: 1, coverage: 0.9, layout: Layout::Warm });
        counted.outcome(&Outcome::Optimized { generation: 2, coverage: 0.9, layout: Layout::EarlierAsFull });
        counted.outcome(&Outcome::Crashed(String::new()));
        counted.outcome(&Outcome::Killed);
        let mut states = [0; State::ALL.len()];
        states[State::ALL.iter().position(|s| *s == State::Optimized).unwrap()] = 2;
        let mut families = counted.families();
        families.extend(of_host(states, true, false));
        for text in [prometheus(&families), open_metrics(&families)] {
            for line in [
                "# TYPE whet_targets gauge",
                "whet_targets{state=\"optimized\"} 2",
                "whet_targets{state=\"watching\"} 0",
                "whet_rebuilds_total 2",
                "whet_rebuilds_by_earlier_total 1",
                "whet_rebuilds_without_room_total 1",
                "whet_warm_starts_total 1",
                "whet_workers_crashed_total 1",
                "whet_looking_seconds_total 1.5",
                "whet_stops_total 7",
                "whet_switched_off 1",
                "whet_config_error 0",
            ] {
                assert!(text.lines().any(|l| l == line), "{line} in {text}");
            }
        }
    }
}
