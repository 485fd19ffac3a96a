//! The response times that the clients of a load measured in each window.

use super::charts::{Chart, LOOKS, Look, SECOND, axis, by_threads, category, line, mark_one, round};
use super::figures::Point;
use super::tables::{Table, number, ratio, strings};
use crate::record::{Latency, Side, Window};
use crate::stats::{self, Estimate};
use crate::transactions::Transactions;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The percentiles of all transactions of a side.
const PERCENTILES: [f64; 10] = [25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.99];

/// Computes a figure of the times of a window, ms.
type Get = fn(&Transactions) -> Option<f64>;

const FIGURES: [(&str, Get); 3] = [
    ("mean", Transactions::mean_ms),
    ("95th percentile", |t| t.percentile_ms(95.0)),
    ("maximum", Transactions::max_ms),
];

/// One figure of the response times of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Response {
    /// The figure.
    pub of: &'static str,
    /// The medians of the windows of each side, ms.
    pub sides: BTreeMap<Side, Estimate>,
    /// Gain: without clones over with, within pairs of windows. Above 1 is better.
    pub gain: Option<Estimate>,
    /// The number of each pair, and its windows with clones and without, ms.
    pub windows: Vec<(usize, f64, f64)>,
}

impl Response {
    /// Computes all figures from pairs of windows, each with clones first. Empty if the windows have no times.
    pub fn all(pairs: &[(&Window, &Window)], seed: u64) -> Vec<Self> {
        FIGURES.into_iter().filter_map(|(of, get)| Self::one(of, get, pairs, seed)).collect()
    }

    fn one(of: &'static str, get: Get, pairs: &[(&Window, &Window)], seed: u64) -> Option<Self> {
        let time = |w: &Window| w.transactions.as_ref().and_then(get);
        let windows: Vec<(usize, f64, f64)> =
            pairs.iter().filter_map(|(a, b)| Some((a.pair, time(a)?, time(b)?))).collect();
        let (with, without): (Vec<f64>, Vec<f64>) = windows.iter().map(|w| (w.1, w.2)).unzip();
        let gains: Vec<f64> = windows.iter().map(|w| w.2 / w.1).collect();
        let sides = [
            (Side::With, stats::bootstrap_median(&with, seed)?),
            (Side::Without, stats::bootstrap_median(&without, seed)?),
        ];
        Some(Self { of, sides: sides.into(), gain: stats::bootstrap_median(&gains, seed), windows })
    }
}

/// Returns the times of all transactions in these windows of a side. `None` if they have none.
pub fn pooled<'a>(side: Side, windows: impl Iterator<Item = &'a Window>) -> Option<Latency> {
    let all = windows.filter_map(|w| w.transactions.as_ref());
    let all = all.fold(Transactions::default(), |sum, times| sum.and(times));
    let mut percentiles: Vec<(f64, f64)> =
        PERCENTILES.iter().filter_map(|p| Some((*p, all.percentile_ms(*p)?))).collect();
    percentiles.push((100.0, all.max_ms()?));
    Some(Latency {
        side,
        of: "transaction".to_owned(),
        count: all.count(),
        mean_ms: all.mean_ms()?,
        max_ms: all.max_ms()?,
        percentiles,
    })
}

/// Returns the figures of all points. `None` if no load counted times for each window.
pub fn table(points: &[Point], names: [&str; 2]) -> Option<Table> {
    let [with, without] = names;
    let ms = |e: Option<&Estimate>| {
        e.map_or_else(String::new, |e| format!("{} ({}–{})", number(e.value), number(e.low), number(e.high)))
    };
    let row = |p: &Point, r: &Response| {
        vec![
            p.step.to_string(),
            r.of.to_owned(),
            ms(r.sides.get(&Side::Without)),
            ms(r.sides.get(&Side::With)),
            ratio(r.gain),
            r.windows.len().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = points.iter().flat_map(|p| p.response.iter().map(|r| row(p, r))).collect();
    let mut columns = strings(["point", "of a window"]);
    columns.extend([format!("ms, {without}"), format!("ms, {with}")]);
    columns.extend(strings(["gain (95%)", "pairs"]));
    (!rows.is_empty()).then(|| Table {
        title: "Response times of each window".to_owned(),
        note: "Each transaction is timed by the client that sends it, and belongs to the window in which it ends. Medians of the windows. \
               Gains above 1 are for whet: medians of ratios within pairs, times without over times with. \
               Times are counted in buckets 1.1% wide; a maximum is the upper end of its bucket."
            .to_owned(),
        columns,
        rows,
    })
}

/// Draws the times over the number of threads where that was varied, and those of each window.
pub fn charts(points: &[Point], names: [&str; 2]) -> Vec<Chart> {
    let groups = by_threads(points).into_iter().filter(|(_, g)| g.iter().all(|p| !p.response.is_empty()));
    let over_threads = groups.flat_map(|(title, group)| both(&title, &group, names));
    let timed = points.iter().filter(|p| !p.response.is_empty());
    over_threads.chain(timed.map(|p| each_window(p, names))).collect()
}

fn find<'a>(p: &'a Point, of: &str) -> Option<&'a Response> {
    p.response.iter().find(|r| r.of == of)
}

/// Draws the 95th percentile over the number of threads, and the gains of mean and 95th percentile.
fn both(title: &str, group: &[&Point], names: [&str; 2]) -> [Chart; 2] {
    let [(mean, _), (p95, _), _] = FIGURES;
    let threads: Vec<String> = group.iter().map(|p| p.step.threads.to_string()).collect();
    let mut times = Vec::new();
    for ((side, name), look) in Side::BOTH.into_iter().zip(names).zip(LOOKS) {
        let all: Vec<_> = group.iter().map(|p| find(p, p95)?.sides.get(&side).copied()).collect();
        times.extend(line(name, look, &all));
    }
    let mut gains = Vec::new();
    for (of, look) in [(p95, LOOKS[0]), (mean, SECOND)] {
        let all: Vec<_> = group.iter().map(|p| find(p, of)?.gain).collect();
        gains.extend(line(&format!("{of}, without / with"), look, &all));
    }
    mark_one(&mut gains);
    [
        Chart {
            title: format!("{title}: response time, 95th percentile"),
            note: "Measured by the clients. Medians of the windows, 95% intervals. The axis begins at zero.".to_owned(),
            option: json!({ "xAxis": category("threads", &threads), "yAxis": axis("ms", true), "series": times }),
        },
        Chart {
            title: format!("{title}: gain in response time"),
            note: "Ratios within pairs of windows, 95% intervals. The axis does not begin at zero; the line at 1 is “no difference”."
                .to_owned(),
            option: json!({ "xAxis": category("threads", &threads), "yAxis": axis("gain", false), "series": gains }),
        },
    ]
}

/// Draws the 95th percentile and the maximum of each window.
fn each_window(p: &Point, names: [&str; 2]) -> Chart {
    let mut series: Vec<Value> = Vec::new();
    let colours = [("95th percentile", LOOKS[0].colour), ("maximum", SECOND.colour)];
    for (r, colour) in colours.into_iter().filter_map(|(of, colour)| Some((find(p, of)?, colour))) {
        for (at, (name, Look { dashed, .. })) in names.into_iter().zip(LOOKS).enumerate() {
            let time = |w: &(usize, f64, f64)| json!([w.0 + 1, round(if at == 0 { w.1 } else { w.2 })]);
            series.push(json!({
                "type": "line", "name": format!("{}, {name}", r.of), "color": colour, "dashed": dashed, "symbolSize": 6,
                "data": r.windows.iter().map(time).collect::<Vec<_>>(),
            }));
        }
    }
    Chart {
        title: format!("{}: response times of each window", p.step),
        note: "Measured by the clients. The scale is logarithmic, so it has no zero.".to_owned(),
        option: json!({
            "xAxis": { "type": "value", "name": "pair of windows", "minInterval": 1 },
            "yAxis": { "type": "log", "name": "ms" },
            "series": series,
        }),
    }
}
