//! The daemon and families: a parent with its workers is one target.

use crate::daemon::{Daemon, finish, own_copy};
use crate::support::{Guest, changed_text, skip, wait_until, whet};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// How many workers live long.
const WORKERS: usize = 3;

/// Starts a family, and a daemon that optimizes it. Returns also the long-lived workers.
fn optimized(more: &str, bad_layout: bool) -> (PathBuf, Guest, Daemon, Vec<i32>) {
    let program = own_copy("family.c");
    let guest = Guest::start(&program, &[&WORKERS.to_string()]);
    guest.progresses(1);
    let mut daemon = Daemon::for_program(&program, more);
    daemon.bad_layout = bad_layout;
    daemon.start();
    daemon.comes_to(guest.pid(), "optimized");
    let status = family("status", guest.pid());
    let workers = status["members"].as_array().unwrap().iter();
    let workers = workers.map(|m| i32::try_from(m["pid"].as_i64().unwrap()).unwrap()).collect();
    (program, guest, daemon, workers)
}

fn family(command: &str, pid: i32) -> Value {
    whet(&[command, "--family", &pid.to_string(), "--format", "json"]).exits(0).json()
}

/// Waits until all workers are in a state.
#[track_caller]
fn all_are(guest: &Guest, state: &str) {
    wait_until(state, || family("status", guest.pid())["states"] == json!({ state: WORKERS }));
    guest.progresses(1);
    assert_eq!(family("verify", guest.pid())["identical"], true);
}

#[test]
fn one_target_optimized_undone_and_put_right() {
    let (program, guest, mut daemon, workers) = optimized("[harm]\njudge = false\n", false);
    let pid = guest.pid();
    all_are(&guest, "optimized");
    assert_eq!(daemon.target(pid)["members"], WORKERS, "{:?}", daemon.target(pid));
    assert_eq!(daemon.targets().len(), 1, "{:?}", daemon.targets());
    daemon.switch(true);
    assert_eq!(daemon.comes_to(pid, "undone"), "the kill-switch file exists");
    for pid in workers.iter().chain([&pid]) {
        assert_eq!(changed_text(*pid), [] as [String; 0]);
    }
    daemon.switch(false);
    daemon.comes_to(pid, "optimized");
    all_are(&guest, "optimized");
    // One worker lost its clones while no daemon ran: the next daemon puts it right.
    daemon.kill();
    whet(&["undo", &workers[0].to_string()]).exits(0);
    daemon.start();
    all_are(&guest, "optimized");
    daemon.comes_to(pid, "optimized");
    // By hand, with any member.
    daemon.whet(&["undo", "--family", &workers[1].to_string()]).exits(0);
    assert_eq!(daemon.comes_to(pid, "undone"), "by hand");
    all_are(&guest, "undone");
    finish(guest, &program);
}

/// Where the parent ends, each worker is a target of its own, in the state that it had.
#[test]
fn the_end_of_the_parent() {
    let (program, mut guest, daemon, workers) = optimized("[harm]\njudge = false\n", false);
    all_are(&guest, "optimized");
    guest.go_to(3);
    assert_eq!(guest.ended(), (Some(0), None));
    daemon.comes_to(guest.pid(), "lost");
    for worker in &workers {
        daemon.comes_to(*worker, "optimized");
    }
    daemon.switch(true);
    for worker in workers {
        daemon.comes_to(worker, "undone");
        assert_eq!(changed_text(worker), [] as [String; 0]);
    }
    guest.stop();
    fs::remove_file(program).unwrap();
}

/// The clones of a family are judged in its busiest process, and undone in all if they do harm.
#[test]
fn harm_is_undone_in_all() {
    let harm = "[harm]\nwithin = \"8s\"\nmin_gain_percent = 100.0\n";
    let (program, guest, daemon, _) = optimized(harm, true);
    let mut last = Value::Null;
    wait_until("a verdict", || {
        last = daemon.target(guest.pid());
        let reason = last["reason"].as_str().unwrap_or_default();
        last["state"] == "undone" || reason.contains("could not be measured")
    });
    if last["state"] != "undone" {
        return skip(&format!("nothing can be measured on this machine now: {last}"));
    }
    assert!(last["reason"].as_str().unwrap().contains("does not pay"), "{last}");
    all_are(&guest, "undone");
    finish(guest, &program);
}
