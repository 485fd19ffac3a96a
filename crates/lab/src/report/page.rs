//! The page: one self-contained HTML file.

use super::charts::{self, Chart};
use super::events;
use super::figures::{Point, STEAL_LIMIT};
use super::headline::headline;
use super::layout;
use super::over_time;
use super::response;
use super::scaling;
use super::side_by_side;
use super::tables::{self, Table};
use crate::control::Control;
use crate::error::Error;
use crate::events::table;
use crate::folder::Run;
use crate::machine::{Disk, Machine};
use crate::record::{FamilyChange, Head};
use crate::stats::{OUTLIER_SCORE, RESAMPLES};
use minijinja::value::Serde;
use minijinja::{Environment, context};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

const TEMPLATE: &str = include_str!("../../assets/report.html");
const STYLE: &str = include_str!("../../assets/report.css");
const SCRIPT: &str = include_str!("../../assets/report.js");
const LIBRARY: &str = include_str!("../../assets/echarts.js");

/// Computes the figures of all steps of a run.
pub fn points(run: &Run) -> Vec<Point> {
    run.steps().iter().map(|s| Point::of(s, run.head.seed)).collect()
}

/// Judges the A/A control of a run: its A/A pairs, or all pairs of a run that is an A/A control itself.
pub fn control(head: &Head, points: &[Point]) -> Control {
    let all = |get: fn(&Point) -> &Vec<f64>| points.iter().flat_map(get).copied().collect::<Vec<f64>>();
    let (rates, costs) = if head.scenario.common().null {
        (all(|p| &p.ratios), all(|p| &p.cpu_ratios))
    } else {
        (all(|p| &p.control_ratios), all(|p| &p.control_cpu_ratios))
    };
    Control::of(&rates, &costs, head.seed)
}

/// Returns the names of the sides.
pub fn names(head: &Head) -> [&'static str; 2] {
    if head.scenario.common().null { ["A (nothing)", "B (nothing)"] } else { ["with whet", "without"] }
}

/// Describes the A/A control of a run in words.
pub fn verdict(run: &Run) -> String {
    control(&run.head, &points(run)).words()
}

/// Writes the report and returns its path.
///
/// # Errors
/// [`Error::File`] if the file cannot be written; [`Error::Bug`] for faults of the template.
pub fn write(run: &Run, output: Option<&Path>) -> Result<PathBuf, Error> {
    write_points(run, &points(run), output)
}

/// As [`write()`], for points that were computed before.
///
/// # Errors
/// As [`write()`].
pub fn write_points(run: &Run, points: &[Point], output: Option<&Path>) -> Result<PathBuf, Error> {
    let path = output.map_or_else(|| run.path.join("report.html"), Path::to_owned);
    put(&path, &html(run, points)?)?;
    Ok(path)
}

/// Returns the description of the run and all figures of its report, as JSON. `head` is the content of
/// run.json, without the path of whet on that machine. `points` are the steps.
///
/// # Errors
/// [`Error::Bug`] if a figure has no form in JSON.
pub fn summary(run: &Run) -> Result<String, Error> {
    let mut head = run.head.clone();
    head.scenario.common_mut().whet = None;
    let points = points(run);
    let control = control(&run.head, &points);
    let may_publish = control.may_publish();
    let summary =
        serde_json::json!({ "head": head, "control": control, "may_publish": may_publish, "points": points });
    serde_json::to_string_pretty(&summary).map_err(|e| Error::Bug(e.to_string()))
}

/// Writes a whole file, or keeps the old file.
pub fn put(path: &Path, text: &str) -> Result<(), Error> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&beside);
        Error::File { path: path.to_owned(), source }
    })
}

fn html(run: &Run, points: &[Point]) -> Result<String, Error> {
    let names = names(&run.head);
    let unit = run.head.scenario.unit();
    let mut drawn = side_by_side::charts(points, unit, names);
    drawn.extend(charts::over_threads_where_varied(points, unit, names));
    drawn.extend(charts::over_cpus(points, unit, names));
    drawn.extend(charts::cpu_use(points, names));
    drawn.extend(response::charts(points, names));
    drawn.extend(charts::percentiles(points, names));
    drawn.extend(over_time::charts(points, names));
    drawn.extend(events::charts(points, names, run.head.seed));
    drawn.extend(layout::charts(points));
    let mut all = vec![tables::gains(points, unit, names)];
    all.extend(side_by_side::table(points, unit, names, run.head.seed));
    all.extend(scaling::table(points, names));
    all.extend(tables::seconds(points, names));
    all.extend(response::table(points, names));
    all.extend(tables::latencies(points, names));
    let host = &run.head.machine.host;
    all.extend(events::tables(points, names, table(&host.identity, host.smt)));
    all.extend(layout::table(points));
    all.extend(tables::whet(points));
    all.extend(tables::checks(points));
    let broken: Vec<String> = points
        .iter()
        .filter(|p| !p.whole)
        .map(|p| {
            format!("{}: {}", p.step, p.broken.as_deref().unwrap_or("the lab ended in the middle of it"))
        })
        .collect();
    let unsteady: Vec<String> =
        points.iter().filter(|p| p.steady == Some(false)).map(|p| p.step.to_string()).collect();
    let mixed: Vec<String> = points.iter().filter_map(mixed).collect();
    let figures = serde_json::to_string(points).map_err(|e| Error::Bug(e.to_string()))?;
    let control = control(&run.head, points);
    let page = Page {
        control: control.words(),
        unfit: !control.may_publish(),
        title: format!("whet-lab {}", run.head.scenario.name()),
        lead: headline(points, unit, names),
        facts: facts(&run.head, points),
        findings: run.head.machine.findings.clone(),
        broken,
        mixed,
        unsteady,
        charts: drawn,
        tables: all,
        method: method(&run.head),
        figures,
        ..Page::default()
    };
    render(&page)
}

/// A link to another page.
#[derive(Debug, Serialize)]
pub struct Link {
    /// The URL.
    pub to: String,
    /// The text of the link.
    pub name: String,
    /// What is there.
    pub words: String,
}

/// The content of a page.
#[derive(Default, Debug, Serialize)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// One sentence with the result.
    pub lead: String,
    /// Links to other pages.
    pub links: Vec<Link>,
    /// The result of the A/A control.
    pub control: String,
    /// Whether the page is not to be published.
    pub unfit: bool,
    /// Names and values.
    pub facts: Vec<(String, String)>,
    /// The reasons to doubt the figures.
    pub findings: Vec<String>,
    /// Steps that are not finished.
    pub broken: Vec<String>,
    /// Steps in which whet left processes of a family alone.
    pub mixed: Vec<String>,
    /// Loads that never became steady.
    pub unsteady: Vec<String>,
    /// Charts.
    pub charts: Vec<Chart>,
    /// Tables.
    pub tables: Vec<Table>,
    /// The paragraphs on the method.
    pub method: Vec<String>,
    /// All figures as JSON.
    pub figures: String,
}

/// Returns the HTML of a page.
///
/// # Errors
/// [`Error::Bug`] for faults of the template.
pub fn render(page: &Page) -> Result<String, Error> {
    let bug = |e: minijinja::Error| Error::Bug(format!("the report's template: {e:#}"));
    let mut environment = Environment::new();
    // Cells with words are aligned left, cells with figures right.
    environment.add_test("word", |cell: &str| {
        let of = |kind: fn(char) -> bool| cell.chars().filter(|c| kind(*c)).count();
        of(char::is_alphabetic) > of(|c| c.is_ascii_digit())
    });
    environment.add_template("report.html", TEMPLATE).map_err(bug)?;
    let options: Vec<&serde_json::Value> = page.charts.iter().map(|c| &c.option).collect();
    let options = serde_json::to_string(&options).map_err(|e| Error::Bug(e.to_string()))?;
    environment
        .get_template("report.html")
        .and_then(|t| {
            t.render(context! {
                page => Serde(page),
                options => inert(&options),
                figures => inert(&page.figures),
                style => STYLE,
                script => SCRIPT,
                library => LIBRARY,
            })
        })
        .map_err(bug)
}

/// Escapes JSON for a script element, so that no text in the JSON can end the element.
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// Describes how many processes of a family whet left alone. `None` if it left none alone.
fn mixed(p: &Point) -> Option<String> {
    let partial: Vec<&FamilyChange> = p.family.iter().filter(|c| c.left_alone > 0).collect();
    let most = partial.iter().max_by_key(|c| c.left_alone)?;
    Some(format!(
        "{}: {} of {} changes, at most {} of {} processes left alone (whet {}: {})",
        p.step,
        partial.len(),
        p.family.len(),
        most.left_alone,
        most.processes,
        most.command,
        most.why.as_deref().unwrap_or("no reason")
    ))
}

/// Describes the server of a point.
fn server(p: &Point) -> String {
    let options = if p.options.is_empty() { String::new() } else { format!(", {}", p.options.join(" ")) };
    format!("{}: {}{options}", p.step.server, p.server_version)
}

fn facts(head: &Head, points: &[Point]) -> Vec<(String, String)> {
    let Machine { host, server: elsewhere, disks, steal, busy, noise, .. } = &head.machine;
    let mut placements: Vec<String> =
        points.iter().filter_map(|p| Some(p.placement.as_ref()?.words())).collect();
    placements.dedup();
    let disks: Vec<String> = disks.iter().map(Disk::words).collect();
    let or = |words: String| if words.is_empty() { "not recorded".to_owned() } else { words };
    let mut servers: Vec<String> = points.iter().map(server).collect();
    servers.dedup();
    let elsewhere = elsewhere.as_ref().map(|there| {
        let topology = there.topology.words();
        let words = format!("{}; {topology}; {}; {}", there.words(), or(there.cache_words()), there.system());
        ("Server's host", words)
    });
    let facts = [
        ("Servers", servers.join("; ")),
        ("Machine", host.words()),
        ("Topology", host.topology.words()),
        ("Caches", or(host.cache_words())),
        ("System", host.system()),
        ("Disks", or(disks.join("; "))),
        ("Load", head.machine.sysbench.clone().unwrap_or_else(|| "the lab's own".to_owned())),
        ("Placement", or(placements.join("; "))),
        (
            "Noise before the run",
            format!(
                "steal {:.1}%, others' CPU {:.1}%, spread of equal work {:.1}%",
                steal * 100.0,
                busy * 100.0,
                noise * 100.0
            ),
        ),
        ("whet", head.whet.clone()),
        ("Lab", format!("whet-lab {}, data version {}", head.lab, head.version)),
        ("Begun", head.begun.clone()),
        ("Seed", head.seed.to_string()),
    ];
    elsewhere.into_iter().chain(facts).map(|(k, v)| (k.to_owned(), v)).collect()
}

fn method(head: &Head) -> Vec<String> {
    let options = serde_json::to_string(&head.scenario).unwrap_or_default();
    vec![
        "Each step runs one load on one server. When its rate is steady (two seconds equal the two before within 5%), pairs of windows are \
         taken: one with whet's code in force, one without, in random order drawn from the seed, with `whet redo` and `whet undo` between. \
         What drifts is nearly the same for both halves of a pair, so ratios within pairs hold where single runs differ by half."
            .to_owned(),
        format!(
            "Figures are medians; intervals are 95%, by percentile bootstrap with {RESAMPLES} resamples. A pair is void where a window saw no query or \
             other guests of the host took more than {:.0}% of the machine. A pair is an outlier where the modified z-score of its logarithmic throughput \
             ratio is above {OUTLIER_SCORE} (Iglewicz and Hoaglin); both kinds are left out of all figures, counted in the table, and kept in the raw data.",
            STEAL_LIMIT * 100.0
        ),
        "In A/A pairs nothing is changed between the halves. The control of the run is the median ratio of all of them; it fails where \
         its 99% interval excludes 1."
            .to_owned(),
        "CPU time is the server's alone, from the kernel's exact accounting; its split into user and system is by sampling ticks and therefore pooled.".to_owned(),
        format!("Options: {options}. Every command with what it printed is in commands.log, all raw data in data.jsonl, beside this file."),
    ]
}
