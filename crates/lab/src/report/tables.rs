//! Tables of the report.

use super::figures::{OfSecond, Point};
use crate::record::Side;
use crate::stats::{self, Estimate};
use serde::Serialize;
use serde_json::Value;

/// A table: words in the first column, mostly figures in the others.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The title.
    pub title: String,
    /// A note that the reader needs before reading the table.
    pub note: String,
    /// The heads of the columns.
    pub columns: Vec<String>,
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
}

/// Formats a ratio with its interval.
pub fn ratio(e: Option<Estimate>) -> String {
    e.map_or_else(|| "–".to_owned(), |e| format!("×{:.3} ({:.3}–{:.3})", e.value, e.low, e.high))
}

/// Formats a number with as many digits as are useful.
pub fn number(v: f64) -> String {
    match v.abs() {
        a if !v.is_finite() || a == 0.0 => "0".to_owned(),
        a if a >= 1000.0 => thousands(v),
        a if a >= 100.0 || a.fract() == 0.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 0.1 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

fn thousands(v: f64) -> String {
    let digits = format!("{:.0}", v.abs());
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    if v < 0.0 { format!("-{out}") } else { out }
}

fn percent(v: f64) -> String {
    format!("{:.1}%", v * 100.0)
}

pub(super) fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Returns the singular of a unit of windows.
pub(super) fn one_of(unit: &str) -> &str {
    if unit == "queries" { "query" } else { unit.trim_end_matches('s') }
}

/// Returns the main table, with all points.
pub fn gains(points: &[Point], unit: &str, names: [&str; 2]) -> Table {
    let [with, without] = names;
    let columns = vec![
        "point".to_owned(),
        format!("{unit}/s, {without}"),
        format!("{unit}/s, {with}"),
        "throughput gain (95%)".to_owned(),
        format!("CPU µs per {}, {without}", one_of(unit)),
        with.to_owned(),
        "CPU gain (95%)".to_owned(),
        "user CPU gain, pooled (95%)".to_owned(),
        "server CPUs used, both".to_owned(),
        "pairs (void, outliers)".to_owned(),
    ];
    let rows = points
        .iter()
        .filter(|p| !p.sides.is_empty())
        .map(|p| {
            let side = |s: Side, f: fn(&super::figures::SideFigures) -> f64| {
                p.sides.get(&s).map_or_else(|| "–".to_owned(), |x| number(f(x)))
            };
            let name = if p.whole { p.step.to_string() } else { format!("{} (broken off)", p.step) };
            vec![
                name,
                side(Side::Without, |f| f.rate.value),
                side(Side::With, |f| f.rate.value),
                ratio(p.throughput),
                side(Side::Without, |f| f.cpu_us),
                side(Side::With, |f| f.cpu_us),
                ratio(p.cpu_per_query),
                ratio(p.user_cpu),
                format!("{} / {}", side(Side::Without, |f| f.cpus.value), side(Side::With, |f| f.cpus.value)),
                format!("{} ({}, {})", p.pairs, p.void, p.outliers),
            ]
        })
        .collect();
    Table {
        title: "All points".to_owned(),
        note:
            "Gains above 1 are for whet. Medians of ratios within pairs of windows; intervals by bootstrap."
                .to_owned(),
        columns,
        rows,
    }
}

/// Returns the statistics of per-second samples. `None` if no load recorded them.
pub fn seconds(points: &[Point], names: [&str; 2]) -> Option<Table> {
    let mut rows = Vec::new();
    for p in points.iter().filter(|p| !p.seconds.is_empty()) {
        let mut kinds: Vec<(&str, OfSecond)> = vec![
            ("transactions/s", |s| s.tps),
            ("response, ms", |s| s.response_ms),
            ("95th percentile, ms", |s| s.p95_ms),
            ("server CPUs", |s| s.cpus),
        ];
        if p.seconds.iter().any(|s| s.iowait.is_some()) {
            kinds.push(("idle CPU, %", |s| (s.idle - s.iowait.unwrap_or(0.0)) * 100.0));
            kinds.push(("CPU waiting for a disk, %", |s| s.iowait.unwrap_or(0.0) * 100.0));
        } else {
            kinds.push(("CPU idle or waiting for a disk, %", |s| s.idle * 100.0));
        }
        for (kind, get) in kinds {
            for (side, name) in [Side::Without, Side::With].into_iter().zip([names[1], names[0]]) {
                let values: Vec<f64> = p.seconds.iter().filter(|s| s.side == side).map(get).collect();
                let Some(s) = stats::summary(&values) else { continue };
                let figures = [s.mean, s.deviation, s.p95, s.max].map(number);
                let mut row = vec![p.step.to_string(), kind.to_owned(), name.to_owned(), s.count.to_string()];
                row.extend(figures);
                rows.push(row);
            }
        }
    }
    let columns =
        strings(["point", "what", "side", "seconds", "mean", "std. deviation", "95th percentile", "maximum"]);
    let title = "Each second".to_owned();
    let note =
        "Of all seconds of a side's blocks; the seconds after a change of sides are left out.".to_owned();
    (!rows.is_empty()).then_some(Table { title, note, columns, rows })
}

/// Returns the latencies of all windows together. `None` if there are none.
pub fn latencies(points: &[Point], names: [&str; 2]) -> Option<Table> {
    let mut rows = Vec::new();
    for p in points {
        for l in &p.latencies {
            let side = if l.side == Side::With { names[0] } else { names[1] };
            let at = |wanted: f64| {
                let found = l.percentiles.iter().find(|(p, _)| (p - wanted).abs() < 1e-9);
                found.map_or_else(|| "–".to_owned(), |(_, v)| number(*v))
            };
            rows.push(vec![
                p.step.to_string(),
                l.of.clone(),
                side.to_owned(),
                thousands(l.count as f64),
                number(l.mean_ms),
                at(50.0),
                at(95.0),
                at(99.0),
                at(99.9),
                number(l.max_ms),
            ]);
        }
    }
    let columns = strings([
        "point", "request", "side", "requests", "mean, ms", "50%", "95%", "99%", "99.9%", "maximum",
    ]);
    let note = "At a fixed rate, counted from the moment a request was meant for, so that waiting behind a slow one is in it."
        .to_owned();
    (!rows.is_empty()).then_some(Table { title: "Response times".to_owned(), note, columns, rows })
}

/// Returns the conditions of the data. Each has the number of points that checked it, and what was found
/// where it does not hold.
pub fn checks(points: &[Point]) -> Option<Table> {
    let mut rows: Vec<(&str, usize, Vec<String>)> = Vec::new();
    for (p, (name, ok, found)) in points.iter().flat_map(|p| p.checks.iter().map(move |c| (p, c))) {
        let at = rows.iter().position(|r| r.0 == name).unwrap_or_else(|| {
            rows.push((name, 0, Vec::new()));
            rows.len() - 1
        });
        let Some(row) = rows.get_mut(at) else { continue };
        row.1 += 1;
        if !ok {
            row.2.push(format!("{}: {found}", p.step));
        }
    }
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, checked, broken)| {
            let word = if broken.is_empty() { "holds" } else { "DOES NOT HOLD" };
            vec![name.to_owned(), checked.to_string(), word.to_owned(), broken.join("; ")]
        })
        .collect();
    let columns = strings(["condition", "points", "", "found"]);
    let note = "Of the specification's consistency conditions, after the load and after the run.".to_owned();
    (!rows.is_empty()).then_some(Table { title: "Consistency".to_owned(), note, columns, rows })
}

/// Returns what `whet optimize` reported in each step that ran it.
pub fn whet(points: &[Point]) -> Option<Table> {
    let rows: Vec<Vec<String>> = points
        .iter()
        .filter_map(|p| {
            let o = p.optimize.as_ref()?;
            let at = |path: &str| o.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
            Some(vec![
                p.step.to_string(),
                o.get("source").and_then(Value::as_str).unwrap_or("–").to_owned(),
                number(at("/functions/cloned")),
                number(at("/functions/refused")),
                percent(at("/coverage")),
                number(at("/code_bytes") / 1024.0),
                number(at("/stop_ms/max")),
                number(at("/seconds")),
                number(at("/whet_peak_rss_mb")),
            ])
        })
        .collect();
    let columns = strings([
        "run in",
        "profile from",
        "functions rebuilt",
        "left alone",
        "user samples in them",
        "KiB of clones",
        "longest stop, ms",
        "took, s",
        "whet's memory, MB",
    ]);
    let title = "What whet did".to_owned();
    (!rows.is_empty()).then_some(Table { title, note: String::new(), columns, rows })
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_have_a_useful_number_of_digits() {
        let shown: Vec<String> =
            [0.0, 3.0, 0.01234, 1.234, 12.34, 123.4, 1234.0, 1_234_567.8].map(number).to_vec();
        assert_eq!(shown, ["0", "3", "0.012", "1.23", "12.3", "123", "1,234", "1,234,568"]);
    }
}
