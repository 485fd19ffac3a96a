//! How throughput depends on the number of CPUs.

use super::figures::Point;
use super::tables::{Table, number};
use crate::record::Side;
use crate::stats::Estimate;

/// Tables all points whose number of CPUs was varied, with their efficiency. The base of the efficiency is
/// the fewest CPUs with the same threads per CPU or, if not measured, with the same threads. The table marks
/// points at which more CPUs did less. `None` if the number of CPUs was not varied.
pub fn table(points: &[Point], names: [&str; 2]) -> Option<Table> {
    let mut rows = Vec::new();
    for p in points.iter().filter(|p| !p.sides.is_empty()) {
        let Some(cpus) = p.step.cpus else { continue };
        for (side, name) in [Side::Without, Side::With].into_iter().zip([names[1], names[0]]) {
            let Some(rate) = p.sides.get(&side).map(|s| s.rate) else { continue };
            let fewer: Vec<(&Point, Estimate)> = points
                .iter()
                .filter(|q| {
                    q.step.server == p.step.server
                        && q.step.load == p.step.load
                        && q.step.place == p.step.place
                })
                .filter(|q| q.step.cpus.is_some_and(|c| c < cpus))
                .filter_map(|q| Some((q, q.sides.get(&side)?.rate)))
                .collect();
            let like = |threads_per_cpu: bool| {
                fewer
                    .iter()
                    .filter(|(q, _)| {
                        let other = q.step.cpus.unwrap_or(1);
                        if threads_per_cpu {
                            q.step.threads * cpus == p.step.threads * other
                        } else {
                            q.step.threads == p.step.threads
                        }
                    })
                    .min_by_key(|(q, _)| q.step.cpus)
            };
            let base = like(true).or_else(|| like(false));
            let efficiency =
                base.map(|(q, b)| efficiency(rate.value, cpus, b.value, q.step.cpus.unwrap_or(1)));
            let negative = fewer
                .iter()
                .filter(|(q, _)| q.step.threads <= p.step.threads)
                .any(|(_, b)| rate.high < b.low);
            rows.push(vec![
                p.step.to_string(),
                name.to_owned(),
                number(rate.value * 3600.0),
                format!("{}–{}", number(rate.low * 3600.0), number(rate.high * 3600.0)),
                efficiency.map_or_else(|| "base".to_owned(), |e| format!("{:.0}%", e * 100.0)),
                if negative { "NEGATIVE: fewer CPUs did more" } else { "" }.to_owned(),
            ]);
        }
    }
    let columns = ["point", "side", "queries per hour", "95% interval", "scaling efficiency", ""];
    (!rows.is_empty()).then(|| Table {
        title: "Scaling".to_owned(),
        note: "Efficiency: throughput over what the fewest CPUs would give if each further one did as much, with as many threads per CPU. \
               Negative scaling is pointed out where the whole interval lies below that of fewer CPUs."
            .to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    })
}

#[expect(clippy::cast_precision_loss, reason = "CPUs are few")]
fn efficiency(rate: f64, cpus: usize, base: f64, base_cpus: usize) -> f64 {
    (rate / cpus as f64) / (base / base_cpus.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Measured;
    use crate::record::{Event, Place, Step, Window};
    use std::collections::BTreeMap;

    fn point(cpus: usize, threads: usize, queries: u64) -> Point {
        let step = Step { cpus: Some(cpus), ..Step::of("s", "l", &Place::default(), threads) };
        let events: Vec<Event> = (0..9)
            .flat_map(|pair| Side::BOTH.map(|side| (pair, side)))
            .map(|(pair, side)| {
                Event::Window(Window {
                    pair,
                    side,
                    control: false,
                    seconds: 1.0,
                    queries: queries + (pair % 3) as u64,
                    cpu: 1.0,
                    user: 1.0,
                    system: 0.0,
                    idle: 0.0,
                    iowait: None,
                    steal: 0.0,
                    capacity: 2.0,
                    events: BTreeMap::new(),
                    counted: None,
                    transactions: None,
                })
            })
            .collect();
        Point::of(&Measured { step: &step, events: events.iter().collect(), whole: true }, 1)
    }

    #[test]
    fn efficiency_and_negative_scaling() {
        let points = [point(1, 1, 1000), point(2, 2, 1500), point(4, 4, 900)];
        let table = table(&points, ["with", "without"]).unwrap();
        let cell = |row: usize, column: usize| table.rows[row][column].as_str();
        assert_eq!((cell(0, 4), cell(2, 4), cell(4, 4)), ("base", "75%", "23%"));
        assert!(cell(2, 5).is_empty() && cell(4, 5).starts_with("NEGATIVE"));
    }
}
