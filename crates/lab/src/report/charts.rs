//! Charts, as options of the charting library. Colours are names of the page's CSS variables. So the same
//! chart serves the light and the dark page, and paper.
//!
//! The page itself defines the series type `interval`: `[x, low, high]`, drawn as a line with ends, beside
//! the point of a line or on a bar.

use super::figures::{Point, SideFigures, grouped};
use super::tables::one_of;
use crate::record::Side;
use crate::stats::Estimate;
use serde::Serialize;
use serde_json::{Value, json};

/// One chart.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// A note that the reader needs before reading the chart.
    pub note: String,
    /// The options for the charting library.
    pub option: Value,
}

/// Returns a gain of a point.
type Gain = fn(&Point) -> Option<Estimate>;

/// The look of a series. Series differ without colours too, for print.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// A CSS variable of the page.
    pub colour: &'static str,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Pixels by which points are moved sideways, so that the ends of intervals do not cover each other.
    pub shift: i32,
}

pub(super) const WITH: Look = Look { colour: "--with", dashed: false, shift: -3 };
const WITHOUT: Look = Look { colour: "--without", dashed: true, shift: 3 };
pub(super) const SECOND: Look = Look { colour: "--second", dashed: false, shift: 3 };
/// The looks of the sides, in the order of [`Side::BOTH`].
pub(super) const LOOKS: [Look; 2] = [WITH, WITHOUT];
/// The colours of more than two series.
pub(super) const COLOURS: [&str; 4] = ["--with", "--second", "--third", "--fourth"];
/// The greatest number of points whose bars fit into one chart.
const GROUPS: usize = 6;
/// The width of the widest bar, pixels.
const WIDEST: u32 = 60;

pub(super) fn axis(name: &str, from_zero: bool) -> Value {
    json!({ "type": "value", "name": name, "scale": !from_zero, "min": if from_zero { json!(0) } else { Value::Null } })
}

pub(super) fn category(name: &str, words: &[String]) -> Value {
    json!({ "type": "category", "name": name, "data": words })
}

pub(super) fn round(v: f64) -> f64 {
    let scale = 10_f64.powi(6);
    (v * scale).round() / scale
}

fn ends(estimates: &[Option<Estimate>]) -> Vec<Value> {
    let places = estimates.iter().enumerate();
    places.filter_map(|(i, e)| e.map(|e| json!([i, round(e.low), round(e.high)]))).collect()
}

fn middles(estimates: &[Option<Estimate>]) -> Vec<Value> {
    estimates.iter().map(|e| e.map_or(Value::Null, |e| json!(round(e.value)))).collect()
}

/// Draws a line through the values of estimates, with their intervals.
pub(super) fn line(name: &str, look: Look, estimates: &[Option<Estimate>]) -> [Value; 2] {
    let Look { colour, dashed, shift } = look;
    [
        json!({ "type": "line", "name": name, "color": colour, "dashed": dashed, "shift": shift, "symbolSize": 7,
                "data": middles(estimates) }),
        json!({ "type": "interval", "name": name, "color": colour, "shift": shift, "data": ends(estimates) }),
    ]
}

/// As [`line()`], without the line between the points: for values that have no order.
pub(super) fn dots(name: &str, look: Look, estimates: &[Option<Estimate>]) -> [Value; 2] {
    let [mut points, intervals] = line(name, look, estimates);
    if let Some(points) = points.as_object_mut() {
        points.insert("apart".to_owned(), json!(true));
    }
    [points, intervals]
}

/// Draws bars of both sides from zero, with their intervals. The side without clones comes first, as it was
/// first in time.
fn bars(points: &[&Point], names: [&str; 2], get: fn(&SideFigures) -> Estimate) -> Vec<Value> {
    let of = |side: Side| points.iter().map(|p| p.sides.get(&side).map(get)).collect();
    bars_of(Side::BOTH.map(of), names)
}

/// As [`bars`], for the estimates of each side.
pub(super) fn bars_of(sides: [Vec<Option<Estimate>>; 2], names: [&str; 2]) -> Vec<Value> {
    let mut series = Vec::new();
    for (at, ((all, name), look)) in sides.into_iter().zip(names).zip(LOOKS).rev().enumerate() {
        series.push(json!({ "type": "bar", "name": name, "color": look.colour, "barMaxWidth": WIDEST, "data": middles(&all) }));
        series.push(
            json!({ "type": "interval", "name": name, "color": "--ink", "bar": [at, 2, WIDEST], "data": ends(&all) }),
        );
    }
    series
}

/// Draws points that differ only in the number of threads as lines over that number. One chart has the
/// throughput of both sides, one the gains. A load that ran with only one number of threads gets no chart.
pub fn over_threads_where_varied(points: &[Point], unit: &str, names: [&str; 2]) -> Vec<Chart> {
    by_threads(points).into_iter().flat_map(|(title, group)| both(&title, &group, unit, names)).collect()
}

/// Returns the points that differ only in the number of threads, with the title of each group. A load that
/// ran with only one number of threads is left out.
pub(super) fn by_threads(points: &[Point]) -> Vec<(String, Vec<&Point>)> {
    let title = |p: &Point| {
        let cpus = p.step.cpus.map(|n| format!("{n} CPUs"));
        let names = vec![p.step.load.clone(), p.step.server.clone()];
        [names, p.step.place.words(), cpus.into_iter().collect()].concat().join(", ")
    };
    let mut groups = grouped(points.iter().filter(|p| !p.sides.is_empty()), title);
    groups.retain(|(_, group)| group.len() > 1);
    groups
}

fn both(title: &str, group: &[&Point], unit: &str, names: [&str; 2]) -> Vec<Chart> {
    let threads: Vec<String> = group.iter().map(|p| p.step.threads.to_string()).collect();
    let mut series = Vec::new();
    for ((side, name), look) in Side::BOTH.into_iter().zip(names).zip(LOOKS) {
        let rates: Vec<Option<Estimate>> = group.iter().map(|p| p.sides.get(&side).map(|s| s.rate)).collect();
        series.extend(line(name, look, &rates));
    }
    let throughput = Chart {
        title: format!("{title}: {unit} per second"),
        note: "Medians of the windows, 95% intervals. The axis begins at zero.".to_owned(),
        option: json!({ "xAxis": category("threads", &threads), "yAxis": axis(&format!("{unit}/s"), true), "series": series }),
    };
    let mut series = Vec::new();
    let cpu = format!("CPU per {}, without / with", one_of(unit));
    let kinds: [(&str, Look, Gain); 2] =
        [(&cpu, WITH, |p| p.cpu_per_query), ("throughput, with / without", SECOND, |p| p.throughput)];
    for (name, look, get) in kinds {
        let all: Vec<Option<Estimate>> = group.iter().map(|p| get(p)).collect();
        if all.iter().any(Option::is_some) {
            series.extend(line(name, look, &all));
        }
    }
    mark_one(&mut series);
    let gains = Chart {
        title: format!("{title}: gain"),
        note: "Ratios within pairs of windows, 95% intervals. The axis does not begin at zero; the line at 1 is “no difference”."
            .to_owned(),
        option: json!({ "xAxis": category("threads", &threads), "yAxis": axis("gain", false), "series": series }),
    };
    vec![throughput, gains]
}

/// Draws the points whose number of CPUs was varied: the highest throughput at each number, of both sides.
/// `None` if it was not varied.
pub fn over_cpus(points: &[Point], unit: &str, names: [&str; 2]) -> Option<Chart> {
    let mut cpus: Vec<usize> = points.iter().filter_map(|p| p.step.cpus).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let servers: std::collections::BTreeSet<&str> = points.iter().map(|p| p.step.server.as_str()).collect();
    let mut series = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        for ((side, name), look) in Side::BOTH.into_iter().zip(names).zip(LOOKS) {
            let best: Vec<Option<Estimate>> = cpus
                .iter()
                .map(|c| {
                    let here = points.iter().filter(|p| p.step.cpus == Some(*c) && p.step.server == *server);
                    let rates = here.filter_map(|p| Some(p.sides.get(&side)?.rate));
                    rates.max_by(|a, b| a.value.total_cmp(&b.value))
                })
                .collect();
            let (name, look) = of_server(at, servers.len(), server, name, look);
            series.extend(line(&name, look, &best));
        }
    }
    let words: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    (cpus.len() > 1).then(|| Chart {
        title: "Throughput by the server's CPUs".to_owned(),
        note: "The best number of threads for each; 95% intervals. The axis begins at zero.".to_owned(),
        option: json!({ "xAxis": category("CPUs", &words), "yAxis": axis(&format!("{unit}/s"), true), "series": series }),
    })
}

/// Adds the line of no difference.
pub(super) fn mark_one(series: &mut [Value]) {
    if let Some(first) = series.first_mut().and_then(Value::as_object_mut) {
        first.insert(
            "markLine".to_owned(),
            json!({ "silent": true, "symbol": "none", "label": { "show": false }, "data": [{ "yAxis": 1 }] }),
        );
    }
}

/// Returns the name and look of a side's line in a chart of several servers. Each server has a colour, and
/// the side without clones is dashed.
pub(super) fn of_server(at: usize, servers: usize, server: &str, side: &str, look: Look) -> (String, Look) {
    if servers == 1 {
        return (side.to_owned(), look);
    }
    let colour = COLOURS.into_iter().cycle().nth(at).unwrap_or("--ink");
    (format!("{server}, {side}"), Look { colour, ..look })
}

/// Returns the names of points, without the words that all of them share.
fn short_names(points: &[&Point]) -> Vec<String> {
    let varies =
        |get: fn(&Point) -> String| points.iter().any(|p| points.first().is_some_and(|f| get(f) != get(p)));
    let (server, load) = (varies(|p| p.step.server.clone()), varies(|p| p.step.load.clone()));
    points
        .iter()
        .map(|p| {
            let words = [
                server.then(|| p.step.server.clone()),
                load.then(|| p.step.load.clone()),
                Some(p.step.place.words().join(" ")).filter(|w| !w.is_empty()),
                p.step.cpus.map(|c| format!("{c} CPUs")),
                Some(format!("{} thread{}", p.step.threads, if p.step.threads == 1 { "" } else { "s" })),
            ];
            words.into_iter().flatten().collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Draws the CPU use of the server on both sides as bars from zero. Many points get one chart for each server
/// and load.
pub fn cpu_use(points: &[Point], names: [&str; 2]) -> Vec<Chart> {
    let points: Vec<&Point> = points.iter().filter(|p| !p.sides.is_empty()).collect();
    let many = points.len() > GROUPS;
    let groups = grouped(points.into_iter(), |p| {
        if many {
            format!("{}, {}: CPU use of the server", p.step.load, p.step.server)
        } else {
            "CPU use of the server".to_owned()
        }
    });
    let chart = |(title, group): (String, Vec<&Point>)| Chart {
        title,
        note: "CPUs in use, medians of the windows, 95% intervals. The axis begins at zero.".to_owned(),
        option: json!({
            "xAxis": category("", &short_names(&group)),
            "yAxis": axis("CPUs", true),
            "series": bars(&group, names, |s| s.cpus),
        }),
    };
    groups.into_iter().map(chart).collect()
}

/// Draws response times over the share of requests that are faster.
pub fn percentiles(points: &[Point], names: [&str; 2]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for p in points {
        let mut kinds: Vec<&str> = p.latencies.iter().map(|l| l.of.as_str()).collect();
        kinds.dedup();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let mine: Vec<_> = p.latencies.iter().filter(|l| l.of == kind).collect();
            let Some(first) = mine.first() else { continue };
            let words: Vec<String> = first.percentiles.iter().map(|(at, _)| format!("{at}%")).collect();
            let series: Vec<Value> = mine
                .iter()
                .map(|l| {
                    let (name, look) =
                        if l.side == Side::With { (names[0], WITH) } else { (names[1], WITHOUT) };
                    let data: Vec<f64> = l.percentiles.iter().map(|(_, ms)| round(*ms)).collect();
                    json!({ "type": "line", "name": name, "color": look.colour, "dashed": look.dashed, "symbolSize": 6, "data": data })
                })
                .collect();
            charts.push(Chart {
                title: format!("Response times of {kind}, {}", p.step),
                note: "The scale is logarithmic, so it has no zero.".to_owned(),
                option: json!({
                    "xAxis": category("requests that are faster", &words),
                    "yAxis": { "type": "log", "name": "ms" },
                    "series": series,
                }),
            });
        }
    }
    charts
}

/// Draws the gains of two runs.
pub fn two_runs(words: &[String], a: &[Option<Estimate>], b: &[Option<Estimate>]) -> Chart {
    let mut series = Vec::new();
    for (name, look, all) in [("A", WITHOUT, a), ("B", WITH, b)] {
        series.extend(line(name, look, all));
    }
    mark_one(&mut series);
    Chart {
        title: "Gain of both runs".to_owned(),
        note: "CPU per query, without / with (throughput where the CPU is not seen), 95% intervals. The axis does not begin at zero.".to_owned(),
        option: json!({ "xAxis": category("", words), "yAxis": axis("gain", false), "series": series }),
    }
}
