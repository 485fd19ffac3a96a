//! Whether events can be counted, which is tried before a run: a host may have no counters, no perf, or may refuse
//! to count.

use super::perf_output::parse;
use super::perf_stat::spec;
use super::table::{Slots, Table};
use crate::command::Commands;
use crate::error::Error;
use std::fs;
use std::time::Duration;

const LENGTH: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

/// Why no events are counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Uncounted {
    /// The server is on another host.
    Elsewhere,
    /// The kernel has no counters.
    NoCounters,
    /// perf is not installed.
    NoPerf,
    /// The kernel refuses, with this value of `kernel.perf_event_paranoid`.
    Refused(String),
    /// Another reason: the first line that perf printed.
    Other(String),
}

impl Uncounted {
    /// Describes the reason in words, with advice.
    pub fn words(&self) -> String {
        match self {
            Self::Elsewhere => "The server's hardware counters cannot be read from this host".to_owned(),
            Self::NoCounters => "No hardware counters here".to_owned(),
            Self::NoPerf => "perf is not installed here (apt-get install linux-perf)".to_owned(),
            Self::Refused(paranoid) => format!(
                "perf may not count events here (kernel.perf_event_paranoid is {paranoid}: set it to 2, or run the lab as root)"
            ),
            Self::Other(line) => format!("perf counts no instructions here ({line})"),
        }
    }
}

/// Counts the events of this process for a moment. Returns why that fails, or `None` if it works.
///
/// # Errors
/// [`Error::Interrupted`] on an interrupt; an error of the log.
pub fn probe(commands: &Commands, table: &Table) -> Result<Option<Uncounted>, Error> {
    let own = std::process::id().cast_signed();
    let Some(spec) = spec(&[own], Some(LENGTH), table) else {
        let device =
            |name: &str| fs::exists(format!("/sys/bus/event_source/devices/{name}")).unwrap_or(false);
        let is_there = device("cpu") || device("cpu_core");
        return Ok(Some(if is_there { Uncounted::NoPerf } else { Uncounted::NoCounters }));
    };
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match commands.run(&spec, PATIENCE) {
        Ok(answer) => Ok(judge(&answer.err, table.slots, paranoid.trim())),
        Err(e @ Error::Command { .. }) => Ok(Some(Uncounted::Other(e.to_string()))),
        Err(e) => Err(e),
    }
}

/// Judges what perf printed.
fn judge(text: &str, slots: Slots, paranoid: &str) -> Option<Uncounted> {
    let counted = parse(text, slots).events;
    if ["instructions", "cycles"].iter().all(|event| counted.get(*event).is_some_and(|n| *n > 0.0)) {
        return None;
    }
    let says = |words: &[&str]| words.iter().any(|w| text.contains(w));
    Some(if says(&["Access to performance monitoring", "Permission denied", "Operation not permitted"]) {
        Uncounted::Refused(paranoid.to_owned())
    } else if says(&["<not supported>", "Cannot find PMU", "No supported events found"]) {
        Uncounted::NoCounters
    } else {
        Uncounted::Other(
            text.lines().find(|l| !l.trim().is_empty()).unwrap_or("it printed nothing").to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_taken_from_what_perf_prints() {
        let judged = |text| judge(text, Slots::PerCycle(1.0), "4");
        for counted in [
            include_str!("../../tests/perf/zen4.txt"),
            include_str!("../../tests/perf/skylake-multiplexed.txt"),
            include_str!("../../tests/perf/sapphire-rapids-not-counted.txt"),
        ] {
            assert_eq!(judged(counted), None);
        }
        for none in
            [include_str!("../../tests/perf/no-counters.txt"), include_str!("../../tests/perf/no-pmu.txt")]
        {
            assert_eq!(judged(none), Some(Uncounted::NoCounters));
        }
        let refused = judged(include_str!("../../tests/perf/refused.txt")).unwrap();
        assert_eq!(refused, Uncounted::Refused("4".to_owned()));
        assert!(refused.words().contains("kernel.perf_event_paranoid is 4"));
        let other =
            judged("\n<not counted>;;instructions:u;0;0.00;;\n<not counted>;;cycles:u;0;0.00;;\n").unwrap();
        assert_eq!(
            other.words(),
            "perf counts no instructions here (<not counted>;;instructions:u;0;0.00;;)"
        );
        assert_eq!(judged(""), Some(Uncounted::Other("it printed nothing".to_owned())));
    }
}
