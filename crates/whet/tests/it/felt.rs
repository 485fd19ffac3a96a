//! What a program can notice of whole commands: its system calls give the same results.

use crate::support::{Guest, build, finish, run, scratch, stress, wait_until, whet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

fn unfelt() -> PathBuf {
    let program = scratch("unfelt");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/unfelt.cc");
    let mut compiler = Command::new("g++");
    compiler.args(["-O2", "-Wall", "-pthread", "-o"]).arg(&program).arg(source);
    run(compiler).exits(0);
    program
}

/// Runs all system calls that a stop could affect at once, while redirects are put in force and undone. Every
/// transfer is whole, and every wait has its own result. A wait that began anew with each stop would not end
/// while the stops go on, so rounds must end all the same.
#[test]
fn toggles_are_not_felt() {
    let toggles = if stress() { 1000 } else { 40 };
    let program = unfelt();
    let mut alone = Command::new(&program);
    alone.env("GUEST_SECONDS", "0.1");
    let alone = run(alone).exits(0).stdout;

    let (stop, reports, said) = (scratch("stop"), scratch("rounds"), scratch("said"));
    let mut command = Command::new(&program);
    command.env("GUEST_SECONDS", "3600").env("GUEST_STOP", &stop);
    command.env("GUEST_TELLS", "1").env("GUEST_WAIT_MS", "1000");
    command.stderr(File::create(&reports).unwrap()).stdout(File::create(&said).unwrap());
    let mut guest = command.spawn().unwrap();
    let pid = guest.id().to_string();
    let rounds = || fs::read_to_string(&reports).unwrap().lines().filter(|l| *l == "round").count();
    wait_until("a round", || rounds() >= 1);
    whet(&["optimize", &pid, "--shuffle", "5", "--max-functions", "500"]).exits(0);
    let (mut made, before) = (0, rounds());
    while made < toggles || rounds() < before + 4 {
        assert!(guest.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&said).unwrap());
        assert!(made < 50 * toggles, "no round in {made} toggles");
        whet(&[if made % 2 == 0 { "undo" } else { "redo" }, &pid]).exits(0);
        made += 1;
    }
    let last = fs::read_to_string(&reports).unwrap();
    eprintln!("{made} toggles, {} rounds, {}", rounds() - before, last.lines().last().unwrap());
    whet(&["undo", &pid]).exits(0);
    whet(&["verify", &pid]).exits(0);
    fs::write(&stop, "").unwrap();
    assert_eq!(finish(guest), (Some(0), None));
    assert_eq!(fs::read_to_string(said).unwrap(), alone);
}

/// A thread waits in vfork most of the time, and stops of all threads are given up then. Transfers go on, even though
/// there are no routines yet in which threads finish theirs, and even if the child's end sends a signal that the
/// process ignores.
#[test]
fn a_first_stop_that_is_given_up_is_not_felt() {
    const SHORT: u64 = 1;
    const SIGCHLD: &str = "17";
    let program = build("writers.c");
    let mut short = Vec::new();
    for seed in 1..=if stress() { 40 } else { 4 } {
        let signal = [SIGCHLD, "0"][seed % 2];
        let guest = Guest::working(&program, &[signal], 1);
        let answer = whet(&["optimize", &guest.arg(), "--shuffle", &seed.to_string(), "--format", "json"]);
        // 6: the process could not be stopped.
        assert!(matches!(answer.code, Some(0 | 6)), "{answer:?}");
        guest.progresses(1);
        short.push(guest.counter(SHORT));
        whet(&["undo", &guest.arg()]);
        assert_eq!(guest.finish().1, None);
    }
    // With each stop that is given up, all six writes were short once. One short write has been seen since
    // (docs/stops.md).
    assert!(short.iter().sum::<u64>() <= 1, "{short:?}");
}

/// Every thread is in the middle of a transfer nearly all the time, and so is the thread that whet stops
/// first.
#[test]
fn the_first_stop_is_not_felt() {
    const SHORT: u64 = 1;
    let program = build("writers.c");
    for seed in 1..=if stress() { 40 } else { 6 } {
        let guest = Guest::working(&program, &[], 1);
        whet(&["optimize", &guest.arg(), "--shuffle", &seed.to_string()]).exits(0);
        guest.progresses(1);
        whet(&["undo", &guest.arg()]).exits(0);
        assert_eq!(guest.counter(SHORT), 0, "the {seed}th first optimize");
        assert_eq!(guest.finish().1, None);
    }
}
