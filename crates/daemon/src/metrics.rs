//! The daemon's metrics, as OpenMetrics text (<https://github.com/prometheus/OpenMetrics>, version 1.0).

use crate::machine::{Layout, Outcome, State};
use std::fmt::Write;
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
    /// Workers that died or took too long.
    pub crashed: u64,
    /// Targets that ended, or became another program.
    pub ended: u64,
    /// Failed writes of files.
    pub unwritten: u64,
    /// Looks at all processes.
    pub looks: u64,
    /// CPU time spent on looks.
    pub looking: Duration,
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
            Outcome::Checked(_) | Outcome::Judged(..) | Outcome::Toggled(_) => {}
        }
    }

    /// Returns the text. `states` are the states of all live targets.
    #[must_use]
    pub fn text(&self, states: impl Iterator<Item = State>, switched_off: bool) -> String {
        let mut by_state = [0u64; State::ALL.len()];
        for state in states {
            if let Some(n) = State::ALL.iter().position(|s| *s == state).and_then(|i| by_state.get_mut(i)) {
                *n += 1;
            }
        }
        let mut out = String::new();
        let mut begin = |name: &str, kind: &str, help: &str, values: &[(String, String)]| {
            let _ = writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {help}");
            for (labels, value) in values {
                let suffix = if kind == "counter" { "_total" } else { "" };
                let _ = writeln!(out, "{name}{suffix}{labels} {value}");
            }
        };
        let states: Vec<_> = State::ALL
            .iter()
            .zip(by_state)
            .map(|(s, n)| (format!("{{state=\"{}\"}}", s.word()), n.to_string()))
            .collect();
        begin("whet_targets", "gauge", "Processes on the list, by state.", &states);
        let plain = |value: String| [(String::new(), value)];
        begin(
            "whet_switched_off",
            "gauge",
            "Whether the kill-switch file exists.",
            &plain(u8::from(switched_off).to_string()),
        );
        for (name, help, n) in [
            ("whet_rebuilds", "Rebuilds that were put in place.", self.rebuilds),
            ("whet_warm_starts", "Rebuilds by a profile that was kept.", self.warm),
            ("whet_rebuilds_by_earlier", "Rebuilds by an earlier layout.", self.earlier),
            (
                "whet_rebuilds_without_room",
                "Rebuilds by an earlier layout as there was no room for new clones.",
                self.full,
            ),
            ("whet_taken_back", "Rebuilds that were undone because they did not pay.", self.taken_back),
            ("whet_jobs_failed", "Jobs that ended with a reason why not.", self.failed),
            ("whet_workers_crashed", "Workers that died or took too long.", self.crashed),
            (
                "whet_targets_ended",
                "Processes on the list that ended, or became another program.",
                self.ended,
            ),
            ("whet_files_unwritten", "Files that could not be written.", self.unwritten),
            ("whet_looks", "Looks at all processes.", self.looks),
        ] {
            begin(name, "counter", help, &plain(n.to_string()));
        }
        let seconds = self.looking.as_secs_f64();
        begin("whet_looking_seconds", "counter", "CPU time spent on looks.", &plain(format!("{seconds:.6}")));
        out.push_str("# EOF\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_openmetrics_text() {
        let mut counted = Counted { looking: Duration::from_millis(1500), ..Counted::default() };
        counted.outcome(&Outcome::Optimized { generation: 1, coverage: 0.9, layout: Layout::Warm });
        counted.outcome(&Outcome::Optimized { generation: 2, coverage: 0.9, layout: Layout::EarlierAsFull });
        counted.outcome(&Outcome::Crashed(String::new()));
        let text = counted.text([State::Optimized, State::Optimized, State::Lost].into_iter(), true);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line} in {text}");
        has("# TYPE whet_targets gauge");
        has("whet_targets{state=\"optimized\"} 2");
        has("whet_targets{state=\"watching\"} 0");
        has("whet_rebuilds_total 2");
        has("whet_rebuilds_by_earlier_total 1");
        has("whet_rebuilds_without_room_total 1");
        has("whet_warm_starts_total 1");
        has("whet_workers_crashed_total 1");
        has("whet_looking_seconds_total 1.500000");
        has("whet_switched_off 1");
        assert!(text.ends_with("# EOF\n"));
        assert_eq!(text.lines().filter(|l| l.starts_with("# TYPE")).count(), 13);
    }
}
