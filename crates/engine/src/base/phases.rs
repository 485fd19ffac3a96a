//! How long each phase of a rebuild takes: the time between its [`Progress`] and the next.

use crate::base::progress::Progress;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The time of one phase.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name: see [`Progress::phase`]; `opening` before the first.
    pub phase: String,
    /// Wall time, over all its parts.
    pub seconds: f64,
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

    /// Ends the last phase. Returns the times in the order in which the phases first began.
    pub(crate) fn stop(mut self) -> Vec<PhaseTime> {
        self.end();
        let seconds = |d: Duration| (d.as_secs_f64() * 1e4).round() / 1e4;
        self.ended
            .iter()
            .map(|&(phase, d)| PhaseTime { phase: phase.to_owned(), seconds: seconds(d) })
            .collect()
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
        let times = clock.stop();
        let all = begun.elapsed().as_secs_f64();
        let names: Vec<&str> = times.iter().map(|t| t.phase.as_str()).collect();
        assert_eq!(names, ["opening", "reading", "sampling", "analysing"]);
        assert!(times[2].seconds >= 0.0149, "three parts of 5 ms: {times:?}");
        let sum: f64 = times.iter().map(|t| t.seconds).sum();
        assert!(sum <= all + 0.001 && sum >= 0.0249, "{sum} of {all}");
    }
}
