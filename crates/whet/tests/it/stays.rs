//! Threads that stay in a loop for as long as they live: what is undone is undone for them as well.

use crate::support::{Guest, build, finish, run, wait_until, whet, whet_command};
use std::process::{Command, Stdio};

/// From where the first and the second thread's jobs call what they call: the originals' answer, or that of clones.
const FIRST: u64 = 2;
const SECOND: u64 = 3;
/// What is rebuilt.
const ONLY: [&str; 5] = ["--only", "serve", "job", "step", "where"];

/// A guest whose first thread is in its loop; what it finds there.
fn started() -> (Guest, u64) {
    let guest = Guest::working(&build("serves.c"), &[], 1);
    let original = guest.counter(FIRST);
    (guest, original)
}

/// Has the second thread come into the loop; whether it is led to clones.
fn second_comes(guest: &Guest, original: u64) -> bool {
    guest.go();
    guest.second_thread();
    guest.progresses(2);
    guest.counter(SECOND) != original
}

/// Whether clones run what each of the two calls now.
fn in_clones(guest: &Guest, original: u64) -> (bool, bool) {
    guest.progresses(2);
    (guest.counter(FIRST) != original, guest.counter(SECOND) != original)
}

fn ends_well(guest: Guest) {
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None));
}

#[test]
fn who_came_into_a_clone_follows_undo_redo_and_rebuild() {
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
fn who_came_while_it_counted_counts_no_longer() {
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
