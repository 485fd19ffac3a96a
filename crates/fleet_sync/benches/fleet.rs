//! Prints the figures of a fleet of 10,000 hosts, simulated in one process: `cargo bench -p fleet_sync --bench fleet`.
//! Arguments: the number of hosts, and hours.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "small numbers of a simulation, printed"
)]

#[path = "../tests/simulation/weather.rs"]
mod weather;
#[path = "../tests/simulation/world.rs"]
mod world;

use std::time::Duration;
use weather::Climate;
use world::{Plan, simulate};

const HOUR: Duration = Duration::from_secs(3600);

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let hosts = numbers.first().map_or(10_000, |n| *n as usize);
    let hours = numbers.get(1).copied().unwrap_or(24);
    let calm = Climate { lost: 2, unanswered: 1, late: 1, outage: [Duration::ZERO; 2] };
    let bad = Climate { lost: 50, unanswered: 20, late: 20, outage: [HOUR / 2, HOUR * 3 / 2] };
    println!(
        "{hosts} hosts, {hours} h, two mergers every 5 min, each host syncs every 15 min, 2% of the clocks off by a day or more"
    );
    for (name, hostile_percent, may_write_heads, climate, harmful_after) in [
        ("calm weather", 0, false, calm, None),
        ("5% hostile hosts", 5, false, calm, None),
        ("5% hostile, 9% of requests fail, an outage of 1 h after 0.5 h", 5, false, bad, None),
        ("5% hostile, a harmful aggregate after 6 h", 5, false, calm, Some(HOUR * 6)),
        ("5% hostile with the right to write heads", 5, true, calm, None),
    ] {
        let plan = Plan { hosts, hours, hostile_percent, may_write_heads, climate, harmful_after, seed: 7 };
        let out = simulate(plan);
        let (t, days) = (out.traffic, hours as f64 / 24.0 * hosts as f64);
        let seconds = |p| out.former_within(p).map_or("never".to_owned(), |s| format!("{s} s"));
        let minutes = |p| out.within(p).map_or("never".to_owned(), |s| format!("{:.0} min", s as f64 / 60.0));
        println!("\n{name}");
        println!(
            "  per host and day: {:.1} reads (of these {:.1} unchanged or missing), {:.2} writes, {:.2} lists; {:.1} kB down, {:.1} kB up",
            t.gets as f64 / days,
            t.unchanged as f64 / days,
            t.puts as f64 / days,
            t.lists as f64 / days,
            t.bytes_down as f64 / days / 1e3,
            t.bytes_up as f64 / days / 1e3,
        );
        println!(
            "  aggregate in the inbox after the start: 50% of honest hosts {}, 99% {}, 100% {}; never {}",
            minutes(50),
            minutes(99),
            minutes(100),
            out.never
        );
        println!(
            "  aggregate of the former build in the inbox after the start: 50% of honest hosts {}, 90% {}; {} hosts, wrong ones {}",
            seconds(50),
            seconds(90),
            out.former_waits.len(),
            out.wrong_formers
        );
        println!(
            "  {} contributions, {} aggregates, {} heads, {} late mergers, {} objects refused; wrong merges {}",
            out.contributions,
            out.aggregates,
            out.heads,
            out.late_mergers,
            out.refused_by_mergers,
            out.wrong_merges
        );
        println!(
            "  forged functions {}, turned branches {} of {}; hosts that had the harmful aggregate {}, at the end {}",
            out.forged_functions, out.turned_branches, out.branches, out.harmed, out.still_harmed
        );
    }
}
