//! The figures of each second over time, with the seconds in which a load or its server nearly stood still.

use super::charts::{Chart, LOOKS, Look, axis, of_server, round};
use super::figures::{OfSecond, Point, grouped};
use crate::record::{Second, Side};
use crate::stats;
use serde_json::{Value, json};

/// What is drawn over time: the title, the unit, the figure.
type Kind = (&'static str, &'static str, OfSecond);

const THROUGHPUT: Kind = ("transactions per second", "transactions/s", |s| s.tps);
const CPU_USE: Kind = ("CPU use of the server", "CPUs", |s| s.cpus);
const WRITTEN: Kind = ("pages written to the files of tables", "pages", pages);
const KINDS: [Kind; 6] = [
    THROUGHPUT,
    ("response time, 95th percentile", "ms", |s| s.p95_ms),
    CPU_USE,
    WRITTEN,
    ("idle CPU of the machine", "%", |s| (s.idle - s.iowait.unwrap_or(0.0)) * 100.0),
    ("CPU waiting for a disk", "%", |s| s.iowait.unwrap_or(0.0) * 100.0),
];
const NOTE: &str = "Each second; blocks with and without in turn. A dotted line is a stall, or a dip of the server's CPU use \
     (under 60% of its side's median), of a checkpoint if twice the usual number of pages was written; of those close \
     together the first is named. Seconds of A/A pairs, and of the wait after a change of sides, are not recorded. The \
     axis begins at zero.";

/// No checkpoint writes fewer pages in a second than twice this number: the usual number of loads that only read is 0.
const FEW_PAGES: f64 = 50.0;

/// Draws each figure of each point, and CPU use, throughput and written pages of all servers of a load in one chart
/// each.
pub fn charts(points: &[Point], names: [&str; 2]) -> Vec<Chart> {
    let points: Vec<&Point> = points.iter().filter(|p| !p.seconds.is_empty()).collect();
    let alone = points
        .iter()
        .flat_map(|p| KINDS.iter().filter(|k| happens(p, k)).map(move |k| (p, k)))
        .map(|(p, kind)| chart(&p.step.to_string(), &[p], *kind, names));
    let loads = grouped(points.iter().copied(), |p| format!("{}, all servers", p.step.without_server()));
    let overlaid = loads.iter().filter(|(_, servers)| servers.len() > 1).flat_map(|(title, servers)| {
        let kinds = [CPU_USE, THROUGHPUT, WRITTEN].into_iter();
        kinds.filter(|k| servers.iter().any(|p| happens(p, k))).map(|kind| chart(title, servers, kind, names))
    });
    overlaid.chain(alone).collect()
}

/// Returns whether a figure is ever above zero. Nothing waits on a memory disk and in older runs, and loads that only
/// read write no pages.
fn happens(point: &Point, kind: &Kind) -> bool {
    point.seconds.iter().any(|s| kind.2(s) != 0.0)
}

#[expect(clippy::cast_precision_loss, reason = "pages of a second")]
fn pages(second: &Second) -> f64 {
    second.flushed as f64
}

/// Draws one figure of these points over the time since the load of each began.
fn chart(title: &str, points: &[&Point], (what, unit, get): Kind, names: [&str; 2]) -> Chart {
    let mut series = Vec::new();
    for (at, p) in points.iter().enumerate() {
        let first = series.len();
        for ((side, name), look) in Side::BOTH.into_iter().zip(names).zip(LOOKS) {
            let (name, look) = of_server(at, points.len(), &p.step.server, name, look);
            series.push(line(&name, look, &p.seconds, side, get));
        }
        let whose = if points.len() > 1 { format!("{}: ", p.step.server) } else { String::new() };
        let marks = marks(&p.seconds, &whose);
        if let Some(first) =
            series.get_mut(first).and_then(Value::as_object_mut).filter(|_| !marks.is_empty())
        {
            first.insert(
                "markLine".to_owned(),
                json!({ "silent": true, "symbol": "none", "label": { "formatter": "{b}", "fontSize": 10 }, "data": marks }),
            );
        }
    }
    Chart {
        title: format!("{title}: {what}"),
        note: NOTE.to_owned(),
        option: json!({
            "xAxis": { "type": "value", "name": "seconds" },
            "yAxis": axis(unit, true),
            "series": series,
        }),
    }
}

/// Draws the seconds of one side. The line has a gap at each block of the other side.
fn line(name: &str, look: Look, seconds: &[Second], side: Side, get: OfSecond) -> Value {
    let mut data: Vec<Value> = Vec::new();
    let mut block = None;
    for s in seconds.iter().filter(|s| s.side == side) {
        if block.is_some_and(|b| b != s.pair) {
            data.push(json!([round(s.at - 0.5), null]));
        }
        block = Some(s.pair);
        data.push(json!([round(s.at), round(get(s))]));
    }
    json!({ "type": "line", "name": name, "color": look.colour, "dashed": look.dashed, "symbolSize": 4, "data": data })
}

/// Returns stalls and dips as lines to draw. One gets no name if it is too close to the last name.
fn marks(seconds: &[Second], whose: &str) -> Vec<Value> {
    let mut free = f64::NEG_INFINITY;
    let room = seconds.iter().map(|s| s.at).fold(0.0, f64::max) / 5.0;
    let mut all = Vec::new();
    for (at, what) in standstills(seconds) {
        let name = if at >= free { format!("{whose}{what}") } else { String::new() };
        if !name.is_empty() {
            free = at + room;
        }
        all.push(json!({ "xAxis": round(at), "name": name }));
    }
    all
}

/// Returns the seconds in which a load nearly stood still (throughput under 60% of its side's median), or its
/// server did (CPU use, likewise), with their kind. In those of a checkpoint, the server wrote more than twice
/// its median number of pages.
fn standstills(seconds: &[Second]) -> Vec<(f64, &'static str)> {
    let mut found = Vec::new();
    for side in Side::BOTH {
        let mine: Vec<&Second> = seconds.iter().filter(|s| s.side == side).collect();
        let usual = |get: &dyn Fn(&Second) -> f64| {
            stats::median(&mine.iter().map(|s| get(s)).collect::<Vec<f64>>()).unwrap_or(0.0)
        };
        let (rate, cpus, written) = (usual(&|s| s.tps), usual(&|s| s.cpus), usual(&pages).max(FEW_PAGES));
        for second in mine {
            let checkpoint = pages(second) > 2.0 * written;
            let kind = match (second.tps < 0.6 * rate, second.cpus < 0.6 * cpus) {
                (true, _) if checkpoint => "checkpoint stall",
                (true, _) => "stall",
                (false, true) if checkpoint => "checkpoint dip of CPU use",
                (false, true) => "dip of CPU use",
                (false, false) => continue,
            };
            found.push((second.at, kind));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_differ_from_checkpoints_and_from_dips_of_cpu_use() {
        let second = |at: f64, tps: f64, flushed: u64, cpus: f64| Second {
            at,
            pair: 0,
            side: Side::With,
            tps,
            response_ms: 1.0,
            p95_ms: 1.0,
            idle: 0.0,
            iowait: None,
            cpus,
            flushed,
        };
        let seconds = [
            second(1.0, 100.0, 10, 1.5),
            second(2.0, 98.0, 12, 1.6),
            second(3.0, 20.0, 900, 0.3),
            second(4.0, 101.0, 8, 1.5),
            second(5.0, 30.0, 9, 1.5),
            second(6.0, 97.0, 9, 0.5),
            second(7.0, 99.0, 300, 0.4),
            second(8.0, 99.0, 300, 1.5),
            second(9.0, 99.0, 30, 0.4),
        ];
        assert_eq!(
            standstills(&seconds),
            [
                (3.0, "checkpoint stall"),
                (5.0, "stall"),
                (6.0, "dip of CPU use"),
                (7.0, "checkpoint dip of CPU use"),
                (9.0, "dip of CPU use")
            ]
        );
    }
}
