//! A process that is rebuilt again and again, under loads of many kinds.

use crate::support::{Guest, build, changed_text, run, stress, wait_until, whet, whet_command};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

/// Kinds of load of the guest `kinds.c`.
const KINDS: u64 = 32;
/// Address space that clones may take. KiB.
const CAP: u64 = 128 << 10;

/// A figure of `/proc/PID/status`. KiB.
fn kib(guest: &Guest, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let value = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the arguments of a rebuild: short, and counted. With `--reuse`, more samples are needed to find an
/// earlier layout that fits.
fn words<'a>(pid: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let seconds = if more.contains(&"--reuse") { "0.4" } else { "0.15" };
    let how = ["optimize", pid, "--seconds", seconds, "--count", "0.02", "--format", "json"];
    [&how, more].concat()
}

/// Kills whet at numbered points of a rebuild, and undoes what is there. Returns the report of the rebuild
/// that ends before its point.
fn dies_at(guest: &Guest, more: &[&str], points: impl Iterator<Item = usize>) -> Option<Value> {
    let pid = guest.arg();
    for (point, turn) in points.zip(1u64..) {
        let mut command = whet_command(&words(&pid, more));
        command.env("WHET_FAULT", point.to_string());
        let answer = run(command);
        guest.progresses(1);
        // In every other case the next whet rebuilds what the dead one left.
        if turn.is_multiple_of(2) {
            whet(&["undo", &pid]).exits(0);
            assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
            guest.progresses(1);
        }
        if answer.signal.is_none() && answer.code != Some(7) {
            assert!(point > 3);
            return Some(answer.exits(0).json());
        }
    }
    None
}

/// Rebuilds once more. Returns `None` if the guest got no CPU while it was sampled.
fn rebuild(guest: &Guest, more: &[&str]) -> Option<Value> {
    let answer = whet(&words(&guest.arg(), more));
    (answer.code != Some(7)).then(|| answer.exits(0).json())
}

/// Returns whether clones of earlier rounds counted again. Which functions are sampled is chance, and a
/// round runs again only if it has enough of them.
fn counted_again(report: &Value) -> bool {
    report["counting"]["again"].as_u64() > Some(0)
}

/// Returns whether one of so many rebuilds counts again.
fn counts_again(guest: &Guest, rebuilds: usize) -> bool {
    (0..rebuilds).any(|_| rebuild(guest, &[]).is_some_and(|r| counted_again(&r)))
}

/// Rebuilds `wanted` times, each time under another kind of load.
fn rebuilds(guest: &Guest, kinds: u64, wanted: u64, more: &[&str]) -> Vec<Value> {
    let mut reports = Vec::new();
    while (reports.len() as u64) < wanted {
        guest.go_to(reports.len() as u64 % kinds);
        guest.progresses(1);
        reports.extend(rebuild(guest, more));
    }
    reports
}

#[test]
fn rebuilds_without_end() {
    let wanted = if stress() { 1000 } else { 40 };
    let guest = Guest::working(&build("kinds.c"), &[], 1);
    let before = kib(&guest, "VmSize");
    let reports = rebuilds(&guest, KINDS, wanted, &[]);
    for (report, number) in reports.iter().zip(1u64..) {
        assert_eq!((&report["state"], &report["generation"]), (&"optimized".into(), &number.into()));
    }
    let earlier = reports.iter().filter(|r| !r["reused"].is_null()).count();
    // Besides the clones, there are address maps that the kernel rounds up, and the guest's own memory.
    let grown = kib(&guest, "VmSize") - before;
    eprintln!("{wanted} rebuilds, {earlier} by earlier clones; {grown} KiB more address space");
    assert!(grown < CAP + (8 << 10), "{grown} KiB");
    // A new load gets a layout of its own, also late.
    let late = reports.iter().skip(if stress() { 100 } else { 20 });
    assert!(late.take(100).all(|r| r["reused"].is_null()));
    // Clones that have counted count again whenever their kind of load comes back.
    assert!(reports.iter().filter(|r| counted_again(r)).count() as u64 > wanted.saturating_sub(KINDS) / 2);
    let pid = guest.arg();
    whet(&["verify", &pid]).exits(0);
    whet(&["undo", &pid]).exits(0);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    whet(&["redo", &pid]).exits(0);
    wait_until("a state", || whet(&["status", &pid]).exits(0).stdout.contains("optimized"));
    guest.progresses(1);
    assert_eq!(guest.finish().0, Some(0));
}

/// A load that alternates gets one layout for each of its kinds.
#[test]
fn layouts_serve_again() {
    const TO_AND_FRO: u64 = 3;
    let guest = Guest::working(&build("kinds.c"), &[], 1);
    let reports = rebuilds(&guest, TO_AND_FRO, if stress() { 60 } else { 15 }, &["--reuse"]);
    let mut made: BTreeMap<u64, u64> = BTreeMap::new();
    for (i, _) in (0u64..).zip(&reports).filter(|(_, r)| r["reused"].is_null()) {
        *made.entry(i % TO_AND_FRO).or_default() += 1;
    }
    // With few samples, one kind may be taken for a changed one.
    assert!(made.len() as u64 == TO_AND_FRO && made.values().sum::<u64>() <= 6, "{made:?}");
    let last = reports.iter().rfind(|r| !r["reused"].is_null()).unwrap();
    assert_eq!(last["is_full"], false, "{last}");
    assert!(last["coverage"].as_f64() > Some(0.8), "{last}");
    let is_reused = |report: &Value| report["reused"].is_u64();
    let survives = || dies_at(&guest, &["--reuse"], 1..).unwrap();
    assert!((0..3).any(|_| is_reused(&survives())));
    assert_eq!(guest.finish().0, Some(0));
}

/// whet may die at any instant while clones are made to count again.
#[test]
fn dying_while_clones_count_again() {
    /// Points for each guest: the more generations there are, the more points a rebuild passes.
    const POINTS: usize = 8;
    let step = if stress() { 1 } else { 5 };
    for first in (1..).step_by(step * POINTS) {
        let guest = Guest::working(&build("throwing.cc"), &[], 3);
        assert!(counts_again(&guest, 20));
        let survived = dies_at(&guest, &[], (first..).step_by(step).take(POINTS));
        guest.progresses(3);
        if let Some(report) = survived {
            assert!(counted_again(&report) || counts_again(&guest, 3), "{report}");
            assert_eq!(guest.finish().1, None);
            return;
        }
        assert_eq!(guest.finish().1, None);
    }
}

/// An operator's undo while clones count again ends the counting.
#[test]
fn undo_while_clones_count_again() {
    let guest = Guest::working(&build("throwing.cc"), &[], 3);
    let pid = guest.arg();
    while rebuild(&guest, &[]).is_none() {}
    let words = ["optimize", &pid, "--seconds", "0.3", "--count", "5", "--format", "json"];
    let mut second = whet_command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = || whet(&["status", &pid]).stdout;
    wait_until("counting", || status().contains("counting") || second.try_wait().unwrap().is_some());
    guest.progresses(3);
    whet(&["undo", &pid]).exits(0);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    let ended = second.wait_with_output().unwrap();
    assert_ne!(ended.status.code(), Some(0));
    guest.progresses(3);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    assert_eq!(guest.finish().1, None);
}
