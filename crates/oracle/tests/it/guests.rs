//! Guests of many kinds in random layouts: each clone that runs does what its original does.

use crate::support::{Guest, guests, stress};
use oracle::{Options, Report, examine};
use std::time::Duration;

/// What compilers make, by kind. The short form runs the first of them.
const GUESTS: [&str; 19] = [
    "switches.c",
    "tables.c",
    "throws.cc",
    "virtuals.cc",
    "inlining.cc",
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

/// How much of a guest is examined.
fn options(seed: u64) -> Options {
    Options {
        max_functions: if stress() { 1000 } else { 20 },
        max_steps: if stress() { 20_000 } else { 1000 },
        time: Duration::from_secs(if stress() { 60 } else { 3 }),
        seed,
    }
}

fn one(name: &str, flags: &[&str], options: Options, prepare: impl FnOnce(&Guest)) -> Report {
    let guest = Guest::start(&guests().join(name), flags);
    prepare(&guest);
    let seed = options.seed;
    let report = examine(guest.pid(), &options).unwrap();
    for m in &report.mismatches {
        eprintln!("{name}, seed {seed}:\n{m}");
    }
    eprintln!("{name}, seed {seed}: {report}");
    guest.finish();
    report
}

fn all(seed: u64, flags: &[&str], short: usize) {
    let guests = if stress() { &GUESTS[..] } else { &GUESTS[..short] };
    let mut total = Report::default();
    for name in guests {
        let report = one(name, flags, options(seed), |guest| guest.shuffle(seed));
        assert!(!report.examined.is_empty(), "{name}");
        total.add(&report);
    }
    eprintln!("seed {seed}: {total}");
    assert!(total.mismatches.is_empty(), "{} mismatches", total.mismatches.len());
    // How many there is time for is the machine's affair.
    let enough = if stress() { 200 } else { 3 * guests.len() };
    assert!(total.examined.len() >= enough, "{} examined", total.examined.len());
    // Everything that can be has been seen.
    assert!(total.extra > 0 && total.unmovable > 0 && total.unwound > 0 && total.again > 0, "{total}");
    // Most of those are libraries'.
    assert!(total.inlined > 0 || !stress(), "{total}");
}

#[test]
fn clones_do_what_originals_do_in_one_layout() {
    all(1, &[], 5);
}

/// Where each function begins with an `endbr64`, which clones' direct calls pass by.
#[test]
fn clones_do_what_originals_do_in_another_layout() {
    all(2, &["-fcf-protection=full"], 3);
}

#[test]
fn calls_that_get_where_they_go_more_directly_do_what_they_did() {
    const GUESTS: [&str; 3] = ["inlining.cc", "virtuals.cc", "containers.cc"];
    let mut total = Report::default();
    for (seed, name) in (3..).zip(if stress() { &GUESTS[..] } else { &GUESTS[..2] }) {
        let options = options(seed);
        // The small functions alone say nothing.
        let options = Options { max_functions: options.max_functions.max(60), ..options };
        let options = Options { time: options.time.max(Duration::from_secs(8)), ..options };
        total.add(&one(name, &[], options, |guest| guest.shuffle_counted(seed)));
    }
    eprintln!("{total}");
    assert!(total.mismatches.is_empty(), "{} mismatches", total.mismatches.len());
    // Each form has been seen, and guards that hold as well as such that do not.
    assert!(total.inlined > 20 && total.exits > 0 && total.guards > 20, "{total}");
    assert!(total.guards_failed > 0 && total.guards_failed < total.guards, "{total}");
}
