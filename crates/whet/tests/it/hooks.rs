//! Inline hooks: a program that writes jumps over the first bytes of functions that whet has rebuilt, and takes them off.
//!
//! The hook on `own` covers a redirect in part, and whoever takes it off puts back the redirect's bytes as they were.
//! Whatever whet does meanwhile, it never writes over a hook, and clones stay right, so each round is right.

use crate::support::{Answer, Guest, build, wait_until, whet};

const HOOKED: [&str; 2] = ["own", "strtoul"];
/// Rounds, calls that came to each of the hooks, and how often hooks were put on or taken off.
const HOOKS: [u64; 2] = [1, 2];
const TURNS: u64 = 3;

fn command(name: &str, guest: &Guest, more: &[&str]) -> Answer {
    let pid = guest.arg();
    whet(&[&[name, &pid, "--format", "json"], more].concat())
}

/// Has the guest turn its hooks on (1, 3, ...) or off.
fn turn(guest: &Guest, turn: u64) {
    guest.go_to(turn);
    wait_until("hooks", || guest.counter(TURNS) == turn);
    guest.progresses(1);
}

/// The hooked functions that `status` names as changed by somebody else.
fn named(guest: &Guest) -> Vec<String> {
    let status = command("status", guest, &[]).exits(0).json();
    let changed = status["targets"][0]["changed_originals"].as_array().cloned().unwrap_or_default();
    changed.iter().filter_map(|n| n.as_str()).filter(|n| HOOKED.contains(n)).map(str::to_owned).collect()
}

/// Whether calls come to both hooks.
fn fire(guest: &Guest) -> bool {
    let before = HOOKS.map(|i| guest.counter(i));
    guest.progresses(1);
    HOOKS.iter().zip(before).all(|(i, before)| guest.counter(*i) >= before + 50)
}

fn rebuilt() -> Guest {
    let guest = Guest::working(&build("hooked.c"), &[], 1);
    command("optimize", &guest, &["--shuffle", "3"]).exits(0);
    guest.progresses(1);
    guest
}

#[track_caller]
fn ends_well(guest: Guest) {
    command("undo", &guest, &[]).exits(0);
    guest.progresses(1);
    let verified = command("verify", &guest, &[]).exits(0).json();
    assert_eq!(
        (&verified["identical"], &verified["live_redirects"]),
        (&true.into(), &0.into()),
        "{verified}"
    );
    assert_eq!(guest.finish(), (Some(0), None, String::new()));
}

#[test]
fn hooks_are_named_and_never_written_over() {
    let guest = rebuilt();
    turn(&guest, 1);
    assert_eq!(named(&guest), HOOKED);
    // Where a hook stands, what it has saved comes back with it: the undo is not complete, and says so.
    for name in ["undo", "redo", "undo"] {
        let answer = command(name, &guest, &[]);
        assert_eq!(answer.code, Some(if name == "undo" { 9 } else { 0 }), "{answer:?}");
        guest.progresses(1);
    }
    assert!(fire(&guest), "all calls come to the originals");
    // The changed bytes are in no journal.
    command("verify", &guest, &[]).exits(8);
    turn(&guest, 2);
    assert!(named(&guest).is_empty());
    ends_well(guest);
}

#[test]
fn a_rebuild_gives_way_to_hooks() {
    let guest = rebuilt();
    turn(&guest, 1);
    let report = command("optimize", &guest, &["--shuffle", "4"]).exits(0).json();
    // An address in a hook need not decode.
    let refused = |why: &str| report["refusals"][why].as_u64().unwrap_or(0);
    assert!(refused("foreign_change") + refused("bad_instruction") >= 2, "{report}");
    assert!(fire(&guest));
    // What the hook of `own` puts back leads to the clone of the generation before, which is there yet.
    turn(&guest, 2);
    command("optimize", &guest, &["--shuffle", "5"]).exits(0);
    guest.progresses(1);
    ends_well(guest);
}

#[test]
fn hooks_that_were_there_before() {
    let guest = Guest::working(&build("hooked.c"), &[], 1);
    turn(&guest, 1);
    command("optimize", &guest, &["--shuffle", "3"]).exits(0);
    assert!(fire(&guest));
    command("undo", &guest, &[]).exits(0);
    command("redo", &guest, &[]).exits(0);
    turn(&guest, 2);
    ends_well(guest);
}

#[test]
fn the_daemon_gives_way_to_hooks() {
    let program = crate::support::scratch("hooked");
    crate::support::copy(&build("hooked.c"), &program);
    let guest = Guest::working(&program, &[], 1);
    let more = "[harm]\njudge = false\n[reoptimize]\nevery = \"1s\"\n";
    let mut daemon = crate::daemon::Daemon::for_program(&program, more);
    daemon.start();
    daemon.comes_to(guest.pid(), "optimized");
    turn(&guest, 1);
    wait_until(&format!("hooks that fire; the log: {}", daemon.log()), || fire(&guest));
    daemon.comes_to(guest.pid(), "optimized");
    turn(&guest, 2);
    drop(daemon);
    ends_well(guest);
    std::fs::remove_file(program).unwrap();
}
