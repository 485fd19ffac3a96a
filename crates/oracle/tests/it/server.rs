//! A private database server under load: hot functions are examined, and no query fails.

use crate::support::server::Loaded;
use crate::support::{shuffled, stress};
use engine::{OptimizeOptions, Pid, optimize};
use oracle::{Options, Report, examine};
use std::time::{Duration, Instant};

fn look(pid: Pid, what: &str, options: &Options) -> Report {
    let start = Instant::now();
    let report = examine(pid, options).unwrap();
    for m in report.mismatches.iter().chain(&report.by_code_address) {
        eprintln!("{m}");
    }
    eprintln!("{what}, {:.0} s: {report}", start.elapsed().as_secs_f64());
    report
}

#[test]
fn a_server_under_load() {
    let server = Loaded::start();
    let pid = server.pid;

    let sampling = Duration::from_secs(2);
    // Without counting, the targets of indirect calls are not known.
    let counting = Some(Duration::from_secs(1));
    optimize(pid, &OptimizeOptions { sampling, counting, ..OptimizeOptions::default() }, &mut |_| {})
        .unwrap();
    let options = if stress() {
        Options { max_functions: 600, max_steps: 20_000, time: Duration::from_secs(600), seed: 1 }
    } else {
        Options { max_functions: 40, max_steps: 2000, time: Duration::from_secs(90), seed: 1 }
    };
    let hot = look(pid, "hot functions", &options);
    let mut reports = vec![hot];
    if stress() {
        optimize(pid, &shuffled(1), &mut |_| {}).unwrap();
        reports.push(look(pid, "all functions in random order", &options));
    }

    eprintln!("{} queries", server.end());
    assert!(reports[0].inlined > 0 && reports[0].guards > 0, "{}", reports[0]);
    // Of all functions in random order, most run too rarely to be met in the given time.
    let enough = if stress() { [300, 100] } else { [20, 0] };
    for (report, enough) in reports.iter().zip(enough) {
        assert!(report.mismatches.is_empty(), "{} mismatches", report.mismatches.len());
        assert!(report.examined.len() >= enough, "{report}");
    }
}
