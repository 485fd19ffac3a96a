//! Absolute throughput of several runs, such as of several machines: each run is a series.

use super::charts::{self, Chart};
use super::figures::{Point, distinct};
use super::side_by_side::{Series, drawn};
use super::tables::{Table, number, ratio};
use crate::record::Side;
use crate::stats::Estimate;
use serde_json::json;

/// A run with the points that are compared.
#[derive(Debug)]
pub struct Column {
    /// A letter, which names the run everywhere.
    pub letter: char,
    /// Its machine.
    pub machine: String,
    /// Its points.
    pub points: Vec<Point>,
    /// The names of its sides.
    pub names: [&'static str; 2],
}

impl Column {
    fn name(&self) -> String {
        format!("{}: {}", self.letter, self.machine)
    }
}

/// Returns what two points must share to be compared.
fn key(p: &Point) -> String {
    p.step.without_server()
}

/// Returns the keys that at least two runs have, in the order of the runs.
fn shared(columns: &[Column]) -> Vec<String> {
    let mut all = distinct(columns.iter().flat_map(|c| measured(c).map(key)));
    let runs = |wanted: &String| columns.iter().filter(|c| measured(c).any(|p| key(p) == *wanted)).count();
    all.retain(|key| runs(key) > 1);
    all
}

fn measured(column: &Column) -> impl Iterator<Item = &Point> {
    column.points.iter().filter(|p| !p.sides.is_empty())
}

/// Tables the throughput and the gains at each point that at least two runs have. `None` if there is no such
/// point.
pub fn table(columns: &[Column], unit: &str) -> Option<Table> {
    let mut rows = Vec::new();
    for wanted in shared(columns) {
        for column in columns {
            for p in measured(column).filter(|p| key(p) == wanted) {
                let rate =
                    |side: Side| p.sides.get(&side).map_or_else(|| "–".to_owned(), |s| interval(s.rate));
                rows.push(vec![
                    wanted.clone(),
                    column.name(),
                    p.step.server.clone(),
                    rate(Side::Without),
                    rate(Side::With),
                    ratio(p.throughput),
                    ratio(p.cpu_per_query),
                ]);
            }
        }
    }
    let columns = vec![
        "point".to_owned(),
        "run".to_owned(),
        "server".to_owned(),
        format!("{unit}/s, without"),
        format!("{unit}/s, with"),
        "throughput gain".to_owned(),
        "CPU gain".to_owned(),
    ];
    (!rows.is_empty()).then(|| Table {
        title: format!("Absolute figures: {unit} per second"),
        note: "Medians of the windows, 95% intervals. Gains above 1 are for whet. The runs took place at \
               different times: the drift from run to run is in this comparison, though not in the gains."
            .to_owned(),
        columns,
        rows,
    })
}

fn interval(e: Estimate) -> String {
    format!("{} ({}–{})", number(e.value), number(e.low), number(e.high))
}

/// Draws the throughput of each load that at least two runs have: over the number of the server's CPUs if that
/// was varied, else over the number of threads.
pub fn charts(columns: &[Column], unit: &str) -> Vec<Chart> {
    let shared = shared(columns);
    let title = |p: &Point| [vec![p.step.load.clone()], p.step.place.words()].concat().join(", ");
    // A fixed rate is the same for all runs.
    let compared = |p: &&Point| p.rate.is_none() && shared.contains(&key(p));
    let titles = distinct(columns.iter().flat_map(measured).filter(compared).map(title));
    let mut runs = Vec::new();
    for column in columns {
        let servers = distinct(measured(column).filter(compared).map(|p| p.step.server.as_str()));
        for server in &servers {
            let name = match servers.len() {
                1 => column.name(),
                _ => format!("{}, {server}", column.name()),
            };
            runs.push((column, *server, name));
        }
    }
    let chart = |wanted: &String| {
        let mut all = Vec::new();
        for (colour, (column, server, name)) in runs.iter().enumerate() {
            let is_here = |p: &&Point| title(p) == *wanted && p.step.server == *server;
            let points: Vec<&Point> = measured(column).filter(compared).filter(is_here).collect();
            if !points.is_empty() {
                all.push(Series { name: name.clone(), colour, points, names: column.names });
            }
        }
        let by_cpus = all.iter().flat_map(|s| &s.points).any(|p| p.step.cpus.is_some());
        let (across, series) = drawn(&all, by_cpus);
        let best = if by_cpus { " At each number of CPUs the best number of threads." } else { "" };
        Chart {
            title: format!("{wanted}: {unit} per second"),
            note: format!("Medians of the windows, 95% intervals. The axis begins at zero.{best}"),
            option: json!({ "xAxis": across, "yAxis": charts::axis(&format!("{unit}/s"), true), "series": series }),
        }
    };
    titles.iter().map(chart).collect()
}
