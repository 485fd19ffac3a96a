//! Guests of many kinds in random layouts: each clone that runs does what its original does.

use crate::support::{Guest, guests, stress};
use oracle::{Options, Report, examine};
use std::time::Duration;

/// Guests for the kinds of code that compilers make. The short form runs the first of them.
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

/// Returns how much of a guest is examined.
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
    // The machine decides how many functions there is time for.
    let enough = if stress() { 200 } else { 3 * guests.len() };
    assert!(total.examined.len() >= enough, "{} examined", total.examined.len());
    // Everything that can occur has occurred.
    assert!(total.extra > 0 && total.unmovable > 0 && total.unwound > 0 && total.again > 0, "{total}");
    // Most inlined calls are in libraries.
    assert!(total.inlined > 0 || !stress(), "{total}");
}

#[test]
fn clones_do_what_originals_do_in_one_layout() {
    all(1, &[], 5);
}

/// Each function begins with an `endbr64`, which direct calls of clones bypass.
#[test]
fn clones_do_what_originals_do_in_another_layout() {
    all(2, &["-fcf-protection=full"], 3);
}

#[test]
fn inlined_and_guarded_calls_do_what_originals_do() {
    const GUESTS: [&str; 3] = ["inlining.cc", "virtuals.cc", "containers.cc"];
    let mut total = Report::default();
    for (seed, name) in (3..).zip(if stress() { &GUESTS[..] } else { &GUESTS[..2] }) {
        let options = options(seed);
        // The small functions alone are not enough.
        let options = Options { max_functions: options.max_functions.max(60), ..options };
        let options = Options { time: options.time.max(Duration::from_secs(8)), ..options };
        total.add(&one(name, &[], options, |guest| guest.shuffle_counted(seed)));
    }
    eprintln!("{total}");
    assert!(total.mismatches.is_empty(), "{} mismatches", total.mismatches.len());
    // Each form has occurred, and guards that hold as well as guards that fail.
    assert!(total.inlined > 20 && total.exits > 0 && total.guards > 20, "{total}");
    assert!(total.guards_failed > 0 && total.guards_failed < total.guards, "{total}");
}
