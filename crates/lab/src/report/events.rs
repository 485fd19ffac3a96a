//! Events of the CPU's front end: charts over the number of threads, and tables. Counted figures and modelled
//! ones are never mixed in one chart.

use super::charts::{self, Chart, LOOKS, Look, round};
use super::figures::{Point, SideFigures};
use super::tables::{self, number, strings};
use crate::events::{IPC, METRICS, Metric, Modelled, PENALTIES, Table};
use crate::record::Side;
use crate::stats::{self, Estimate};
use serde_json::{Value, json};

/// Draws a chart of each figure, for each load whose number of threads was varied.
pub fn charts(points: &[Point], names: [&str; 2], seed: u64) -> Vec<Chart> {
    let groups = charts::by_threads(points);
    let of_group = |(title, group): &(String, Vec<&Point>)| -> Vec<Chart> {
        let by_hardware = [&IPC].into_iter().chain(METRICS.iter().skip(1));
        let by_hardware = by_hardware.filter_map(|m| counted(title, group, m, names, seed));
        by_hardware.chain(METRICS.iter().filter_map(|m| modelled(title, group, m, names))).collect()
    };
    groups.iter().flat_map(of_group).collect()
}

fn counted(title: &str, group: &[&Point], metric: &Metric, names: [&str; 2], seed: u64) -> Option<Chart> {
    let mut series = Vec::new();
    for ((side, name), look) in Side::BOTH.into_iter().zip(names).zip(LOOKS) {
        let figure = |p: &&Point| p.sides.get(&side).and_then(|s| estimate(s, metric, seed));
        let all: Vec<Option<Estimate>> = group.iter().map(figure).collect();
        if all.iter().any(Option::is_some) {
            series.extend(charts::line(name, look, &all));
        }
    }
    let note =
        "By hardware counters, user mode. Medians of the windows, 95% intervals. The axis begins at zero.";
    (!series.is_empty()).then(|| chart(format!("{title}: {}", metric.name), note, group, metric, &series))
}

fn modelled(title: &str, group: &[&Point], metric: &Metric, names: [&str; 2]) -> Option<Chart> {
    let all: Vec<Option<Modelled>> = group.iter().map(|p| model(p)).collect();
    let series: Vec<Value> = names
        .into_iter()
        .zip(LOOKS)
        .enumerate()
        .map(|(at, (name, Look { colour, dashed, shift }))| {
            let figure = |m: &Option<Modelled>| {
                let m = m.as_ref()?;
                (metric.of)(if at == 0 { &m.with } else { &m.without }).map(round)
            };
            let data: Vec<Option<f64>> = all.iter().map(figure).collect();
            json!({ "type": "line", "name": name, "color": colour, "dashed": dashed, "shift": shift, "symbolSize": 7, "data": data })
        })
        .collect();
    let cpu = &all.iter().flatten().next()?.cpu;
    let note = format!(
        "MODELLED, not measured: instruction fetch of {cpu}, on a path drawn from exact counts. The axis begins at zero."
    );
    Some(chart(format!("{title}: {} (modelled)", metric.name), &note, group, metric, &series))
}

fn chart(title: String, note: &str, group: &[&Point], metric: &Metric, series: &[Value]) -> Chart {
    let threads: Vec<String> = group.iter().map(|p| p.step.threads.to_string()).collect();
    let option = json!({ "xAxis": charts::category("threads", &threads), "yAxis": charts::axis(metric.unit, true), "series": series });
    Chart { title, note: note.to_owned(), option }
}

fn model(point: &Point) -> Option<Modelled> {
    Modelled::parse(point.modelled_events.as_ref()?)
}

/// Returns a figure over the windows of a side.
fn estimate(side: &SideFigures, metric: &Metric, seed: u64) -> Option<Estimate> {
    let all: Vec<f64> = side.each.iter().filter_map(metric.of).filter(|v| v.is_finite()).collect();
    stats::bootstrap_median(&all, seed)
}

/// Returns a table of counted events and one of modelled events, where there are any.
pub fn tables(points: &[Point], names: [&str; 2], events: &Table) -> Vec<tables::Table> {
    let mut all = Vec::new();
    let rows: Vec<Vec<String>> = points.iter().flat_map(|p| hardware(p, names)).collect();
    if !rows.is_empty() {
        all.push(tables::Table {
            title: "Events, by hardware counters".to_owned(),
            note: format!(
                "User mode, over all windows of a side; events of {}. {} “Counted” is the smallest share of a window for which an event \
                 was counted: below 100%, groups of events took turns, and perf scaled their counts.",
                events.cpu, events.notes
            ),
            columns: columns(&["counted", "queries per million cycles"]),
            rows,
        });
    }
    let rows: Vec<Vec<String>> = points.iter().flat_map(|p| of_model(p, names)).collect();
    if !rows.is_empty() {
        let penalties: Vec<String> =
            PENALTIES.iter().map(|p| format!("{} {} ({})", p.event, p.cycles, p.source)).collect();
        all.push(tables::Table {
            title: "Events, modelled".to_owned(),
            note: format!(
                "Not measured. whet follows a path drawn from exact counts through originals and clones, and models the instruction fetch of the \
                 named CPU. Cycles are one fifth of the instructions plus a penalty for each event: {}. Penalties do not overlap, and data never \
                 misses, so this CPI is not that of the server; front-end stalls are the penalties' share of these cycles.",
                penalties.join("; ")
            ),
            columns: columns(&["CPU", "user samples in the modelled functions"]),
            rows,
        });
    }
    all
}

/// Returns the tables of several runs in one of each kind: each row begins with its run's letter. Notes on the
/// events of several CPUs follow one another.
pub fn of_runs(runs: impl Iterator<Item = (char, Vec<tables::Table>)>) -> Vec<tables::Table> {
    let mut all: Vec<tables::Table> = Vec::new();
    for (letter, tables) in runs {
        for mut table in tables {
            table.rows.iter_mut().for_each(|row| row.insert(0, letter.to_string()));
            if let Some(same) = all.iter_mut().find(|t| t.title == table.title) {
                same.rows.append(&mut table.rows);
                if !same.note.contains(&table.note) {
                    same.note = format!("{} {letter}: {}", same.note, table.note);
                }
            } else {
                table.columns.insert(0, "run".to_owned());
                all.push(table);
            }
        }
    }
    all
}

fn columns(more: &[&str]) -> Vec<String> {
    let figures = METRICS.iter().map(|m| format!("{}, {}", m.name, m.unit));
    strings(["point", "side"])
        .into_iter()
        .chain(figures)
        .chain(more.iter().map(|w| (*w).to_owned()))
        .collect()
}

fn figures(point: &Point, name: &str, get: impl Fn(&Metric) -> Option<f64>) -> Vec<String> {
    let figures = METRICS.iter().map(|m| get(m).map_or_else(|| "–".to_owned(), number));
    [point.step.to_string(), name.to_owned()].into_iter().chain(figures).collect()
}

fn hardware(p: &Point, names: [&str; 2]) -> Vec<Vec<String>> {
    let line = |side: Side, name: &str| {
        let f = p.sides.get(&side).filter(|f| !f.events.is_empty())?;
        let mut row = figures(p, name, |m| (m.of)(&f.events));
        row.push(f.counted.map_or_else(|| "–".to_owned(), |c| format!("{:.0}%", c * 100.0)));
        row.push(f.events.get("cycles").map_or_else(|| "–".to_owned(), |c| number(f.queries * 1e6 / c)));
        Some(row)
    };
    [line(Side::Without, names[1]), line(Side::With, names[0])].into_iter().flatten().collect()
}

fn of_model(p: &Point, names: [&str; 2]) -> Vec<Vec<String>> {
    let Some(model) = model(p) else { return Vec::new() };
    [(names[1], &model.without), (names[0], &model.with)]
        .into_iter()
        .map(|(name, counts)| {
            let mut row = figures(p, name, |m| (m.of)(counts));
            row.push(model.cpu.clone());
            row.push(format!("{:.0}%", model.coverage * 100.0));
            row
        })
        .collect()
}
