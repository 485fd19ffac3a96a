//! The measurement of most scenarios: the load warms up until its rate is steady. Then pairs of windows
//! follow, one with clones and one without, in random order.
//!
//! Whatever drifts (the host's other guests, the buffer pool, the CPU clock) is nearly the same for both
//! halves of a pair. So the ratio within a pair is good even if single windows differ by half.

use crate::error::Error;
use crate::events::{self, Counting};
use crate::gauge::{Gauge, Reading};
use crate::lab::{ActiveStep, Lab};
use crate::record::{Event, Latency, Second, Side, Window};
use crate::stats;
use crate::steady;
use crate::target::Target;
use rand::Rng;
use rand::seq::SliceRandom;
use std::time::{Duration, Instant};

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pairs of windows.
    pub pairs: usize,
    /// A/A pairs, spread evenly between the others.
    pub control: usize,
    /// The length of a window.
    pub window: Duration,
    /// The pause before each window, after the change of sides.
    pub settle: Duration,
    /// Whether the figures of each second are recorded as well.
    pub each_second: bool,
    /// The longest time of warming up.
    pub warm_up: Duration,
    /// Seconds for which whet samples, or `None` for whet's default.
    pub sampling: Option<f64>,
}

/// The figures that a load reports about once a second.
#[derive(Clone, Copy, Debug)]
pub struct LoadFigures {
    /// Transactions per second.
    pub tps: f64,
    /// Mean response time, ms.
    pub response_ms: f64,
    /// 95th percentile of the response times, ms.
    pub p95_ms: f64,
}

/// A running load.
pub trait Load {
    /// Checks that the load still runs.
    ///
    /// # Errors
    /// An error if the load has ended or fails.
    fn check(&mut self) -> Result<(), Error>;

    /// Returns how many requests the load has done so far. `None` if it does not count them: then the
    /// server's statements count.
    fn work(&self) -> Option<u64> {
        None
    }

    /// Sets the side that requests belong to from now on; `None` while the load settles.
    fn side(&mut self, _side: Option<Side>) {}

    /// Returns the newest figures since the last call. `None` if there are none.
    fn figures(&mut self) -> Option<LoadFigures> {
        None
    }

    /// Returns the latencies measured so far, by side and kind. Empty if the load measures none.
    fn latencies(&self) -> Vec<Latency> {
        Vec::new()
    }

    /// Returns how many requests failed for reasons of the data.
    fn retried(&self) -> u64 {
        0
    }
}

/// Measures a step: warms the load up, optimizes the server unless it was found with clones, and takes all
/// windows of the plan. Records what the load measured, and returns its [`Load::retried`].
///
/// # Errors
/// The errors of the load, the server, whet and the folder.
pub fn measure<T: Target>(on: &mut ActiveStep<'_, T>, plan: Plan, load: &mut dyn Load) -> Result<u64, Error> {
    let gauge = Gauge::new(on.server)?;
    Measuring { on: &mut *on, plan, gauge, begin: Instant::now(), flushed: None }.all(load)?;
    for latency in load.latencies() {
        on.add(Event::Latency(latency))?;
    }
    Ok(load.retried())
}

/// Starts to count the hardware events of a window, if the machine has counters. `length` is that of the window, if
/// known.
///
/// # Errors
/// As [`Counting::begin`].
pub fn counting(lab: &Lab, gauge: &Gauge, length: Option<Duration>) -> Result<Option<Counting>, Error> {
    let counted = if lab.machine.pmu { gauge.processes() } else { Vec::new() };
    if counted.is_empty() {
        return Ok(None);
    }
    Counting::begin(&lab.commands, &counted, length, events::table(&lab.machine.identity))
}

/// A server being measured under a load that has just begun.
#[derive(Debug)]
struct Measuring<'a, 'b, T> {
    on: &'a mut ActiveStep<'b, T>,
    plan: Plan,
    gauge: Gauge,
    begin: Instant,
    /// Pages that the server had written at the end of the last second.
    flushed: Option<u64>,
}

impl<T> Measuring<'_, '_, T> {
    /// Warms up, optimizes the server unless it was found with clones, and measures all windows.
    fn all(&mut self, load: &mut dyn Load) -> Result<(), Error> {
        self.warm_up(load)?;
        self.on.lab.progress.doing("whet optimize");
        if let Some(answer) = self.on.sides.optimize(self.plan.sampling)? {
            self.mark("optimized")?;
            self.on.add(Event::Optimize { answer })?;
        }
        self.on.model()?;
        let mut rng = stats::generator(self.on.lab.seed, &self.on.step.to_string());
        for pair in schedule(self.plan.pairs, self.plan.control, &mut rng) {
            for (side, state) in pair.halves {
                self.on.lab.progress.part(pair.number, self.plan.pairs);
                self.window(load, pair, side, state)?;
            }
        }
        load.side(None);
        load.check()
    }

    /// Runs the load until its rate is steady, at most as long as the plan allows.
    fn warm_up(&mut self, load: &mut dyn Load) -> Result<(), Error> {
        self.on.lab.progress.doing("warming up");
        let until = self.begin + self.plan.warm_up;
        let mut rates = Vec::new();
        let mut last = (self.gauge.read()?, load.work());
        while !steady::is_steady(&rates) && Instant::now() < until {
            self.on.lab.commands.interrupt.sleep(Duration::from_millis(500))?;
            load.check()?;
            let now = (self.gauge.read()?, load.work());
            let done = done(&last, &now).unwrap_or_else(|| now.0.queries.saturating_sub(last.0.queries));
            #[expect(clippy::cast_precision_loss, reason = "of half a second")]
            rates.push(done as f64 / (now.0.at - last.0.at).as_secs_f64().max(1e-6));
            last = now;
        }
        let steady = steady::is_steady(&rates);
        self.on.add(Event::WarmUp { seconds: self.begin.elapsed().as_secs_f64(), steady, rates })
    }

    /// Measures a window that counts for `side`, with the server in `state`. An A/A window is left out of
    /// latencies, seconds and marks.
    fn window(&mut self, load: &mut dyn Load, pair: Pair, side: Side, state: Side) -> Result<(), Error> {
        load.side(None);
        self.on.sides.go(state)?;
        let each_second = self.plan.each_second && !pair.control;
        if each_second {
            self.mark(side.word())?;
        }
        self.on.lab.commands.interrupt.sleep(self.plan.settle)?;
        load.check()?;
        load.figures();
        if each_second {
            self.flushed = Some(self.gauge.flushed()?);
        }
        load.side(Some(side).filter(|_| !pair.control));
        let counting = counting(self.on.lab, &self.gauge, Some(self.plan.window))?;
        let begin = (self.gauge.read()?, load.work());
        let mut last = begin;
        let until = begin.0.at + self.plan.window;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let slice = if each_second { left.min(Duration::from_secs(1)) } else { left };
            self.on.lab.commands.interrupt.sleep(slice)?;
            let now = (self.gauge.read()?, load.work());
            if each_second {
                self.second(load, &last.0.until(&now.0, pair.number, side, None), now.0.at)?;
            }
            last = now;
            if Instant::now() >= until {
                break;
            }
        }
        load.check()?;
        let mut window = begin.0.until(&last.0, pair.number, side, done(&begin, &last));
        window.control = pair.control;
        if let Some(counting) = counting {
            counting.finish(&self.on.lab.commands, &mut window)?;
        }
        self.on.add(Event::Window(window))
    }

    /// Records a second, which ended at `end`.
    fn second(&mut self, load: &mut dyn Load, w: &Window, end: Instant) -> Result<(), Error> {
        let Some(figures) = load.figures() else { return Ok(()) };
        let flushed = self.gauge.flushed()?;
        let pages = flushed.saturating_sub(self.flushed.replace(flushed).unwrap_or(flushed));
        let share = |seconds: f64| if w.capacity > 0.0 { seconds / w.capacity } else { 0.0 };
        let second = Second {
            at: (end - self.begin).as_secs_f64(),
            pair: w.pair,
            side: w.side,
            tps: figures.tps,
            response_ms: figures.response_ms,
            p95_ms: figures.p95_ms,
            idle: share(w.idle),
            iowait: w.iowait.map(share),
            cpus: w.cpu / w.seconds.max(1e-6),
            flushed: pages,
        };
        self.on.add(Event::Second(second))
    }

    /// Records a moment to mark in charts over time.
    fn mark(&mut self, what: &str) -> Result<(), Error> {
        let at = self.begin.elapsed().as_secs_f64();
        self.on.add(Event::Mark { at, what: what.to_owned() })
    }
}

/// A pair of windows to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Its number among the pairs of its kind.
    pub number: usize,
    /// Whether it is an A/A pair.
    pub control: bool,
    /// The side that each window counts for, and the state that the server is in.
    pub halves: [(Side, Side); 2],
}

/// Returns all pairs of a step in random order within each pair, with the A/A pairs spread evenly. The state
/// of an A/A pair is drawn at random, so that both states are controlled.
pub fn schedule(pairs: usize, control: usize, rng: &mut impl Rng) -> Vec<Pair> {
    let mut all = Vec::with_capacity(pairs + control);
    let mut halves = |is_control: bool| {
        let mut order = Side::BOTH;
        order.shuffle(rng);
        let state = if rng.next_u32().is_multiple_of(2) { Side::With } else { Side::Without };
        order.map(|side| (side, if is_control { state } else { side }))
    };
    let mut controls = 0;
    for number in 0..pairs {
        all.push(Pair { number, control: false, halves: halves(false) });
        while controls * pairs < control * (number + 1) && controls < control {
            all.push(Pair { number: controls, control: true, halves: halves(true) });
            controls += 1;
        }
    }
    all
}

/// Returns the requests done between two moments, if the load counts them.
fn done(from: &(Reading, Option<u64>), to: &(Reading, Option<u64>)) -> Option<u64> {
    Some(to.1?.saturating_sub(from.1?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_pairs_are_spread_and_change_nothing() {
        let all = schedule(8, 2, &mut stats::generator(1, "x"));
        let controls: Vec<usize> = (0..all.len()).filter(|i| all[*i].control).collect();
        assert_eq!((all.len(), controls), (10, vec![1, 6]));
        let numbers: Vec<usize> = all.iter().filter(|p| !p.control).map(|p| p.number).collect();
        assert_eq!(numbers, (0..8).collect::<Vec<_>>());
        for pair in &all {
            let [(a, of_a), (b, of_b)] = pair.halves;
            assert!(a != b && if pair.control { of_a == of_b } else { of_a == a && of_b == b }, "{pair:?}");
        }
        assert!(schedule(3, 0, &mut stats::generator(1, "x")).iter().all(|p| !p.control));
    }

    /// Each side comes first about as often as the other, and A/A pairs are in either state.
    #[test]
    fn orders_and_states_are_drawn() {
        let all = schedule(200, 200, &mut stats::generator(5, "x"));
        let count = |f: &dyn Fn(&Pair) -> bool| all.iter().filter(|p| f(p)).count();
        for found in [
            count(&|p| !p.control && p.halves[0].0 == Side::With),
            count(&|p| p.control && p.halves[0].0 == Side::With),
            count(&|p| p.control && p.halves[0].1 == Side::With),
        ] {
            assert!((70..=130).contains(&found), "{found}");
        }
    }
}
