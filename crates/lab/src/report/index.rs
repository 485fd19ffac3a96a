//! One page of many runs: what each found, and the A/A control of each.

use super::charts::{Chart, SECOND, WITH, axis, category, dots, mark_one};
use super::figures::{Point, distinct};
use super::headline::{headline, range};
use super::page::{Link, Page, control, names, points, put, render, write_points};
use super::tables::{Table, ratio, strings};
use crate::control::{Control, Verdict};
use crate::error::Error;
use crate::folder::Run;
use crate::stats::Estimate;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Returns a figure of a run.
type Figure = fn(&Entry) -> Option<Estimate>;

/// A run with its figures.
#[derive(Debug)]
struct Entry {
    /// The path of its folder, from the page's folder.
    name: String,
    run: Run,
    points: Vec<Point>,
    control: Control,
}

/// Writes the report of each run, and to `output` a page that links to them. Returns the page's path.
///
/// # Errors
/// [`Error::NoRun`] if a run cannot be read; [`Error::File`] if a page cannot be written.
pub fn index(paths: &[PathBuf], output: &Path) -> Result<String, Error> {
    let beside = output.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new("."));
    let beside = beside.canonicalize().map_err(Error::file(beside))?;
    let entry = |path: &PathBuf| {
        let run = Run::read(path)?;
        let folder = path.canonicalize().map_err(Error::file(path))?;
        let points = points(&run);
        write_points(&run, &points, None)?;
        let control = control(&run.head, &points);
        Ok(Entry { name: relative(&beside, &folder), run, points, control })
    };
    let entries = paths.iter().map(entry).collect::<Result<Vec<Entry>, Error>>()?;
    let page = Page {
        title: "whet-lab: all results".to_owned(),
        lead: lead(&entries),
        links: entries.iter().map(link).collect(),
        charts: vec![gains_chart(&entries), controls_chart(&entries)],
        tables: vec![gains(&entries), controls(&entries), machines(&entries)],
        method: vec![
            "Each run's page has its options, its machine, every step and the method. All figures are computed from the raw data in \
             the run's folder."
                .to_owned(),
        ],
        figures: "[]".to_owned(),
        ..Page::default()
    };
    put(output, &render(&page)?)?;
    Ok(output.display().to_string())
}

fn lead(entries: &[Entry]) -> String {
    let unfit = entries.iter().filter(|e| !e.control.may_publish()).count();
    let words = match unfit {
        0 => "The A/A control of each passed.".to_owned(),
        1 => "One is not to be published: its A/A control failed or is missing.".to_owned(),
        n => format!("{n} are not to be published: their A/A controls failed or are missing."),
    };
    format!("{} run{}. {words}", entries.len(), if entries.len() == 1 { "" } else { "s" })
}

fn link(e: &Entry) -> Link {
    let head = &e.run.head;
    let found = headline(&e.points, head.scenario.unit(), names(head));
    let warning = if e.control.may_publish() { "" } else { " Not to be published." };
    Link {
        to: encoded(&format!("{}/report.html", e.name)),
        name: e.name.clone(),
        words: format!("{}, {found}{warning}", head.scenario.name()),
    }
}

/// Returns the different values of all points, in their order.
fn each(points: &[Point], get: impl Fn(&Point) -> String) -> String {
    distinct(points.iter().map(get)).join(", ")
}

fn gains(entries: &[Entry]) -> Table {
    let row = |e: &Entry| {
        vec![
            e.name.clone(),
            e.run.head.scenario.name().to_owned(),
            each(&e.points, |p| p.step.server.clone()),
            each(&e.points, |p| p.step.load.clone()),
            e.points.iter().filter(|p| p.throughput.is_some()).count().to_string(),
            ratio(range(&e.points, |p| p.cpu_per_query)),
            ratio(range(&e.points, |p| p.throughput)),
        ]
    };
    Table {
        title: "What each run found".to_owned(),
        note: "The median of the gains at all points, with the lowest and the highest in brackets. Gains above 1 are for whet."
            .to_owned(),
        columns: strings(["run", "scenario", "servers", "loads", "points", "CPU gain", "throughput gain"]),
        rows: entries.iter().map(row).collect(),
    }
}

fn controls(entries: &[Entry]) -> Table {
    let row = |e: &Entry| {
        let verdict = match e.control.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED: not to be published",
            Verdict::Missing => "missing: not to be published",
        };
        let Control { pairs, throughput, cpu, .. } = &e.control;
        vec![
            e.name.clone(),
            e.run.head.scenario.name().to_owned(),
            pairs.to_string(),
            ratio(*throughput),
            ratio(*cpu),
            verdict.to_owned(),
        ]
    };
    Table {
        title: "The A/A control of each run".to_owned(),
        note: "Pairs of windows in which nothing was changed; medians with 99% intervals. A control fails where an interval excludes 1; \
               of a hundred sound runs about two fail, one by each figure."
            .to_owned(),
        columns: strings(["run", "scenario", "A/A pairs", "throughput", "CPU time", "verdict"]),
        rows: entries.iter().map(row).collect(),
    }
}

fn machines(entries: &[Entry]) -> Table {
    let row = |e: &Entry| {
        let machine = &e.run.head.machine;
        let m = machine.server.as_ref().unwrap_or(&machine.host);
        vec![
            e.name.clone(),
            m.cpu.clone(),
            m.cpus.to_string(),
            (m.memory_mib / 1024).to_string(),
            m.kernel.clone(),
            format!("{:.1}%", machine.noise * 100.0),
            e.run.head.whet.clone(),
            e.run.head.begun.clone(),
        ]
    };
    Table {
        title: "Where and when each was measured".to_owned(),
        note: "Of a server on another host, CPU, memory and kernel are its own; the spread is that of the clients' host.".to_owned(),
        columns: strings(["run", "CPU", "CPUs", "GiB", "kernel", "spread of equal work", "whet", "begun"]),
        rows: entries.iter().map(row).collect(),
    }
}

fn gains_chart(entries: &[Entry]) -> Chart {
    chart(
        entries,
        "Gains of all runs",
        "The median of the gains at all points of a run, with the lowest and the highest. The line at 1 is “no difference”.",
        [
            ("CPU time, without / with", |e| range(&e.points, |p| p.cpu_per_query)),
            ("throughput, with / without", |e| range(&e.points, |p| p.throughput)),
        ],
    )
}

fn controls_chart(entries: &[Entry]) -> Chart {
    chart(
        entries,
        "A/A controls of all runs",
        "Pairs in which nothing was changed, 99% intervals: each must hold the line at 1.",
        [("CPU time", |e| e.control.cpu), ("throughput", |e| e.control.throughput)],
    )
}

/// Draws two figures of each run as dots with intervals, beside the line at 1.
fn chart(entries: &[Entry], title: &str, note: &str, kinds: [(&str, Figure); 2]) -> Chart {
    let mut series = Vec::new();
    let mut vertical = axis("", false);
    let all = kinds.map(|(name, get)| (name, entries.iter().map(get).collect::<Vec<_>>()));
    if all.iter().flat_map(|(_, estimates)| estimates).flatten().all(|e| e.low > 1.0) {
        // Else the line at 1 would lie below the drawing.
        vertical["min"] = json!(1);
    }
    for ((name, estimates), look) in all.into_iter().zip([WITH, SECOND]) {
        series.extend(dots(name, look, &estimates));
    }
    mark_one(&mut series);
    let runs: Vec<String> = entries.iter().map(|e| e.name.clone()).collect();
    Chart {
        title: title.to_owned(),
        note: format!("{note} The axis does not begin at zero."),
        option: json!({ "xAxis": category("", &runs), "yAxis": vertical, "series": series }),
    }
}

/// Returns the path from one folder to another; both are canonical.
fn relative(from: &Path, to: &Path) -> String {
    let shared = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| "..".to_owned());
    let down = to.components().skip(shared).map(|c| c.as_os_str().to_string_lossy().into_owned());
    let path = up.chain(down).collect::<Vec<_>>().join("/");
    if path.is_empty() { ".".to_owned() } else { path }
}

/// Encodes a path as part of a URL (RFC 3986, section 2.1).
fn encoded(path: &str) -> String {
    let mut url = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_one_folder_to_another() {
        let path = |from: &str, to: &str| relative(Path::new(from), Path::new(to));
        assert_eq!(path("/r", "/r/epyc/stalls"), "epyc/stalls");
        assert_eq!(path("/r/pages", "/r/stalls"), "../stalls");
        assert_eq!(path("/r", "/r"), ".");
        assert_eq!(encoded("a b/50%#1"), "a%20b/50%25%231");
    }
}
