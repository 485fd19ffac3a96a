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
    // The long form ends when it has met enough functions. Only a busy machine needs more than ten minutes.
    let long = |enough| Options {
        max_functions: enough,
        max_steps: 20_000,
        time: Duration::from_secs(1200),
        seed: 1,
    };
    let short = Options { max_functions: 40, max_steps: 2000, time: Duration::from_secs(25), seed: 1 };
    let (enough, options) = if stress() { (300, long(300)) } else { (20, short) };
    let mut reports = vec![(look(pid, "hot functions", &options), enough)];
    if stress() {
        optimize(pid, &shuffled(1), &mut |_| {}).unwrap();
        // Most functions run too rarely to be met in time.
        let enough = 100;
        reports.push((look(pid, "all functions in random order", &long(enough)), enough));
    }

    eprintln!("{} queries", server.end());
    let hot = &reports[0].0;
    assert!(hot.inlined > 0 && hot.guards > 0, "{hot}");
    for (report, enough) in &reports {
        assert!(report.mismatches.is_empty(), "{} mismatches", report.mismatches.len());
        assert!(report.examined.len() >= *enough, "{report}");
    }
}
