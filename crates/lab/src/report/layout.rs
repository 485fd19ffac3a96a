//! What changes in the code that executes, by whet's exact counts of the rebuilt functions.

use super::charts::{COLOURS, Chart, category, round};
use super::figures::Point;
use super::tables::{Table, number, strings};
use serde_json::{Value, json};

/// Returns the figures of each layout. `None` if there are none.
pub fn table(points: &[Point]) -> Option<Table> {
    let rows: Vec<Vec<String>> = points.iter().flat_map(rows).collect();
    (!rows.is_empty()).then(|| Table {
        title: "Layout, by exact counts".to_owned(),
        note: "Not measured: from exact counts of every edge of the rebuilt functions and the bytes as they lie, before and after. \
               Hot lines and pages hold 99% of the executed bytes."
            .to_owned(),
        columns: strings(["point", "what", "before", "after", "change"]),
        rows,
    })
}

/// Draws how the figures of each load change, in percent of the figures before. Takes the load's first step,
/// because other steps have much the same figures. A chart has as many loads as there are colours.
pub fn charts(points: &[Point]) -> Vec<Chart> {
    let mut rows: Vec<(String, Vec<(&'static str, f64)>)> = Vec::new();
    for p in points {
        let changes: Vec<_> =
            changes(p).into_iter().map(|(what, b, a)| (what, (a / b - 1.0) * 100.0)).collect();
        let name = format!("{}, {}", p.step.load, p.step.server);
        if !changes.is_empty() && rows.iter().all(|r| r.0 != name) {
            rows.push((name, changes));
        }
    }
    let chart = |rows: &[(String, Vec<(&'static str, f64)>)]| {
        let words: Vec<String> = rows.first()?.1.iter().map(|(what, _)| (*what).to_owned()).collect();
        let series: Vec<Value> = rows
            .iter()
            .zip(COLOURS)
            .map(|((name, changes), colour)| {
                let data: Vec<f64> = changes.iter().map(|(_, c)| round(*c)).collect();
                json!({ "type": "bar", "name": name, "color": colour, "barMaxWidth": 28, "data": data })
            })
            .collect();
        Some(Chart {
            title: "Layout, by exact counts: change".to_owned(),
            note: "Not measured: by exact counts and the bytes as they lie.".to_owned(),
            option: json!({ "xAxis": category("", &words), "yAxis": { "type": "value", "name": "%" }, "series": series }),
        })
    };
    rows.chunks(COLOURS.len()).filter_map(chart).collect()
}

/// Returns the figures of a step before and after the rebuild, with the name of each.
fn changes(p: &Point) -> Vec<(&'static str, f64, f64)> {
    const KINDS: [(&str, &str); 7] = [
        ("taken_branches", "taken branches"),
        ("instructions", "executed instructions"),
        ("calls", "calls"),
        ("hot_lines", "hot cache lines"),
        ("hot_pages", "hot pages"),
        ("lines", "cache lines touched"),
        ("pages", "pages touched"),
    ];
    let Some(dyno) = p.optimize.as_ref().and_then(|o| o.get("dyno")) else { return Vec::new() };
    let get = |when: &str, what: &str| dyno.get(when).and_then(|d| d.get(what)).and_then(Value::as_f64);
    KINDS
        .iter()
        .filter_map(|(key, words)| Some((*words, get("before", key)?, get("after", key)?)))
        .filter(|(_, before, _)| *before > 0.0)
        .collect()
}

fn rows(p: &Point) -> Vec<Vec<String>> {
    changes(p)
        .into_iter()
        .map(|(what, before, after)| {
            let change = format!("{:+.1}%", (after / before - 1.0) * 100.0);
            vec![p.step.to_string(), what.to_owned(), number(before), number(after), change]
        })
        .collect()
}
