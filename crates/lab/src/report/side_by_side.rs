//! Several servers under the same load, or several storages of one server.

use super::charts::{self, COLOURS, Chart, LOOKS};
use super::figures::{Point, SideFigures, distinct, grouped};
use super::tables::{Table, one_of, ratio};
use crate::record::{Place, Side, Step};
use crate::stats::{self, Estimate};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What a chart sets side by side: its name, the value of a point, and what its points have in common.
type Kind = (&'static str, fn(&Step) -> String, fn(&Step) -> Vec<String>);

const SERVERS: Kind = ("Servers", |s| s.server.clone(), |s| [vec![s.load.clone()], s.place.words()].concat());
const STORAGES: Kind = (
    "Storages",
    |s| s.place.storage.clone().unwrap_or_default(),
    |s| {
        let place = Place { storage: None, ..s.place.clone() };
        [vec![s.load.clone(), s.server.clone()], place.words()].concat()
    },
);

/// Draws the throughput of each load that several servers ran, or that ran on several storages: lines over the
/// number of threads if that varies, else bars.
pub fn charts(points: &[Point], unit: &str, names: [&str; 2]) -> Vec<Chart> {
    let of = |kind: &Kind| -> Vec<Chart> {
        // If CPUs are varied, a chart over their number has all servers already.
        let points = || comparable(points).filter(|p| p.step.cpus.is_none());
        let values = distinct(points().map(|p| kind.1(&p.step)));
        let groups = grouped(points(), |p| kind.2(&p.step).join(", "));
        groups.iter().filter_map(|(title, group)| chart(*kind, title, group, &values, unit, names)).collect()
    };
    [SERVERS, STORAGES].iter().flat_map(of).collect()
}

/// Returns the points whose throughput depends on the server: at a fixed rate, it is the same for all.
fn comparable(points: &[Point]) -> impl Iterator<Item = &Point> {
    points.iter().filter(|p| !p.sides.is_empty() && p.rate.is_none())
}

/// Tables how each server differs from the first, under the same load. `None` if no load ran on several.
pub fn table(points: &[Point], unit: &str, names: [&str; 2], seed: u64) -> Option<Table> {
    let (mut rows, mut sentences) = (Vec::new(), Vec::new());
    for (load, group) in grouped(comparable(points), |p| p.step.without_server()) {
        let Some((first, others)) = group.split_first() else { continue };
        for other in others {
            let differs = |side: Side, get: fn(&SideFigures) -> &Vec<f64>| {
                stats::bootstrap_ratio(get(other.sides.get(&side)?), get(first.sides.get(&side)?), seed)
            };
            let [(rate, cost), (rate_with, cost_with)] = [Side::Without, Side::With]
                .map(|side| (differs(side, |s| &s.rates), differs(side, |s| &s.costs)));
            let servers = format!("{} over {}", other.step.server, first.step.server);
            sentences.extend(rate.zip(cost).map(|(rate, cost)| {
                let (rate, cost) = (words(rate), words(cost));
                format!(
                    "{servers}, {load}, {}: throughput {rate}, CPU time per {} {cost}.",
                    names[1],
                    one_of(unit)
                )
            }));
            rows.push(vec![
                load.clone(),
                servers,
                ratio(rate),
                ratio(rate_with),
                ratio(cost),
                ratio(cost_with),
            ]);
        }
    }
    let [with, without] = names;
    let of = |what: &str, side: &str| format!("{what}, {side}");
    let cpu = format!("CPU time per {}", one_of(unit));
    (!rows.is_empty()).then(|| Table {
        title: "How the servers differ".to_owned(),
        note: format!(
            "Ratios of medians, 95% intervals. Each server is resampled by itself, so the intervals do not cover the drift from one server's run to the next. {}",
            sentences.join(" ")
        ),
        columns: vec![
            "load".to_owned(),
            "servers".to_owned(),
            of("throughput", without),
            of("throughput", with),
            of(&cpu, without),
            of(&cpu, with),
        ],
        rows,
    })
}

/// Describes a ratio as a change in percent.
fn words(e: Estimate) -> String {
    if e.low <= 1.0 && e.high >= 1.0 {
        return "not found to differ".to_owned();
    }
    format!("{:+.0}%", (e.value - 1.0) * 100.0)
}

/// `values` are those of all charts.
fn chart(
    (what, of, _): Kind,
    title: &str,
    group: &[&Point],
    values: &[String],
    unit: &str,
    names: [&str; 2],
) -> Option<Chart> {
    let series = |(colour, value): (usize, &String)| {
        let points: Vec<&Point> = group.iter().copied().filter(|p| of(&p.step) == *value).collect();
        (!points.is_empty()).then(|| Series { name: value.clone(), colour, points, names })
    };
    let all: Vec<Series<'_>> = values.iter().enumerate().filter_map(series).collect();
    if all.len() < 2 {
        return None;
    }
    let (across, series) = drawn(&all, false);
    Some(Chart {
        title: format!("{what} side by side, {title}: {unit} per second"),
        note: format!(
            "Medians of the windows, 95% intervals. The axis begins at zero. The {} were measured one after the other, so the drift from \
             run to run is in this comparison, though not in that of the sides.",
            what.to_lowercase()
        ),
        option: json!({ "xAxis": across, "yAxis": charts::axis(&format!("{unit}/s"), true), "series": series }),
    })
}

/// Points that differ only in the number of threads or CPUs.
#[derive(Debug)]
pub(super) struct Series<'a> {
    /// The name.
    pub name: String,
    /// The number of its colour, which is the same in all charts that are drawn together.
    pub colour: usize,
    /// The points.
    pub points: Vec<&'a Point>,
    /// The names of the sides.
    pub names: [&'a str; 2],
}

/// Returns the axis and the series of a chart of throughput: lines over the number of threads or CPUs if that
/// varies, else bars. Of several points at one number, the best is drawn.
pub(super) fn drawn(all: &[Series<'_>], by_cpus: bool) -> (Value, Vec<Value>) {
    let place = |p: &Point| if by_cpus { p.step.cpus.unwrap_or(0) } else { p.step.threads };
    let places: BTreeSet<usize> = all.iter().flat_map(|s| &s.points).map(|p| place(p)).collect();
    let rate = |p: &Point, side: Side| p.sides.get(&side).map(|s| s.rate);
    let higher = |a: &Estimate, b: &Estimate| a.value.total_cmp(&b.value);
    let best = |s: &Series<'_>, at: usize, side: Side| {
        s.points.iter().filter(|p| place(p) == at).filter_map(|p| rate(p, side)).max_by(higher)
    };
    let mut series = Vec::new();
    if let (1, Some(&at)) = (places.len(), places.first()) {
        let words: Vec<String> = all.iter().map(|s| s.name.clone()).collect();
        let names = all.first().map_or(["", ""], |s| s.names);
        let rates = |side| all.iter().map(|s| best(s, at, side)).collect::<Vec<_>>();
        series.extend(charts::bars_of(Side::BOTH.map(rates), names));
        return (charts::category("", &words), series);
    }
    // With more series in all charts than there are colours, those of this chart still differ.
    let colours: BTreeSet<usize> = all.iter().map(|s| s.colour % COLOURS.len()).collect();
    for (at, one) in all.iter().enumerate() {
        let colour = if colours.len() == all.len() { one.colour } else { at };
        for ((side, name), look) in Side::BOTH.into_iter().zip(one.names).zip(LOOKS) {
            let rates: Vec<Option<Estimate>> = places.iter().map(|p| best(one, *p, side)).collect();
            let (name, look) = charts::of_server(colour, all.len(), &one.name, name, look);
            series.extend(charts::line(&name, look, &rates));
        }
    }
    let words: Vec<String> = places.iter().map(ToString::to_string).collect();
    (charts::category(if by_cpus { "CPUs" } else { "threads" }, &words), series)
}
