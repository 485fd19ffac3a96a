//! The answer of `whet-lab power`: a table for terminals and for Markdown.

use super::page::points;
use crate::folder::Run;
use crate::power::{GAINS, enough, study};
use crate::stats;

/// Returns a table for each step of a run: how often how many pairs find a gain.
pub fn power(run: &Run) -> String {
    let mut text = String::from(
        "| step | figure | pairs measured | spread of a pair | needed for 1% | for 3% | for 10% | false alarms at 40 pairs |\n|---|---|---|---|---|---|---|---|\n",
    );
    for p in points(run) {
        for (what, ratios) in [("throughput", &p.ratios), ("CPU time", &p.cpu_ratios)] {
            let rows = study(ratios, run.head.seed);
            if rows.is_empty() {
                continue;
            }
            let q = |share| stats::quantile(ratios, share).unwrap_or(1.0);
            let needed: Vec<String> = (0..GAINS.len())
                .map(|g| enough(&rows, g).map_or_else(|| "over 1280".to_owned(), |n| n.to_string()))
                .collect();
            let alarms = rows.iter().find(|r| r.pairs == 40).map_or(0.0, |r| r.false_alarms);
            text += &format!(
                "| {} | {what} | {} | {:.1}% | {} | {:.1}% |\n",
                p.step,
                ratios.len(),
                (q(0.75) - q(0.25)) / q(0.5) * 100.0,
                needed.join(" | "),
                alarms * 100.0
            );
        }
    }
    text + "Pairs needed: the fewest of 5, 10, 20, … 1280 that find the gain in at least 8 of 10 experiments. Spread: interquartile range over median."
}
