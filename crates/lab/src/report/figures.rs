//! The figures of a step, from its windows.

use super::response::{Response, pooled};
use crate::events::Counts;
use crate::folder::Measured;
use crate::machine::Placement;
use crate::record::{Event, FamilyChange, Latency, Second, Side, Step, Window};
use crate::stats::{self, Estimate};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// A window is void if other guests took more than this share of the machine's CPU time.
pub const STEAL_LIMIT: f64 = 0.1;

/// Returns a figure of a second.
pub type OfSecond = fn(&Second) -> f64;

/// A point of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The step.
    pub step: Step,
    /// Whether it was measured to its end.
    pub whole: bool,
    /// The reason if it was not, where known.
    pub broken: Option<String>,
    /// The result of `SELECT VERSION()`.
    pub server_version: String,
    /// The options that the user or the scenario gave the server.
    pub options: Vec<String>,
    /// The CPUs of server and clients, where recorded.
    pub placement: Option<Placement>,
    /// The figures of each side.
    pub sides: BTreeMap<Side, SideFigures>,
    /// Gain: queries per second with clones over without. Above 1 is better.
    pub throughput: Option<Estimate>,
    /// Gain: CPU time per query without clones over with. Above 1 is better.
    pub cpu_per_query: Option<Estimate>,
    /// Gain: user CPU time per query without clones over with, pooled over all windows, as the kernel's ticks are too
    /// coarse for the ratio of a single pair.
    pub user_cpu: Option<Estimate>,
    /// CPU use of the server with clones over without.
    pub cpu_use: Option<Estimate>,
    /// Pairs that the figures use.
    pub pairs: usize,
    /// Pairs with a window in which no query was answered, or other guests took too much CPU time.
    pub void: usize,
    /// Pairs left out as outliers.
    pub outliers: usize,
    /// The throughput ratios of the used pairs, for comparing runs.
    #[serde(skip)]
    pub ratios: Vec<f64>,
    /// The ratios of CPU time per query, likewise.
    #[serde(skip)]
    pub cpu_ratios: Vec<f64>,
    /// The ratios of throughput in the sound A/A pairs.
    #[serde(skip)]
    pub control_ratios: Vec<f64>,
    /// The ratios of CPU time in these pairs.
    #[serde(skip)]
    pub control_cpu_ratios: Vec<f64>,
    /// The output of `whet optimize`, if it ran in this step. Only the modelled events in it (`dyno`) are
    /// written as JSON.
    #[serde(rename = "modelled", serialize_with = "dyno")]
    pub optimize: Option<Value>,
    /// Each change of a family to the side with clones. Empty in older runs.
    pub family: Vec<FamilyChange>,
    /// The events that whet modelled, as it printed them.
    pub modelled_events: Option<Value>,
    /// Each second, where recorded.
    pub seconds: Vec<Second>,
    /// The response times that clients measured in each window, where recorded.
    pub response: Vec<Response>,
    /// Latencies of all windows together.
    pub latencies: Vec<Latency>,
    /// Moments to mark, in seconds since the load began.
    pub marks: Vec<(f64, String)>,
    /// Checked conditions: name, whether the condition holds, what was found.
    pub checks: Vec<(String, bool, String)>,
    /// The fixed rate in requests per second, and the full rate that it was derived from.
    pub rate: Option<(f64, Option<f64>)>,
    /// Whether the load became steady before it was measured.
    pub steady: Option<bool>,
    /// Queries that failed for reasons of the data (deadlocks).
    pub retried: u64,
}

#[expect(clippy::ref_option, reason = "serde asks so")]
fn dyno<S: Serializer>(said: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    said.as_ref().and_then(|said| said.get("dyno")).serialize(serializer)
}

/// The figures of one side.
#[derive(Clone, Debug, Serialize)]
pub struct SideFigures {
    /// Queries per second.
    pub rate: Estimate,
    /// Median of the server's CPU time per query, µs.
    pub cpu_us: f64,
    /// CPUs that the server used.
    pub cpus: Estimate,
    /// Median share of the machine's CPU time that was idle, whether a disk request was outstanding or not.
    pub idle: f64,
    /// Median share in which CPUs were idle and a disk request was outstanding, where recorded.
    pub iowait: Option<f64>,
    /// Queries per second of each window, for comparing servers.
    #[serde(skip)]
    pub rates: Vec<f64>,
    /// CPU seconds per query of each window, likewise.
    #[serde(skip)]
    pub costs: Vec<f64>,
    /// Queries in all windows.
    pub queries: f64,
    /// Hardware events summed over all windows.
    pub events: Counts,
    /// The smallest share of a window for which an event was counted, if events were.
    pub counted: Option<f64>,
    /// Hardware events of each window.
    #[serde(skip)]
    pub each: Vec<Counts>,
}

impl Point {
    /// Computes the figures of a step.
    pub fn of(measured: &Measured<'_>, seed: u64) -> Self {
        let mut point = Self {
            step: measured.step.clone(),
            whole: measured.whole,
            broken: None,
            server_version: String::new(),
            options: Vec::new(),
            placement: None,
            sides: BTreeMap::new(),
            throughput: None,
            cpu_per_query: None,
            user_cpu: None,
            cpu_use: None,
            pairs: 0,
            void: 0,
            outliers: 0,
            ratios: Vec::new(),
            cpu_ratios: Vec::new(),
            control_ratios: Vec::new(),
            control_cpu_ratios: Vec::new(),
            optimize: None,
            family: Vec::new(),
            modelled_events: None,
            seconds: Vec::new(),
            response: Vec::new(),
            latencies: Vec::new(),
            marks: Vec::new(),
            checks: Vec::new(),
            rate: None,
            steady: None,
            retried: 0,
        };
        let (mut windows, mut controls) = (Vec::new(), Vec::new());
        for event in &measured.events {
            match event {
                Event::Window(w) if w.control => controls.push(w),
                Event::Window(w) => windows.push(w),
                other => point.note(other),
            }
        }
        point.evaluate(&windows, seed);
        let sound: Vec<_> =
            pairs(&controls).into_iter().filter(|(a, b)| is_sound(a) && is_sound(b)).collect();
        let all = |f: fn(&Window, &Window) -> f64| {
            sound.iter().map(|(a, b)| f(a, b)).filter(|r| r.is_finite()).collect()
        };
        point.control_ratios = all(|a, b| rate(a) / rate(b));
        point.control_cpu_ratios = all(|a, b| cost(b) / cost(a));
        point
    }

    /// Adds what an event other than a window says.
    fn note(&mut self, event: &Event) {
        match event {
            Event::Begin { server_version, placement, options, .. } => {
                self.server_version.clone_from(server_version);
                self.options.clone_from(options);
                self.placement = Some(placement.clone()).filter(|p| !p.server.is_empty());
            }
            Event::WarmUp { steady, .. } => self.steady = Some(*steady),
            Event::Optimize { answer } => self.optimize = Some(answer.clone()),
            Event::Family(change) => self.family.push(change.clone()),
            Event::Modelled { answer } => self.modelled_events = Some(answer.clone()),
            Event::Rate { per_second, of } => self.rate = Some((*per_second, *of)),
            Event::Window(_) => {}
            Event::Second(s) => self.seconds.push(s.clone()),
            Event::Latency(l) => self.latencies.push(l.clone()),
            Event::Mark { at, what } => self.marks.push((*at, what.clone())),
            Event::Check { name, ok, found } => self.checks.push((name.clone(), *ok, found.clone())),
            Event::Done { retried, .. } => self.retried = *retried,
            Event::Broken { why } => self.broken = Some(why.clone()),
        }
    }

    fn evaluate(&mut self, windows: &[&Window], seed: u64) {
        let whole = pairs(windows);
        let sound: Vec<_> = whole.iter().copied().filter(|(a, b)| is_sound(a) && is_sound(b)).collect();
        self.void = whole.len() - sound.len();
        // All figures use one set of pairs. The rule uses throughput, which every server has.
        let ratios: Vec<f64> = sound.iter().map(|(a, b)| rate(a) / rate(b)).collect();
        let wild = stats::outliers(&ratios);
        let used: Vec<_> = sound.iter().zip(&wild).filter(|(_, wild)| !**wild).map(|(p, _)| *p).collect();
        self.outliers = sound.len() - used.len();
        self.pairs = used.len();
        let all = |f: &dyn Fn(&Window, &Window) -> f64| -> Vec<f64> {
            used.iter().map(|(a, b)| f(a, b)).filter(|r| r.is_finite()).collect()
        };
        self.ratios = all(&|a, b| rate(a) / rate(b));
        self.cpu_ratios = all(&|a, b| cost(b) / cost(a));
        self.throughput = stats::bootstrap_median(&self.ratios, seed);
        self.cpu_per_query = stats::bootstrap_median(&self.cpu_ratios, seed);
        self.cpu_use = stats::bootstrap_median(&all(&|a, b| cpus(a) / cpus(b)), seed);
        let user: Vec<_> = used.iter().map(|(a, b)| [a, b].map(|w| (w.user, count(w)))).collect();
        self.user_cpu = stats::bootstrap_pooled(&user, seed);
        for side in Side::BOTH {
            let mine: Vec<&Window> =
                used.iter().map(|(a, b)| if side == Side::With { *a } else { *b }).collect();
            self.latencies.extend(pooled(side, mine.iter().copied()));
            if let Some(figures) = SideFigures::of(&mine, seed) {
                self.sides.insert(side, figures);
            }
        }
        self.response = Response::all(&used, seed);
    }
}

impl SideFigures {
    fn of(windows: &[&Window], seed: u64) -> Option<Self> {
        let all = |f: fn(&Window) -> f64| windows.iter().map(|w| f(w)).collect::<Vec<f64>>();
        let waits: Vec<f64> = windows.iter().filter_map(|w| Some(share(w.iowait?, w))).collect();
        let mut events = Counts::new();
        for (name, count) in windows.iter().flat_map(|w| &w.events) {
            *events.entry(name.clone()).or_default() += count;
        }
        let (rates, costs) = (all(rate), all(cost));
        Some(Self {
            rate: stats::bootstrap_median(&rates, seed)?,
            cpu_us: stats::median(&costs)? * 1e6,
            cpus: stats::bootstrap_median(&all(cpus), seed)?,
            idle: stats::median(&all(|w| share(w.idle, w)))?,
            iowait: stats::median(&waits),
            rates,
            costs,
            queries: all(count).iter().sum(),
            events,
            counted: windows.iter().filter_map(|w| w.counted).reduce(f64::min),
            each: windows.iter().map(|w| w.events.clone()).filter(|e| !e.is_empty()).collect(),
        })
    }
}

/// Returns each value once, in their order.
pub fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut all, value| {
        if !all.contains(&value) {
            all.push(value);
        }
        all
    })
}

/// Groups points by a key, in the order in which the keys come.
pub fn grouped<'a>(
    points: impl Iterator<Item = &'a Point>,
    key: impl Fn(&Point) -> String,
) -> Vec<(String, Vec<&'a Point>)> {
    let mut groups: Vec<(String, Vec<&Point>)> = Vec::new();
    for p in points {
        let key = key(p);
        match groups.iter_mut().find(|g| g.0 == key) {
            Some(group) => group.1.push(p),
            None => groups.push((key, vec![p])),
        }
    }
    groups
}

/// Returns the pairs of which both windows were measured, each with clones first.
fn pairs<'a>(windows: &[&'a Window]) -> Vec<(&'a Window, &'a Window)> {
    let mut pairs: BTreeMap<usize, BTreeMap<Side, &Window>> = BTreeMap::new();
    for w in windows {
        pairs.entry(w.pair).or_default().insert(w.side, w);
    }
    pairs.values().filter_map(|p| Some((*p.get(&Side::With)?, *p.get(&Side::Without)?))).collect()
}

fn is_sound(w: &Window) -> bool {
    w.queries > 0 && w.seconds > 0.0 && w.steal <= STEAL_LIMIT * w.capacity
}

#[expect(clippy::cast_precision_loss, reason = "of a window")]
fn count(w: &Window) -> f64 {
    w.queries as f64
}

/// Returns CPU seconds as a share of all CPU seconds of the machine.
fn share(seconds: f64, w: &Window) -> f64 {
    if w.capacity > 0.0 { seconds / w.capacity } else { 0.0 }
}

fn rate(w: &Window) -> f64 {
    count(w) / w.seconds
}

fn cost(w: &Window) -> f64 {
    w.cpu / count(w)
}

fn cpus(w: &Window) -> f64 {
    w.cpu / w.seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Place;

    fn window(pair: usize, side: Side, queries: u64, cpu: f64) -> Event {
        Event::Window(Window {
            pair,
            side,
            control: false,
            seconds: 1.0,
            queries,
            cpu,
            user: cpu / 2.0,
            system: cpu / 2.0,
            idle: 0.5,
            iowait: Some(0.1),
            steal: 0.0,
            capacity: 2.0,
            events: BTreeMap::new(),
            counted: None,
            transactions: None,
        })
    }

    fn step() -> Step {
        Step::of("s", "l", &Place::default(), 1)
    }

    #[test]
    fn gains_are_above_one_where_whet_helps() {
        let events: Vec<Event> = (0..10)
            .flat_map(|p| {
                [window(p, Side::Without, 1000 + p as u64, 1.0), window(p, Side::With, 1200 + p as u64, 1.0)]
            })
            .collect();
        let step = step();
        let measured = Measured { step: &step, events: events.iter().collect(), whole: true };
        let point = Point::of(&measured, 1);
        let t = point.throughput.unwrap();
        assert!((t.value - 1.2).abs() < 0.01 && t.low <= t.value && t.value <= t.high);
        assert!((point.cpu_per_query.unwrap().value - 1.2).abs() < 0.01);
        assert!((point.user_cpu.unwrap().value - 1.2).abs() < 0.01);
        assert_eq!((point.pairs, point.void, point.outliers), (10, 0, 0));
    }

    #[test]
    fn queries_and_events_are_sums_over_the_same_windows() {
        let short = |event: Event| match event {
            Event::Window(w) => {
                let events = BTreeMap::from([("cycles".to_owned(), 1e6 * w.queries as f64)]);
                Event::Window(Window { seconds: 0.2, events, ..w })
            }
            other => other,
        };
        let pair = |p| [window(p, Side::Without, 100 + p as u64, 0.2), window(p, Side::With, 120, 0.2)];
        let events: Vec<Event> = (0..10).flat_map(pair).map(short).collect();
        let step = step();
        let point = Point::of(&Measured { step: &step, events: events.iter().collect(), whole: true }, 1);
        for figures in point.sides.values() {
            assert!((figures.queries * 1e6 / figures.events["cycles"] - 1.0).abs() < 1e-9);
        }
        assert!((point.sides[&Side::With].queries - 1200.0).abs() < 1e-9);
    }

    #[test]
    fn pairs_without_work_are_void_and_half_pairs_are_left_out() {
        let mut events = vec![window(0, Side::With, 0, 0.0), window(0, Side::Without, 10, 1.0)];
        events.extend([window(1, Side::With, 10, 1.0), window(1, Side::Without, 10, 1.0)]);
        events.push(window(2, Side::With, 10, 1.0));
        let step = step();
        let point = Point::of(&Measured { step: &step, events: events.iter().collect(), whole: false }, 1);
        assert_eq!((point.pairs, point.void), (1, 1));
    }
}
