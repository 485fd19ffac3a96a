//! How long each phase of a rebuild takes: the time between its [`Progress`] and the next. Parts of a phase
//! that are no steps for people are listed as phases of their own; the phase keeps the rest of its time.

use crate::base::progress::Progress;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time of one phase.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name: see [`Progress::phase`]; `opening` before the first.
    pub phase: String,
    /// Wall time, over all its parts.
    pub seconds: f64,
}

/// A part of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Span {
    /// Clones get their bytes.
    Emitting,
    /// Clones are proven.
    Verifying,
    /// Code caches are mapped into the target.
    Mapping,
    /// Bytes and journal are written.
    Filling,
    /// Threads are stopped and redirects written.
    Stopping,
}

impl Span {
    fn name(self) -> &'static str {
        match self {
            Span::Emitting => "emitting",
            Span::Verifying => "verifying",
            Span::Mapping => "mapping",
            Span::Filling => "filling",
            Span::Stopping => "stopping",
        }
    }

    /// Returns the phase of which it is a part.
    fn phase(self) -> &'static str {
        match self {
            Span::Emitting | Span::Verifying => Progress::Building.phase(),
            Span::Mapping | Span::Filling | Span::Stopping => Progress::Installing.phase(),
        }
    }
}

/// The times of all spans so far.
#[derive(Debug, Default)]
pub(crate) struct Spans(Mutex<Vec<(Span, Duration)>>);

impl Spans {
    /// Adds the time of a span.
    pub(crate) fn add(&self, span: Span, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((span, took));
    }

    /// Returns the times that were added, and forgets them.
    pub(crate) fn take(&self) -> Vec<(Span, Duration)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A clock that is set to each phase as it begins.
pub(crate) struct PhaseClock {
    phase: &'static str,
    since: Instant,
    ended: Vec<(&'static str, Duration)>,
}

impl PhaseClock {
    /// Starts the clock.
    pub(crate) fn start() -> Self {
        Self { phase: "opening", since: Instant::now(), ended: Vec::new() }
    }

    /// Begins the phase of a step. Steps of one phase may come many times.
    pub(crate) fn step(&mut self, step: &Progress) {
        if step.phase() != self.phase {
            self.end();
            self.phase = step.phase();
        }
    }

    /// Ends the last phase. Returns the times in the order in which the phases first began, the spans of a
    /// phase before its rest.
    pub(crate) fn stop(mut self, spans: &[(Span, Duration)]) -> Vec<PhaseTime> {
        self.end();
        for &(span, took) in spans {
            self.split(span, took);
        }
        let seconds = |d: Duration| (d.as_secs_f64() * 1e4).round() / 1e4;
        self.ended
            .iter()
            .map(|&(phase, d)| PhaseTime { phase: phase.to_owned(), seconds: seconds(d) })
            .collect()
    }

    /// Moves the time of a span out of its phase.
    fn split(&mut self, span: Span, took: Duration) {
        let Some(at) = self.ended.iter().position(|(phase, _)| *phase == span.phase()) else { return };
        let took = took.min(self.ended[at].1);
        self.ended[at].1 -= took;
        match self.ended.iter_mut().find(|(phase, _)| *phase == span.name()) {
            Some((_, sum)) => *sum += took,
            None => self.ended.insert(at, (span.name(), took)),
        }
    }

    fn end(&mut self) {
        let now = Instant::now();
        let took = now.duration_since(self.since);
        self.since = now;
        match self.ended.iter_mut().find(|(phase, _)| *phase == self.phase) {
            Some((_, sum)) => *sum += took,
            None => self.ended.push((self.phase, took)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_cover_all_time_once() {
        let begun = Instant::now();
        let mut clock = PhaseClock::start();
        let sampling = |samples| Progress::Sampling { samples, left: Duration::ZERO };
        let steps = [Progress::Reading, sampling(1), sampling(2), Progress::Analysing, sampling(3)];
        for step in steps {
            clock.step(&step);
            std::thread::sleep(Duration::from_millis(5));
        }
        let times = clock.stop(&[]);
        let all = begun.elapsed().as_secs_f64();
        let names: Vec<&str> = times.iter().map(|t| t.phase.as_str()).collect();
        assert_eq!(names, ["opening", "reading", "sampling", "analysing"]);
        assert!(times[2].seconds >= 0.0149, "three parts of 5 ms: {times:?}");
        let sum: f64 = times.iter().map(|t| t.seconds).sum();
        assert!(sum <= all + 0.001 && sum >= 0.0249, "{sum} of {all}");
    }

    #[test]
    fn spans_are_taken_out_of_their_phases() {
        let ms = Duration::from_millis;
        let ended = vec![("building", ms(100)), ("installing", ms(50))];
        let clock = PhaseClock { phase: "installing", since: Instant::now(), ended };
        let spans = Spans::default();
        // Two generations; the last span claims more than its phase took.
        for (span, took) in [
            (Span::Emitting, 30),
            (Span::Verifying, 20),
            (Span::Mapping, 10),
            (Span::Emitting, 40),
            (Span::Verifying, 90),
        ] {
            spans.add(span, ms(took));
        }
        let times = clock.stop(&spans.take());
        let names: Vec<&str> = times.iter().map(|t| t.phase.as_str()).collect();
        assert_eq!(names, ["emitting", "verifying", "building", "mapping", "installing"]);
        let seconds: Vec<f64> = times.iter().map(|t| t.seconds).collect();
        assert_eq!(seconds[..4], [0.07, 0.03, 0.0, 0.01]);
        assert!(seconds[4] >= 0.04, "the rest, and the time since the clock was set: {seconds:?}");
        assert!(spans.take().is_empty());
    }
}
