//! Several servers under the same load.

use super::charts::{self, Chart, LOOKS};
use super::figures::Point;
use crate::record::Side;
use crate::stats::Estimate;
use serde_json::json;
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
    let threads: BTreeSet<usize> = group.iter().map(|p| p.step.threads).collect();
    let (across, series) = if threads.len() == 1 {
        let words: Vec<String> = group.iter().map(|p| p.step.server.clone()).collect();
        (charts::category("", &words), charts::bars(group, names, |s| s.rate))
    } else {
        let mut series = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            for ((side, name), look) in Side::BOTH.into_iter().zip(names).zip(LOOKS) {
                let rate = |threads: &usize| -> Option<Estimate> {
                    let here = group.iter().find(|p| p.step.server == *server && p.step.threads == *threads);
                    here?.sides.get(&side).map(|s| s.rate)
                };
                let rates: Vec<Option<Estimate>> = threads.iter().map(rate).collect();
                let (name, look) = charts::of_server(at, servers.len(), server, name, look);
                series.extend(charts::line(&name, look, &rates));
            }
        }
        let words: Vec<String> = threads.iter().map(ToString::to_string).collect();
        (charts::category("threads", &words), series)
    };
    Some(Chart {
        title: format!("Servers side by side, {title}: {unit} per second"),
        note: "Medians of the windows, 95% intervals. The axis begins at zero. The servers ran one after the other: what drifts between them \
               is in this comparison, though not in that of the sides."
            .to_owned(),
        option: json!({ "xAxis": across, "yAxis": charts::axis(&format!("{unit}/s"), true), "series": series }),
    })
}
