//! Inline hooks: a program that writes jumps over the first bytes of functions that whet has rebuilt, and
//! removes them again.
//!
//! The hook on `own` covers a part of a redirect. When the hook is removed, the redirect's bytes are put back
//! as they were. Whatever whet does meanwhile, it never writes over a hook, and clones stay right, so each
//! round is right.

use crate::support::{Answer, Guest, build, wait_until, whet};

const HOOKED: [&str; 2] = ["own", "strtoul"];
/// The guest's counters: rounds, calls that reached each hook, and how often hooks were put on or taken off.
const ROUNDS: u64 = 0;
const HOOKS: [u64; 2] = [1, 2];
const TURNS: u64 = 3;

fn command(name: &str, guest: &Guest, more: &[&str]) -> Answer {
    let pid = guest.arg();
    whet(&[&[name, &pid, "--format", "json"], more].concat())
}

/// Makes the guest turn its hooks on (1, 3, ...) or off.
fn turn(guest: &Guest, turn: u64) {
    guest.go_to(turn);
    wait_until("hooks", || guest.counter(TURNS) == turn);
    guest.progresses(1);
}

/// Returns the hooked functions that `status` names as changed by another program.
fn named(guest: &Guest) -> Vec<String> {
    let status = command("status", guest, &[]).exits(0).json();
    let changed = status["targets"][0]["changed_originals"].as_array().cloned().unwrap_or_default();
    changed.iter().filter_map(|n| n.as_str()).filter(|n| HOOKED.contains(n)).map(str::to_owned).collect()
}

/// Returns whether all calls reach the hooks. A round has 100 calls of `own`, half of them through a pointer,
/// which never leads to a clone, and 50 of `strtoul`.
fn all_come(guest: &Guest) -> bool {
    let seen = || [ROUNDS, HOOKS[0], HOOKS[1]].map(|i| guest.counter(i));
    let before = seen();
    for _ in 0..10 {
        guest.progresses(1);
    }
    let now = seen();
    let [rounds, own, strtoul] = std::array::from_fn(|i| now[i] - before[i]);
    own > 75 * rounds && strtoul > 25 * rounds
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
    assert!(!all_come(&guest), "clones call clones");
    // A hook puts back the bytes that it has saved, and with them the redirect: the undo is not complete, and
    // says so.
    for name in ["undo", "redo", "undo"] {
        let answer = command(name, &guest, &[]);
        assert_eq!(answer.code, Some(if name == "undo" { 9 } else { 0 }), "{answer:?}");
        guest.progresses(1);
    }
    assert!(all_come(&guest), "all calls come to the originals");
    // No journal has the changed bytes.
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
    // The bytes inside a hook need not decode.
    let refused = |why: &str| report["refusals"][why].as_u64().unwrap_or(0);
    assert!(refused("foreign_change") + refused("bad_instruction") >= 2, "{report}");
    assert!(all_come(&guest));
    // The bytes that the hook of `own` puts back lead to the clone of the generation before, which is still
    // mapped.
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
    assert!(all_come(&guest));
    command("undo", &guest, &[]).exits(0);
    command("redo", &guest, &[]).exits(0);
    turn(&guest, 2);
    ends_well(guest);
}

#[test]
fn without_a_daemon_nothing_gives_way() {
    let guest = Guest::working(&build("hooked.c"), &[], 1);
    command("optimize", &guest, &["--seconds", "1"]).exits(0);
    turn(&guest, 1);
    assert!(!all_come(&guest), "the clone of its caller calls the clone of `own`");
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
    wait_until(&format!("hooks that fire; the log: {}", daemon.log()), || all_come(&guest));
    daemon.comes_to(guest.pid(), "optimized");
    turn(&guest, 2);
    drop(daemon);
    ends_well(guest);
    std::fs::remove_file(program).unwrap();
}
