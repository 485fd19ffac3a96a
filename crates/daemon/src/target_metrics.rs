//! Metrics of each target.
//!
//! Their number is limited: at most [`MOST_TARGETS`] targets, and of each at most [`MOST_REASONS`] reasons. The
//! number of targets that are left out is a metric itself.

use crate::exposition::{Family, Kind, Labels};
use crate::machine::Target;
use crate::states::State;
use engine::{Tally, TargetStatus};

/// The most targets with metrics of their own.
pub(crate) const MOST_TARGETS: usize = 64;
/// The most reasons of one target for which functions were left alone.
const MOST_REASONS: usize = 16;

/// The contents of a target's journal, as metrics need them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Held {
    generation: u32,
    clone_bytes: u64,
    mapped_bytes: u64,
    cloned: usize,
    is_full: bool,
    stop_seconds: Option<f64>,
    /// Why functions were left alone, with their numbers; the most frequent reasons first.
    left_alone: Vec<(String, usize)>,
}

impl Held {
    /// Returns what metrics need of a status.
    pub(crate) fn of(status: &TargetStatus) -> Self {
        let mut left_alone: Vec<_> = status.refusals.iter().map(|(code, n)| (code.clone(), *n)).collect();
        left_alone.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        left_alone.truncate(MOST_REASONS);
        Self {
            generation: status.generation,
            clone_bytes: status.code_bytes,
            mapped_bytes: status.mapped_bytes,
            cloned: status.cloned,
            is_full: status.is_full,
            stop_seconds: status.stop_ms.map(|ms| ms / 1e3),
            left_alone,
        }
    }
}

/// The figures of one live target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures<'a> {
    pub(crate) pid: i32,
    pub(crate) exe: &'a str,
    pub(crate) life: &'a Target,
    pub(crate) held: Option<&'a Held>,
    /// Its stops by this daemon.
    pub(crate) stops: Tally,
}

impl Figures<'_> {
    fn labels(&self) -> Labels {
        vec![("pid", self.pid.to_string()), ("exe", self.exe.to_owned())]
    }

    fn labels_and(&self, name: &'static str, value: &str) -> Labels {
        let mut labels = self.labels();
        labels.push((name, value.to_owned()));
        labels
    }

    /// Returns the longest stop: of the stops by this daemon, and of the last change in the journal by any
    /// whet.
    fn longest_stop(&self) -> Option<f64> {
        let own = (self.stops.count > 0).then_some(self.stops.longest.as_secs_f64());
        own.into_iter().chain(self.held.and_then(|h| h.stop_seconds)).reduce(f64::max)
    }
}

/// A metric with one value for each target: name, type, meaning, and the value, if the target has one.
type Plain = (&'static str, Kind, &'static str, fn(&Figures<'_>) -> Option<f64>);

const PLAIN: [Plain; 13] = [
    (
        "whet_target_gain_ratio",
        Kind::Gauge,
        "Work per user CPU second with clones, divided by work per user CPU second without; above 1 is a gain.",
        |f| Some(f.life.verdict?.factor),
    ),
    (
        "whet_target_gain_low_ratio",
        Kind::Gauge,
        "Lower end of the 95% interval of whet_target_gain_ratio.",
        |f| Some(f.life.verdict?.low),
    ),
    (
        "whet_target_gain_high_ratio",
        Kind::Gauge,
        "Upper end of the 95% interval of whet_target_gain_ratio.",
        |f| Some(f.life.verdict?.high),
    ),
    (
        "whet_target_clones_ratio",
        Kind::Gauge,
        "Share of user time in clones, by the samples of the last check.",
        |f| Some(f.life.fit?.cloned),
    ),
    (
        "whet_target_hot_clones_ratio",
        Kind::Gauge,
        "Share of user time in hot fragments of clones, by the samples of the last check.",
        |f| Some(f.life.fit?.hot),
    ),
    ("whet_target_user_cpu_ratio", Kind::Gauge, "User CPU time at the last scan; 1 is one CPU.", |f| {
        Some(f.life.cpu_percent / 100.0)
    }),
    ("whet_target_generation", Kind::Gauge, "The newest generation of clones.", |f| {
        Some(f64::from(f.held?.generation))
    }),
    (
        "whet_target_functions_cloned",
        Kind::Gauge,
        "Functions that have a clone in the newest generation.",
        |f| Some(f.held?.cloned as f64),
    ),
    ("whet_target_clone_bytes", Kind::Gauge, "Code of the clones of the newest generation.", |f| {
        Some(f.held?.clone_bytes as f64)
    }),
    ("whet_target_mapped_bytes", Kind::Gauge, "Memory mapped for the code caches of all generations.", |f| {
        Some(f.held?.mapped_bytes as f64)
    }),
    ("whet_target_full", Kind::Gauge, "Whether there is no room for new clones.", |f| {
        Some(f64::from(u8::from(f.held?.is_full)))
    }),
    ("whet_target_stops", Kind::Counter, "Stops of the target by this daemon.", |f| {
        Some(f.stops.count as f64)
    }),
    (
        "whet_target_longest_stop_seconds",
        Kind::Gauge,
        "The longest stop by this daemon, or of the last change by another whet if that was longer.",
        |f| f.longest_stop(),
    ),
];

/// Returns the metrics of all targets. Targets that are only watched are left out first.
pub(crate) fn families<'a>(targets: impl Iterator<Item = Figures<'a>>) -> Vec<Family> {
    let mut targets: Vec<Figures<'a>> = targets.collect();
    targets.sort_by_key(|f| (f.life.state == State::Watching, f.pid));
    let left_out = targets.len().saturating_sub(MOST_TARGETS);
    targets.truncate(MOST_TARGETS);
    let family = |name, kind, help, samples| Family { name, kind, help, samples };
    let mut out: Vec<Family> = PLAIN
        .iter()
        .map(|&(name, kind, help, value)| {
            let samples = targets.iter().filter_map(|f| Some((f.labels(), value(f)?)));
            family(name, kind, help, samples.collect())
        })
        .collect();
    out.push(family(
        "whet_target_state",
        Kind::Gauge,
        "1 for the state in which a target is.",
        targets.iter().map(|f| (f.labels_and("state", f.life.state.word()), 1.0)).collect(),
    ));
    let refused = targets.iter().filter(|f| f.life.state == State::Refused);
    // A record of an older daemon has no code.
    let code = |f: &Figures<'a>| if f.life.code.is_empty() { "unknown" } else { f.life.code.as_str() };
    out.push(family(
        "whet_target_refused",
        Kind::Gauge,
        "1 for the reason for which a target is left alone.",
        refused.map(|f| (f.labels_and("reason", code(f)), 1.0)).collect(),
    ));
    let reasons = |f: &Figures<'_>| {
        let each = f.held.map(|h| h.left_alone.as_slice()).unwrap_or_default().iter();
        each.map(|(code, n)| (f.labels_and("reason", code), *n as f64)).collect::<Vec<_>>()
    };
    out.push(family(
        "whet_target_functions_left_alone",
        Kind::Gauge,
        "Functions, or their entries, that were left alone, by the most frequent reasons.",
        targets.iter().flat_map(reasons).collect(),
    ));
    out.push(Family::single(
        "whet_targets_without_metrics",
        Kind::Gauge,
        "Processes on the list that have no metrics of their own, because there are too many.",
        left_out as f64,
    ));
    out
}

#[cfg(test)]
#[path = "target_metrics_tests.rs"]
mod tests;
