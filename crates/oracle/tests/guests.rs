//! Guests of many kinds in random layouts: each clone that runs does what its original does.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise and says what it saw"
)]

mod support;

use oracle::{Options, Report, examine};
use std::time::Duration;
use support::{Guest, guests, stress};

/// What compilers make, by kind. The short form runs the first of them.
const GUESTS: [&str; 18] = [
    "switches.c",
    "tables.c",
    "throws.cc",
    "virtuals.cc",
    "recursion.c",
    "prologues.c",
    "varargs.c",
    "tailcalls.c",
    "loops.c",
    "goto.c",
    "frames.c",
    "redzone.c",
    "floats.c",
    "strings.c",
    "qsort.c",
    "longjmp.c",
    "wide.c",
    "containers.cc",
];
const SHORT: usize = 6;

fn one(name: &str, seed: u64) -> Report {
    let guest = Guest::start(&guests().join(name), &[]);
    guest.shuffle(seed);
    let options = Options {
        max_functions: if stress() { 1000 } else { 20 },
        max_steps: if stress() { 20_000 } else { 1000 },
        time: Duration::from_secs(if stress() { 60 } else { 3 }),
        seed,
    };
    let report = examine(guest.pid(), &options).unwrap();
    for m in &report.mismatches {
        eprintln!("{name}, seed {seed}:\n{m}");
    }
    eprintln!("{name}, seed {seed}: {report}");
    guest.finish();
    report
}

fn all(seed: u64) {
    let guests = if stress() { &GUESTS[..] } else { &GUESTS[..SHORT] };
    let mut total = Report::default();
    for name in guests {
        let report = one(name, seed);
        assert!(!report.examined.is_empty(), "{name}");
        total.add(&report);
    }
    eprintln!("seed {seed}: {total}");
    assert!(total.mismatches.is_empty(), "{} mismatches", total.mismatches.len());
    let enough = if stress() { 200 } else { 30 };
    assert!(total.examined.len() >= enough, "{} examined", total.examined.len());
    // Everything that can be has been seen.
    assert!(total.extra > 0 && total.unmovable > 0 && total.unwound > 0);
}

#[test]
fn clones_do_what_originals_do_in_one_layout() {
    all(1);
}

#[test]
fn clones_do_what_originals_do_in_another_layout() {
    all(2);
}
