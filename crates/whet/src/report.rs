//! `whet report`: one HTML page about one process.
//!
//! The page is well-formed XML as well as HTML, so that strict parsers find text that is not escaped. It has
//! no script and loads nothing; its own policy forbids both.

mod flame;
mod gain;
mod maps;

use crate::file;
use crate::human::dyno_rows;
use crate::output::Output;
use crate::text::{bytes, file_name, grouped, percent, printable};
use engine::{Debuginfod, Error, ExitCode, FunctionReport, Overview, Pid};
use gain::Gain;
use maps::Maps;
use minijinja::{Environment, value::Serde};
use serde::Serialize;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// The template of the page. What is between braces is filled in.
const PAGE: &str = include_str!("report/page.html");
/// Most functions in the table.
const FUNCTIONS: usize = 60;

/// The answer of `report`.
#[derive(Debug, Serialize)]
struct Written<'a> {
    pid: i32,
    file: &'a Path,
    bytes: usize,
    /// True if the page shows where code runs. This needs counts.
    heat: bool,
    /// The number of flame graphs on the page: before, and now.
    flame_graphs: usize,
}

pub fn run(
    pid: i32,
    path: &Path,
    measure: Option<&Path>,
    sampling: Duration,
    out: &Output,
) -> Result<ExitCode, Error> {
    let gain = measure.map(|m| gain::read(m, pid)).transpose()?;
    let mut debuginfod = Debuginfod::from_environment();
    let overview = engine::overview(Pid(pid), sampling, &mut debuginfod)?;
    debuginfod.warning().iter().for_each(|w| out.warn(w));
    let page = page(&overview, gain.as_ref()).map_err(|e| Error::Page(format!("{e:#}")))?;
    file::write_whole(path, page.as_bytes())?;
    let flame_graphs = overview.flame.as_ref().map_or(0, |f| 1 + usize::from(f.after.is_some()));
    let heat = overview.heat.is_some();
    let written = Written { pid, file: path, bytes: page.len(), heat, flame_graphs };
    out.answer(&written, |w| format!("{}: {}", w.file.display(), bytes(w.bytes as u64)));
    Ok(ExitCode::Ok)
}

/// One function's row.
#[derive(Debug, Serialize)]
struct FunctionRow {
    name: String,
    /// The symbol, if the name in the source differs.
    symbol: String,
    samples: String,
    share: String,
    /// Its samples as a percentage of the hottest function's: the width of a bar.
    bar: u64,
    before: String,
    after: String,
    warm: String,
    bytes: String,
    /// Why the function, or its entry, was left alone.
    reason: String,
}

/// One reason why functions were left alone.
#[derive(Debug, Serialize)]
struct RefusalRow {
    code: String,
    why: String,
    functions: usize,
    /// The hottest of these functions.
    example: String,
}

/// One figure, before and after.
#[derive(Debug, Serialize)]
struct DynoRow {
    name: &'static str,
    depth: usize,
    before: String,
    after: String,
    change: String,
}

fn page(o: &Overview, gain: Option<&Gain>) -> Result<String, minijinja::Error> {
    let mut env = Environment::new();
    env.add_template("page.html", PAGE)?;
    let (r, s) = (&o.explained, &o.status);
    let dyno = r.dyno.as_ref();
    let maps: Option<Maps> = o.heat.as_ref().map(maps::draw);
    let page = json!({
        "name": printable(file_name(&r.exe)),
        "exe": printable(&r.exe),
        "pid": r.pid,
        "state": s.state.word(),
        "generation": s.generation,
        "since": s.since,
        "version": env!("CARGO_PKG_VERSION"),
        "shuffle": r.shuffle.map(|seed| seed.to_string()),
        "coverage": s.coverage.map(percent),
        "coverage_main": s.coverage_main.map(percent),
        "cloned": grouped(s.cloned as u64),
        "refused": grouped(s.refused as u64),
        "code": bytes(s.code_bytes),
        "mapped": bytes(s.mapped_bytes),
        "redirects": grouped(s.redirects as u64),
        "stop": s.stop_ms.map(|ms| format!("{ms:.1} ms")),
        "taken": dyno.map(|d| change(d.before.taken_branches, d.after.taken_branches)),
        "hot_lines": dyno.map(|d| change(d.before.hot_lines, d.after.hot_lines)),
        "hot_pages": dyno.map(|d| change(d.before.hot_pages, d.after.hot_pages)),
        "profile": o.profile.as_ref().map(|p| json!({
            "when": p.when,
            "samples": grouped(p.samples),
            "sampled": format!("{:.1}", p.sampled_seconds),
            "counted": (p.counted_seconds > 0.0).then(|| format!("{:.1}", p.counted_seconds)),
        })),
        "maps": maps,
        "flames": o.flame.as_ref().map(|f| flame::draw(f, file_name(&r.exe))),
        "gain": gain,
        "functions": functions(&r.functions, r.samples),
        "more": r.functions.len().saturating_sub(FUNCTIONS),
        "refusals": refusals(o),
        "dyno_functions": dyno.map(|d| grouped(d.functions as u64)),
        "dyno": dyno.map(|d| dyno_rows(d).map(|(name, before, after)| DynoRow {
            name: name.trim_start(),
            depth: (name.len() - name.trim_start().len()) / 2,
            before: grouped(before),
            after: grouped(after),
            change: if before > 0 { change(before, after) } else { String::new() },
        })),
    });
    env.get_template("page.html")?.render(Serde(page))
}

/// Formats a change in percent.
fn change(before: u64, after: u64) -> String {
    if before == 0 {
        return "–".to_owned();
    }
    // A minus sign as wide as a digit.
    format!("{:+.1}%", (after as f64 / before as f64 - 1.0) * 100.0).replace('-', "−")
}

fn functions(all: &[FunctionReport], samples: u64) -> Vec<FunctionRow> {
    let most = all.iter().map(|f| f.samples).max().unwrap_or(0).max(1);
    all.iter()
        .take(FUNCTIONS)
        .map(|f| {
            let source = engine::demangled(&f.name);
            FunctionRow {
                symbol: if source.is_some() { printable(&f.name) } else { String::new() },
                name: printable(source.as_deref().unwrap_or(&f.name)),
                samples: grouped(f.samples),
                share: if samples > 0 { percent(f.samples as f64 / samples as f64) } else { String::new() },
                bar: f.samples.saturating_mul(100) / most,
                before: f.at.clone(),
                after: f.clone.clone().unwrap_or_default(),
                warm: f.warm.clone().unwrap_or_default(),
                bytes: f
                    .clone_bytes
                    .map_or(String::new(), |n| grouped(n.saturating_add(f.warm_bytes.unwrap_or(0)))),
                reason: f.reason.as_deref().map(engine::reason_in_words).unwrap_or_default(),
            }
        })
        .collect()
}

/// Returns the reasons, the most frequent first.
fn refusals(o: &Overview) -> Vec<RefusalRow> {
    let mut all: Vec<RefusalRow> = o
        .explained
        .refusals
        .iter()
        .map(|(code, &functions)| {
            let is = |f: &&FunctionReport| f.reason.as_ref() == Some(code);
            let hottest = o.explained.functions.iter().filter(is).max_by_key(|f| f.samples);
            RefusalRow {
                code: printable(code),
                why: engine::reason_in_words(code),
                functions,
                example: hottest.map(|f| printable(&engine::short_name(&f.name))).unwrap_or_default(),
            }
        })
        .collect();
    all.sort_by_key(|r| std::cmp::Reverse(r.functions));
    all
}
