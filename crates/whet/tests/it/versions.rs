//! whets of different versions on one process: an earlier version can undo what a later one has installed.

use crate::support::{Guest, build, changed_text, run, tracers, whet, whet_command};
use serde_json::Value;

const SHUFFLE: [&str; 6] = ["--shuffle", "1", "--only", "mix_some", "sum_up", "round_once"];

/// Returns a whet that writes as a later version may: only the frozen part of its journals is as it is here.
fn later(args: &[&str]) -> std::process::Command {
    let mut command = whet_command(args);
    command.env("WHET_JOURNAL_VERSION", "9");
    command
}

#[test]
fn clones_of_a_later_whet_are_undone() {
    let guest = Guest::working(&build("cases.c"), &["serve"], 1);
    let pid = guest.arg();
    run(later(&[&["optimize", &pid], &SHUFFLE[..]].concat())).exits(0);
    assert_ne!(changed_text(guest.pid()), [] as [String; 0]);
    guest.progresses(1);
    let status = || whet(&["status", &pid, "--format", "json"]).exits(0).json()["targets"][0].clone();
    let found = status();
    assert_eq!((&found["state"], &found["newer_journal"]), (&"optimized".into(), &9.into()), "{found}");
    let text = whet(&["status", &pid]).exits(0).stdout;
    assert!(text.contains("by a newer whet"), "{text}");
    // It can do nothing else, because the rest of the format is not known.
    let refused = || {
        for command in ["redo", "verify", "explain", "measure", "optimize"] {
            let answer = whet(&[command, &pid, "--format", "json"]).exits(5).json();
            assert_eq!(answer["error"]["code"], "newer_journal", "{command}: {answer}");
        }
    };
    let before = changed_text(guest.pid());
    refused();
    assert_eq!(changed_text(guest.pid()), before);
    let undone = whet(&["undo", &pid, "--format", "json"]).exits(0).json();
    assert_eq!(undone["state"], "undone");
    assert!(undone["redirects"]["other"].as_u64().is_some_and(|n| n > 0), "{undone}");
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(status()["state"], "undone");
    refused();
    whet(&["undo", &pid]).exits(0);
    guest.progresses(1);
    assert_eq!(guest.finish().0, Some(0));
}

/// An earlier generation of this version and a later one of another version are both undone.
#[test]
fn generations_of_two_versions_are_undone() {
    let guest = Guest::working(&build("cases.c"), &["serve"], 1);
    let pid = guest.arg();
    whet(&[&["optimize", &pid], &SHUFFLE[..]].concat()).exits(0);
    run(later(&["optimize", &pid, "--shuffle", "2", "--only", "sum_up", "round_once"])).exits(0);
    guest.progresses(1);
    let found: Value = whet(&["status", &pid, "--format", "json"]).exits(0).json()["targets"][0].clone();
    assert_eq!((&found["generation"], &found["newer_journal"]), (&2.into(), &9.into()));
    whet(&["undo", &pid]).exits(0);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    guest.progresses(1);
    assert_eq!(guest.finish().0, Some(0));
}
