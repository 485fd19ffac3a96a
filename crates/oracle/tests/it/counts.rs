//! Counters give exactly the counts of a single-step run, and clones that count do what originals do.

use crate::support::paths::{Paths, own};
use crate::support::{Guest, guests, shuffled, stress};
use engine::{CountedFunction, OptimizeOptions, count_during};
use oracle::{Options, Report, examine};
use profile::Counts;
use std::time::Duration;

fn same(what: &str, counted: &[&CountedFunction], stepped: &[Counts], threads: bool) {
    let (mut blocks, mut edges, mut ran) = (0, 0, 0u64);
    let (mut wrong, mut open) = (Vec::new(), Vec::new());
    for (f, wanted) in counted.iter().zip(stepped) {
        if threads && f.name == "p_all" {
            assert!(!f.counts.has_run(), "{what}: nobody calls p_all");
            continue;
        }
        if !f.exact {
            open.push(&f.name);
            continue;
        }
        if &f.counts != wanted {
            eprintln!("{what}: {}:\n{:?}\n{wanted:?}", f.name, f.counts);
            wrong.push(&f.name);
        }
        assert!(wanted.is_consistent(&f.cfg), "{what}: {}", f.name);
        blocks += wanted.blocks.len();
        edges += wanted.blocks.iter().map(|b| b.edges.len()).sum::<usize>();
        ran += wanted.blocks.iter().map(|b| b.count).sum::<u64>();
    }
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
    // p_tail has conditional tail calls. p_float branches on flags that the last branch left, and has no free
    // register. Neither can have a counter there. p_machine and p_switch have jump tables that cannot be
    // cloned, so the rest runs in the original. The others are too short for a redirect. p_add to p_compare
    // are called by pointers. p_odd, p_even and p_last are reached by jumps from functions whose originals
    // run during counting. p_rare is too short as well: if samples missed its one caller, that caller's
    // original calls it. p_all, called by a pointer, may have its first redirect behind a call (clang -O2): its
    // clone does not count then.
    let known = [
        "p_all",
        "p_rare",
        "p_tail",
        "p_float",
        "p_machine",
        "p_switch",
        "p_add",
        "p_sub",
        "p_xor",
        "p_compare",
        "p_odd",
        "p_even",
        "p_last",
    ];
    assert!(
        open.iter().all(|name| known.contains(&name.as_str())),
        "{what}: {open:?} not determined by counters"
    );
    eprintln!(
        "{what}: {} functions, {blocks} blocks and {edges} edges equal, {ran} executions, without {open:?}",
        counted.len()
    );
    assert!(counted.len() >= 12 && blocks > 60 && ran > 5000, "{what}");
}

fn build(compiler: &str, flags: &[&str], seed: u64) {
    let mut paths = Paths::start(compiler, flags);
    let what = format!("{compiler} {flags:?}");
    let shuffled = shuffled(seed);
    let alone = paths.counted(&shuffled, b's');
    let alone = own(&alone);
    let stepped = paths.stepped(&alone, &mut |_, _| {});
    same(&format!("{what}, random order"), &alone, &stepped, false);
    let threads = paths.counted(&shuffled, b't');
    let threads = own(&threads);
    assert!(alone.iter().map(|f| f.cfg.entry).eq(threads.iter().map(|f| f.cfg.entry)));
    same(&format!("{what}, random order, four threads"), &threads, &stepped, true);
    // As a target is counted in practice: the sampled functions, in their own order, and the functions that
    // they call. The time is long enough that most functions are sampled on a busy machine.
    let sampled = OptimizeOptions { sampling: Duration::from_secs(2), ..OptimizeOptions::default() };
    let hot = paths.counted(&sampled, b't');
    let hot = own(&hot);
    let stepped = stepped_of(&hot, &alone, &stepped);
    same(&format!("{what}, by samples, four threads"), &hot, &stepped, true);
    paths.end();
}

/// Returns the counts of the functions in `some`; `counts` has those of all functions in `all`.
fn stepped_of(some: &[&CountedFunction], all: &[&CountedFunction], counts: &[Counts]) -> Vec<Counts> {
    let place = |f: &&CountedFunction| all.iter().position(|a| a.cfg.entry == f.cfg.entry).unwrap();
    some.iter().map(|f| counts[place(f)].clone()).collect()
}

#[test]
fn counters_count_what_a_single_step_run_counts() {
    const COMPILERS: [&str; 2] = ["gcc", "clang"];
    const LEVELS: [&[&str]; 7] = [
        &["-O2"],
        &["-O0"],
        &["-O2", "-no-pie"],
        &["-Os"],
        &["-O1"],
        &["-O3"],
        &["-O2", "-fcf-protection=full"],
    ];
    for (seed, flags) in (1..).zip(LEVELS) {
        for (i, compiler) in (1..).zip(COMPILERS) {
            // The short form takes three optimization levels, with the compilers in turn.
            if stress() || (seed <= 3 && seed % 2 == i % 2) {
                build(compiler, flags, seed);
            }
        }
    }
}

/// Threads that waited in clones of the first round return into them in the second round, in which other
/// clones count.
#[test]
fn threads_that_return_late_are_not_counted() {
    let mut paths = Paths::start("gcc", &["-O2"]);
    let all = paths.counted(&shuffled(1), b's');
    let all = own(&all);
    let stepped = paths.stepped(&all, &mut |_, _| {});
    let only = vec!["waits".to_owned(), "p_work".to_owned()];
    let late = paths.counted(&OptimizeOptions { only, ..shuffled(1) }, b't');
    assert!(late.iter().any(|f| f.name == "waits"));
    let late = own(&late);
    same("round by round", &late, &stepped_of(&late, &all, &stepped), true);
    paths.end();
}

/// Compares clones that count, of everything in a guest, with the originals.
fn examined(name: &str, seed: u64) -> Report {
    let guest = Guest::start(&guests().join(name), &[]);
    let shuffled = shuffled(seed);
    let options = Options {
        max_functions: if stress() { 1000 } else { 20 },
        max_steps: if stress() { 20_000 } else { 1000 },
        time: Duration::from_secs(if stress() { 60 } else { 3 }),
        seed,
    };
    let mut report = Report::default();
    // Rounds of counting end with nothing new to count.
    let mut work = || report.add(&examine(guest.pid(), &options).unwrap());
    count_during(guest.pid(), &shuffled, &mut |_| {}, &mut work).unwrap();
    for m in &report.mismatches {
        eprintln!("{name}, seed {seed}:\n{m}");
    }
    eprintln!("{name}, seed {seed}: {report}");
    guest.finish();
    report
}

#[test]
fn clones_that_count_do_what_originals_do() {
    const GUESTS: [&str; 10] = [
        "switches.c",
        "throws.cc",
        "tailcalls.c",
        "loops.c",
        "varargs.c",
        "redzone.c",
        "virtuals.cc",
        "longjmp.c",
        "floats.c",
        "containers.cc",
    ];
    let mut total = Report::default();
    for (seed, name) in (1..).zip(if stress() { &GUESTS[..] } else { &GUESTS[..2] }) {
        let report = examined(name, seed);
        assert!(!report.examined.is_empty(), "{name}");
        total.add(&report);
    }
    eprintln!("{total}");
    assert!(total.mismatches.is_empty(), "{} mismatches", total.mismatches.len());
    assert!(total.examined.len() >= if stress() { 200 } else { 15 }, "{total}");
    assert!(total.extra > if stress() { 1000 } else { 200 } && total.unwound > 0, "{total}");
}
