//! The comparison of two runs.

use super::figures::Point;
use super::headline::headline;
use super::page::{Page, control, names, points, put, render};
use super::tables::{Table, ratio};
use crate::control::Control;
use crate::error::Error;
use crate::folder::Run;
use crate::stats::{self, Estimate};
use std::path::Path;

/// Returns a table of all points that both runs have. With `output`, it is written as a page as well.
///
/// # Errors
/// [`Error::NoRun`] if a run cannot be read; [`Error::Usage`] if the runs have no point in common;
/// [`Error::File`] if the page cannot be written.
pub fn compare(a: &Path, b: &Path, output: Option<&Path>) -> Result<String, Error> {
    let runs = [Run::read(a)?, Run::read(b)?];
    let [of_a, of_b] = [points(&runs[0]), points(&runs[1])];
    // Servers may differ, since this also serves to compare servers. A point without a counterpart of the
    // same server and place is compared with a point of another server.
    let pairs: Vec<(&Point, &Point)> = of_a
        .iter()
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
        .collect();
    if pairs.is_empty() {
        return Err(Error::Usage(format!("{} and {} have no point in common", a.display(), b.display())));
    }
    let seed = runs[0].head.seed;
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
    let table = Table {
        title: "Gains of both runs".to_owned(),
        note: "A star marks a difference whose 95% interval does not hold 1.".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    };
    let text = plain(&table, a, b);
    if let Some(path) = output {
        let controls = [control(&runs[0].head, &of_a), control(&runs[1].head, &of_b)];
        let page = Page {
            control: format!("A: {} B: {}", controls[0].words(), controls[1].words()),
            unfit: !controls.iter().all(Control::may_publish),
            title: "whet-lab compare".to_owned(),
            lead: format!(
                "A: {} B: {}",
                headline(&of_a, runs[0].head.scenario.unit(), names(&runs[0].head)),
                headline(&of_b, runs[1].head.scenario.unit(), names(&runs[1].head))
            ),
            facts: [("A", &runs[0]), ("B", &runs[1])]
                .map(|(n, r)| {
                    (n.to_owned(), format!("{}: {}, {}", r.path.display(), r.head.begun, r.head.machine.cpu))
                })
                .to_vec(),
            findings: Vec::new(),
            broken: Vec::new(),
            unsteady: Vec::new(),
            charts: chart(&pairs),
            tables: vec![table],
            method: vec!["Ratios of medians of paired ratios, each side resampled by itself.".to_owned()],
            figures: "[]".to_owned(),
        };
        put(path, &render(&page)?)?;
    }
    Ok(text)
}

fn significance(e: Option<Estimate>) -> &'static str {
    if e.is_some_and(|e| e.low > 1.0 || e.high < 1.0) { " *" } else { "" }
}

fn chart(pairs: &[(&Point, &Point)]) -> Vec<super::charts::Chart> {
    let words: Vec<String> = pairs.iter().map(|(p, _)| p.step.to_string()).collect();
    let a: Vec<_> = pairs.iter().map(|(p, _)| p.cpu_per_query.or(p.throughput)).collect();
    let b: Vec<_> = pairs.iter().map(|(_, q)| q.cpu_per_query.or(q.throughput)).collect();
    vec![super::charts::two_runs(&words, &a, &b)]
}

/// Formats a table for terminals.
fn plain(table: &Table, a: &Path, b: &Path) -> String {
    let width = |i: usize| {
        let cells = table.rows.iter().filter_map(|r| r.get(i)).chain(table.columns.get(i));
        cells.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut text = format!("A: {}\nB: {}\n{}\n", a.display(), b.display(), line(&table.columns));
    for row in &table.rows {
        text.push_str(&line(row));
        text.push('\n');
    }
    text.push_str(&table.note);
    text
}
