//! Several servers under the same load.

use super::charts::{self, Chart, LOOKS};
use super::figures::Point;
use crate::record::Side;
use crate::stats::Estimate;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Draws the throughput of each load that several servers ran: lines over the number of threads if that
/// varies, else bars.
pub fn charts(points: &[Point], unit: &str, names: [&str; 2]) -> Vec<Chart> {
    // If CPUs are varied, a chart over their number has all servers already. A fixed rate is the same for all
    // servers.
    let compared = |p: &&Point| !p.sides.is_empty() && p.step.cpus.is_none() && p.rate.is_none();
    let points: Vec<&Point> = points.iter().filter(compared).collect();
    let mut groups: Vec<(String, Vec<&Point>)> = Vec::new();
    for p in points {
        let title =
            std::iter::once(p.step.load.clone()).chain(p.step.place.words()).collect::<Vec<_>>().join(", ");
        match groups.iter_mut().find(|g| g.0 == title) {
            Some(group) => group.1.push(p),
            None => groups.push((title, vec![p])),
        }
    }
    groups.into_iter().filter_map(|(title, group)| chart(&title, &group, unit, names)).collect()
}

fn chart(title: &str, group: &[&Point], unit: &str, names: [&str; 2]) -> Option<Chart> {
    let mut servers: Vec<&str> = Vec::new();
    for p in group {
        if !servers.contains(&p.step.server.as_str()) {
            servers.push(&p.step.server);
        }
    }
    if servers.len() < 2 {
        return None;
    }
    let all: Vec<Series<'_>> = servers
        .iter()
        .map(|server| Series {
            name: (*server).to_owned(),
            points: group.iter().copied().filter(|p| p.step.server == *server).collect(),
            names,
        })
        .collect();
    let (across, series) = drawn(&all, false);
    Some(Chart {
        title: format!("Servers side by side, {title}: {unit} per second"),
        note: "Medians of the windows, 95% intervals. The axis begins at zero. The servers ran one after the other: what drifts between them \
               is in this comparison, though not in that of the sides."
            .to_owned(),
        option: json!({ "xAxis": across, "yAxis": charts::axis(&format!("{unit}/s"), true), "series": series }),
    })
}

/// Points that differ only in the number of threads or CPUs.
#[derive(Debug)]
pub(super) struct Series<'a> {
    /// The name.
    pub name: String,
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
    for (at, one) in all.iter().enumerate() {
        for ((side, name), look) in Side::BOTH.into_iter().zip(one.names).zip(LOOKS) {
            let rates: Vec<Option<Estimate>> = places.iter().map(|p| best(one, *p, side)).collect();
            let (name, look) = charts::of_server(at, all.len(), &one.name, name, look);
            series.extend(charts::line(&name, look, &rates));
        }
    }
    let words: Vec<String> = places.iter().map(ToString::to_string).collect();
    (charts::category(if by_cpus { "CPUs" } else { "threads" }, &words), series)
}
