//! Guests of many kinds in random layouts: each clone that runs does what its original does.

mod support;

use oracle::{Options, Report, examine};
use std::time::Duration;
use support::{Guest, guests, stress};

const GUESTS: [&str; 18] = [
    "switches.c",
    "tables.c",
    "recursion.c",
    "tailcalls.c",
    "loops.c",
    "goto.c",
    "frames.c",
    "redzone.c",
    "floats.c",
    "strings.c",
    "qsort.c",
    "varargs.c",
    "longjmp.c",
    "prologues.c",
    "wide.c",
    "throws.cc",
    "virtuals.cc",
    "containers.cc",
];

fn one(name: &str, seed: u64) -> Report {
    let guest = Guest::start(&guests().join(name), &[]);
    guest.shuffle(seed);
    let options = Options {
        max_functions: if stress() { 1000 } else { 25 },
        max_steps: if stress() { 20_000 } else { 2000 },
        time: Duration::from_secs(if stress() { 60 } else { 3 }),
        seed,
    };
    let report = examine(guest.pid(), &options).unwrap();
    for m in &report.mismatches {
        eprintln!("{name}, seed {seed}:\n{m}");
    }
    eprintln!(
        "{name}, seed {seed}: {} examined, {} of {} clones run, {} pairs of instructions ({} in clones, {} distinct), \
         {} extra, {} dropped, {} unmovable, {} unwound, {} not, ends {:?}",
        report.examined.len(),
        report.clones_run,
        report.clones,
        report.instructions,
        report.clone_instructions,
        report.distinct,
        report.extra,
        report.dropped,
        report.unmovable,
        report.unwound,
        report.not_unwound,
        report.ends
    );
    guest.finish();
    report
}

#[test]
fn clones_do_what_originals_do() {
    let only = std::env::var("ORACLE_GUEST").ok();
    let mut total = Report::default();
    for name in GUESTS.iter().filter(|n| only.as_deref().is_none_or(|o| o == **n)) {
        for seed in [1, 2] {
            let report = one(name, seed);
            assert!(!report.examined.is_empty(), "{name}");
            total.examined.extend(report.examined);
            total.clones_run += report.clones_run;
            total.instructions += report.instructions;
            total.extra += report.extra;
            total.dropped += report.dropped;
            total.unmovable += report.unmovable;
            total.unwound += report.unwound;
            total.mismatches.extend(report.mismatches);
        }
    }
    eprintln!("examined {}, clones run {}, pairs {}", total.examined.len(), total.clones_run, total.instructions);
    assert!(total.mismatches.is_empty(), "{} mismatches", total.mismatches.len());
    if only.is_none() {
        assert!(total.examined.len() >= 150, "{}", total.examined.len());
        // Everything that can be has been seen.
        assert!(total.extra > 0 && total.dropped > 0 && total.unmovable > 0 && total.unwound > 0);
    }
}
