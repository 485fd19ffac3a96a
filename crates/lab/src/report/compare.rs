//! The comparison of runs.

use super::across::{self, Column};
use super::charts::{Chart, two_runs};
use super::events;
use super::figures::Point;
use super::headline::headline;
use super::page::{Page, control, names, points, put, render};
use super::tables::{Table, ratio};
use crate::error::Error;
use crate::events::table;
use crate::folder::Run;
use crate::machine::Cpu;
use crate::stats::{self, Estimate};
use std::path::{Path, PathBuf};

/// Returns tables of all points that at least two runs have: absolute figures and, of two runs, the difference
/// of their gains; and tables of all events. With `output`, they are written as a page as well.
///
/// # Errors
/// [`Error::NoRun`] if a run cannot be read; [`Error::Usage`] if the runs have no point in common;
/// [`Error::File`] if the page cannot be written.
pub fn compare(paths: &[PathBuf], output: Option<&Path>) -> Result<String, Error> {
    let runs = paths.iter().map(|path| Run::read(path)).collect::<Result<Vec<_>, _>>()?;
    let columns: Vec<Column> = ('A'..='Z').zip(&runs).map(|(letter, run)| column(letter, run)).collect();
    let unit = runs.first().map_or("", |run| run.head.scenario.unit());
    let both = match columns.as_slice() {
        [a, b] => Some(pairs(&a.points, &b.points)).filter(|pairs| !pairs.is_empty()),
        _ => None,
    };
    let seed = runs.first().map_or(0, |run| run.head.seed);
    let gains = both.as_ref().map(|pairs| gains(pairs, seed));
    let mut tables: Vec<Table> = gains.into_iter().chain(across::table(&columns, unit)).collect();
    if tables.is_empty() {
        let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
        return Err(Error::Usage(format!("{} have no point in common", names.join(" and "))));
    }
    let of_run = |(c, r): (&Column, &Run)| {
        (
            c.letter,
            events::tables(&c.points, c.names, table(&r.head.machine.host.identity, r.head.machine.host.smt)),
        )
    };
    tables.extend(events::of_runs(columns.iter().zip(&runs).map(of_run)));
    let folders = columns.iter().zip(&runs);
    let folders: String = folders.map(|(c, r)| format!("{}: {}\n", c.letter, r.path.display())).collect();
    let text = format!("{folders}{}", tables.iter().map(plain).collect::<Vec<_>>().join("\n\n"));
    if let Some(path) = output {
        let mut charts = across::charts(&columns, unit);
        charts.extend(both.map(|pairs| chart(&pairs)));
        let of_all = |words: &dyn Fn(&Column, &Run) -> String| {
            let all = columns.iter().zip(&runs).map(|(c, r)| format!("{}: {}", c.letter, words(c, r)));
            all.collect::<Vec<_>>().join(" ")
        };
        let controls = columns.iter().zip(&runs).map(|(c, r)| control(&r.head, &c.points));
        let page = Page {
            control: of_all(&|c, r| control(&r.head, &c.points).words()),
            unfit: !controls.into_iter().all(|c| c.may_publish()),
            title: "whet-lab compare".to_owned(),
            lead: of_all(&|c, r| headline(&c.points, r.head.scenario.unit(), c.names)),
            facts: columns.iter().zip(&runs).map(|(c, r)| fact(c, r)).collect(),
            charts,
            tables,
            method: vec!["Ratios of medians of paired ratios, each side resampled by itself.".to_owned()],
            figures: "[]".to_owned(),
            ..Page::default()
        };
        put(path, &render(&page)?)?;
    }
    Ok(text)
}

fn column(letter: char, run: &Run) -> Column {
    let machine = run.head.machine.server.as_ref().unwrap_or(&run.head.machine.host);
    let Cpu { family, model, .. } = machine.identity;
    // Names such as "AMD EPYC" are those of many CPUs.
    let kind = if family == 0 { String::new() } else { format!(" (family {family}, model {model})") };
    let s = if machine.cpus == 1 { "" } else { "s" };
    let machine = format!("{}{kind}, {} CPU{s}", machine.cpu, machine.cpus);
    Column { letter, machine, points: points(run), names: names(&run.head) }
}

fn fact(column: &Column, run: &Run) -> (String, String) {
    let words = format!("{}: {}, {}", run.path.display(), run.head.begun, column.machine);
    (column.letter.to_string(), words)
}

/// Returns the points that two runs have in common. Servers may differ, since this also serves to compare
/// servers: a point without a counterpart of the same server and place is compared with a point of another
/// server.
fn pairs<'a>(of_a: &'a [Point], of_b: &'a [Point]) -> Vec<(&'a Point, &'a Point)> {
    of_a.iter()
        .filter_map(|p| {
            let like = |q: &&Point| {
                (&q.step.load, q.step.threads, q.step.cpus) == (&p.step.load, p.step.threads, p.step.cpus)
            };
            let same = of_b
                .iter()
                .filter(like)
                .find(|q| q.step.server == p.step.server && q.step.place == p.step.place);
            Some((p, same.or_else(|| of_b.iter().find(like))?))
        })
        .collect()
}

/// Tables the gains of two runs.
fn gains(pairs: &[(&Point, &Point)], seed: u64) -> Table {
    let rows: Vec<Vec<String>> = pairs
        .iter()
        .map(|(p, q)| {
            let name =
                if p.step == q.step { p.step.to_string() } else { format!("{} against {}", p.step, q.step) };
            let cpu = stats::bootstrap_ratio(&q.cpu_ratios, &p.cpu_ratios, seed);
            let throughput = stats::bootstrap_ratio(&q.ratios, &p.ratios, seed);
            vec![
                name,
                ratio(p.cpu_per_query),
                ratio(q.cpu_per_query),
                format!("{}{}", ratio(cpu), significance(cpu)),
                ratio(p.throughput),
                ratio(q.throughput),
                format!("{}{}", ratio(throughput), significance(throughput)),
            ]
        })
        .collect();
    let columns = [
        "point",
        "CPU gain, A",
        "CPU gain, B",
        "B over A",
        "throughput gain, A",
        "throughput gain, B",
        "B over A",
    ];
    Table {
        title: "Gains of both runs".to_owned(),
        note: "A star marks a difference whose 95% interval does not hold 1.".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    }
}

fn significance(e: Option<Estimate>) -> &'static str {
    if e.is_some_and(|e| e.low > 1.0 || e.high < 1.0) { " *" } else { "" }
}

fn chart(pairs: &[(&Point, &Point)]) -> Chart {
    let words: Vec<String> = pairs.iter().map(|(p, _)| p.step.to_string()).collect();
    let a: Vec<_> = pairs.iter().map(|(p, _)| p.cpu_per_query.or(p.throughput)).collect();
    let b: Vec<_> = pairs.iter().map(|(_, q)| q.cpu_per_query.or(q.throughput)).collect();
    two_runs(&words, &a, &b)
}

/// Formats a table for terminals.
fn plain(table: &Table) -> String {
    let width = |i: usize| {
        let cells = table.rows.iter().filter_map(|r| r.get(i)).chain(table.columns.get(i));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut text = format!("{}\n{}\n", table.title, line(&table.columns));
    for row in &table.rows {
        text.push_str(&line(row));
        text.push('\n');
    }
    text.push_str(&table.note);
    text
}
