//! Threads that stay in a loop for as long as they live: an undo reaches these threads as well.

use crate::support::{Guest, build, finish, run, wait_until, whet, whet_command};
use std::process::{Command, Stdio};

/// Counters: the address from which the first and the second thread's job makes its call, in an original or
/// in a clone.
const FIRST: u64 = 2;
const SECOND: u64 = 3;
/// The functions that are rebuilt.
const ONLY: [&str; 5] = ["--only", "serve", "job", "step", "where"];

/// Starts a guest whose first thread is in its loop. Returns the address from which its job makes its call.
fn started() -> (Guest, u64) {
    let guest = Guest::working(&build("serves.c"), &[], 1);
    let original = guest.counter(FIRST);
    (guest, original)
}

/// Lets the second thread enter the loop. Returns whether it is led to clones.
fn second_comes(guest: &Guest, original: u64) -> bool {
    guest.go();
    guest.second_thread();
    guest.progresses(2);
    guest.counter(SECOND) != original
}

/// Returns whether the jobs that each of the two threads calls now are clones.
fn in_clones(guest: &Guest, original: u64) -> (bool, bool) {
    guest.progresses(2);
    (guest.counter(FIRST) != original, guest.counter(SECOND) != original)
}

fn ends_well(guest: Guest) {
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None));
}

#[test]
fn threads_in_clones_follow_undo_redo_and_rebuild() {
    let (guest, original) = started();
    let pid = guest.arg();
    let how = ["--seconds", "1", "--count", "0.3", "--format", "json"];
    let optimize = [&["optimize", &pid], &ONLY[..], &how].concat();
    assert_eq!(whet(&optimize).exits(0).json()["generation"], 1);
    assert!(second_comes(&guest, original));
    for _ in 0..3 {
        whet(&["undo", &pid]).exits(0);
        assert_eq!(in_clones(&guest, original), (false, false));
        whet(&["redo", &pid]).exits(0);
        assert_eq!(in_clones(&guest, original), (true, true));
    }
    let before = guest.counter(SECOND);
    assert_eq!(whet(&optimize).exits(0).json()["generation"], 2);
    assert_eq!(in_clones(&guest, original), (true, true));
    let now = guest.counter(SECOND);
    assert_eq!((now == before, now), (false, guest.counter(FIRST)));
    ends_well(guest);
}

#[test]
fn threads_that_came_during_counting_stop_counting() {
    let (guest, original) = started();
    let pid = guest.arg();
    let optimize = [&["optimize", &pid], &ONLY[..], &["--shuffle", "1", "--count", "60"]].concat();
    let optimizes = whet_command(&optimize).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("counting", || guest.counter(FIRST) != original);
    assert!(second_comes(&guest, original));
    let status = whet(&["status", &pid, "--format", "json"]).exits(0).json();
    assert_eq!(status["targets"][0]["state"], "counting", "{status}");
    let mut interrupt = Command::new("kill");
    interrupt.args(["-INT", &optimizes.id().to_string()]);
    run(interrupt).exits(0);
    assert_ne!(finish(optimizes).0, Some(0));
    assert_eq!(in_clones(&guest, original), (false, false));
    ends_well(guest);
}
