//! The scenario `pgbench`, scaled down, on a private PostgreSQL, which is a family of processes.

use crate::support::long::Long;
use crate::support::{count, lab, left_behind, records, run, whet};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn server_is_here() -> bool {
    let is_here = Path::new("/usr/lib/postgresql").is_dir();
    if !is_here {
        println!("skipped: no PostgreSQL here");
    }
    is_here
}

/// Makes a run that must succeed, and returns its records. The run's folder lies in a folder of root's, which
/// other users may not enter.
fn works(more: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let options = ["pgbench", "--seed=7", "--scale=1", "--warm-up=0.5", "--settle=0.1"];
    let (code, _, err) = run(lab().args(options).args(more).arg("--out").arg(&out));
    assert_eq!(code, Some(0), "{err}");
    assert!(!out.join("work").exists(), "the server's data is still there");
    assert_eq!(left_behind(&out), Vec::<String>::new());
    let log = fs::read_to_string(out.join("commands.log")).unwrap();
    assert!(log.contains("/initdb ") && log.contains("/pgbench -i "), "{log}");
    let records = records(&out);
    for window in records.iter().filter(|r| r["kind"] == "window") {
        // The postmaster itself has nothing to do: all time is that of its children.
        let (queries, cpu) = (window["queries"].as_u64().unwrap(), window["cpu"].as_f64().unwrap());
        assert!(queries > 0 && cpu > 10e-6 * queries as f64, "{window}");
    }
    let checks: Vec<&Value> = records.iter().filter(|r| r["kind"] == "check").collect();
    assert!(checks.iter().all(|c| c["ok"] == true), "{checks:?}");
    // Three conditions, before and after each step.
    assert_eq!(checks.len(), 6 * count(&records, "done"));
    records
}

#[test]
fn both_loads_by_threads() {
    if server_is_here() {
        let more = ["--null", "--threads=1,2", "--pairs=1", "--window=0.5", "--server-option=work_mem=8MB"];
        let records = works(&more);
        assert_eq!((count(&records, "done"), count(&records, "window")), (4, 8));
        let mut loads: Vec<&str> =
            records.iter().filter(|r| r["kind"] == "latency").filter_map(|r| r["of"].as_str()).collect();
        loads.dedup();
        assert_eq!(loads, ["select-only", "tpcb-like"]);
    }
}

/// whet rebuilds the whole family. In a debug build each change of sides takes long, so there is one pair.
#[test]
fn with_whet() {
    if !server_is_here() {
        return;
    }
    let Some(whet) = whet() else { return };
    let whet = format!("--whet={}", whet.display());
    let options =
        ["--tests=tpcb-like", "--threads=2", "--sampling=1", "--pairs=1", "--control=0", "--window=0.3"];
    let records = works(&[&[whet.as_str()], &options[..]].concat());
    assert_eq!((count(&records, "done"), count(&records, "window"), count(&records, "optimize")), (1, 2, 1));
    let answer = &records.iter().find(|r| r["kind"] == "optimize").unwrap()["answer"];
    assert_eq!(answer["state"], "optimized");
    assert!(answer["members"]["found"].as_u64() >= Some(2), "{answer}");
    let changes: Vec<&Value> = records.iter().filter(|r| r["kind"] == "family").collect();
    assert_eq!(changes[0]["command"], "optimize");
    assert!(changes.iter().all(|c| c["processes"].as_u64() > Some(2) && c["left_alone"] == 0), "{changes:?}");
}

/// A whet that changes nothing, and whose `redo` leaves a process of the family alone.
const PARTIAL: &str = r#"#!/bin/sh
case $1 in
    --version) echo 'whet 0' ;;
    status) echo '{"parent":null}' ;;
    optimize) echo '{"parent":{"state":"optimized"},"members":{"found":9,"ended":1,"left_alone":[]}}' ;;
    redo) echo '{"parent":{},"members":{"found":5,"ended":2,"left_alone":[{"pid":7,"code":"c","why":"7 was busy"}]}}' ;;
    *) echo '{}' ;;
esac
"#;

#[test]
fn processes_that_whet_left_alone_are_at_the_head_of_the_report() {
    if !server_is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (whet, out) = (dir.path().join("whet"), dir.path().join("run"));
    fs::write(&whet, PARTIAL).unwrap();
    fs::set_permissions(&whet, fs::Permissions::from_mode(0o755)).unwrap();
    let options =
        ["--tests=select-only", "--threads=1", "--scale=1", "--pairs=2", "--control=0", "--window=0.1"];
    let mut command = lab();
    command.args(["pgbench", "--warm-up=0.5"]).args(options).arg("--whet").arg(whet);
    let (code, _, err) = run(command.arg("--out").arg(&out));
    assert_eq!(code, Some(0), "{err}");
    let records = records(&out);
    let changes: Vec<_> = records
        .iter()
        .filter(|r| r["kind"] == "family")
        .map(|r| (r["command"].as_str(), r["processes"].as_u64(), r["left_alone"].as_u64()))
        .collect();
    assert_eq!(changes[0], (Some("optimize"), Some(9), Some(0)));
    // In every order, two pairs need a redo.
    assert!(changes.len() > 1 && changes[1..].iter().all(|c| *c == (Some("redo"), Some(4), Some(1))));
    let html = fs::read_to_string(out.join("report.html")).unwrap();
    let head = html.split("data-chart").next().unwrap();
    let partial = format!("{} of {} changes, at most 1 of 4 processes", changes.len() - 1, changes.len());
    assert!(head.contains("<h2>Not all processes</h2>") && head.contains(&partial), "{head}");
    assert!(head.contains("(whet redo: 7 was busy)"), "{head}");
}

/// A lab that measures for some time.
fn long() -> Long {
    let options =
        ["--tests=select-only", "--threads=1,2", "--scale=1", "--settle=0.2", "--pairs=5", "--window=0.1"];
    let mut long = Long::of("pgbench", options.map(OsString::from));
    long.wait_for_data();
    long
}

/// Returns the postmaster and its children.
fn family(long: &Long) -> Vec<i32> {
    let postmaster = long.children()[0];
    let text = fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap();
    let children: Vec<i32> = text.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(children.len() > 1, "{children:?}");
    [vec![postmaster], children].concat()
}

/// Waits until no process of a family runs. A zombie counts as ended: its `/proc/PID/exe` cannot be read.
fn is_gone(family: &[i32]) {
    let until = Instant::now() + Duration::from_secs(20);
    let left = || family.iter().filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok()).count();
    while left() > 0 {
        assert!(Instant::now() < until, "{} processes are left", left());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_family_ends_with_a_killed_lab() {
    if !server_is_here() {
        return;
    }
    let mut long = long();
    let family = family(&long);
    long.child.kill().unwrap();
    long.child.wait().unwrap();
    is_gone(&family);
    long.nothing_is_left();
}

#[test]
fn a_server_that_ends_is_named() {
    if !server_is_here() {
        return;
    }
    let mut long = long();
    let family = family(&long);
    Long::signal(family[0], "INT");
    let code = long.child.wait().unwrap().code();
    let err = long.err();
    assert!(code == Some(10) && err.contains("ended in the middle of the run"), "{code:?} {err}");
    is_gone(&family);
}

/// The postmaster outlives a backend that is killed, but it ends all sessions.
#[test]
fn a_killed_backend_ends_the_run() {
    if !server_is_here() {
        return;
    }
    let mut long = long();
    let family = family(&long);
    let client = family.iter().rev().find(|pid| {
        let name = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&name).contains("postgres postgres")
    });
    Long::signal(*client.unwrap(), "KILL");
    let code = long.child.wait().unwrap().code();
    let err = long.err();
    assert!(code == Some(13) && err.contains("select-only failed"), "{code:?} {err}");
    is_gone(&family);
}
