//! The measurement of most scenarios: the load warms up until its rate is steady. Then pairs of windows
//! follow, one with clones and one without, in random order.
//!
//! Whatever drifts (the host's other guests, the buffer pool, the CPU clock) is nearly the same for both
//! halves of a pair. So the ratio within a pair is good even if single windows differ by half.

use crate::error::Error;
use crate::events::{self, Counting};
use crate::gauge::{Gauge, Reading};
use crate::lab::{ActiveStep, Lab};
use crate::load::Load;
use crate::plan::{Pair, Plan, schedule};
use crate::record::{Event, Second, Side, Window};
use crate::stats;
use crate::steady;
use crate::target::Target;
use std::time::{Duration, Instant};

/// Measures a step: warms the load up, optimizes the server unless it was found with clones, and takes all
/// windows of the plan. Records what the load measured, and returns its [`Load::retried`].
///
/// # Errors
/// The errors of the load, the server, whet and the folder.
pub fn measure<T: Target>(on: &mut ActiveStep<'_, T>, plan: Plan, load: &mut dyn Load) -> Result<u64, Error> {
    let gauge = Gauge::new(on.server, &on.lab.host)?;
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
    let table = events::table(&lab.machine.host.identity, lab.machine.host.smt);
    Counting::begin(&lab.commands, &counted, length, table)
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
        if self.on.optimize(self.plan.sampling)? {
            self.mark("optimized")?;
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
        self.on.go(state)?;
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
        let times = load.transactions()?;
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
        let times = times.zip(load.transactions()?).map(|(begin, end)| end.since(&begin));
        load.check()?;
        let mut window = begin.0.until(&last.0, pair.number, side, done(&begin, &last));
        (window.control, window.transactions) = (pair.control, times);
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

/// Returns the requests done between two moments, if the load counts them.
fn done(from: &(Reading, Option<u64>), to: &(Reading, Option<u64>)) -> Option<u64> {
    Some(to.1?.saturating_sub(from.1?))
}
