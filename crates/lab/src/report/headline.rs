//! The result of a run in one sentence.

use super::figures::Point;
use super::tables::one_of;
use crate::stats::{self, Estimate};

/// Returns one sentence with the gains of all points.
pub fn headline(points: &[Point], unit: &str, names: [&str; 2]) -> String {
    let words = |name: &str, range: Option<Estimate>| {
        range.map(|Estimate { low, value: middle, high }| {
            if (high - low).abs() < 1e-9 {
                format!("{name} ×{middle:.2}")
            } else {
                format!("{name} ×{middle:.2} in the middle (×{low:.2} to ×{high:.2})")
            }
        })
    };
    let parts: Vec<String> = [
        words(&format!("CPU time per {}, the gain is", one_of(unit)), range(points, |p| p.cpu_per_query)),
        words("throughput", range(points, |p| p.throughput)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() {
        return "No point was measured to its end.".to_owned();
    }
    let count = points.iter().filter(|p| p.throughput.is_some()).count();
    let points = if count == 1 { "one point".to_owned() } else { format!("{count} points") };
    format!("{} against {}, over {points}: {}.", names[0], names[1], parts.join("; "))
}

/// Returns the median of all points' gains, with the lowest and the highest.
pub fn range(points: &[Point], get: fn(&Point) -> Option<Estimate>) -> Option<Estimate> {
    let all: Vec<f64> = points.iter().filter_map(|p| Some(get(p)?.value)).collect();
    let (low, high) = (all.iter().copied().reduce(f64::min)?, all.iter().copied().reduce(f64::max)?);
    Some(Estimate { value: stats::median(&all)?, low, high })
}
