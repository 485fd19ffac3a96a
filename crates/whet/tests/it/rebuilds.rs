//! A process that is rebuilt again and again: the room for clones comes to an end, and rebuilding does not.

use crate::support::{Guest, build, changed_text, run, stress, wait_until, whet, whet_command};
use serde_json::Value;
use std::fs;

/// A figure of `/proc/PID/status`. KiB.
fn kib(guest: &Guest, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    let value = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Kills whet at each numbered point of a rebuild by earlier clones, and undoes what is there.
fn dies_at_any_instant(guest: &Guest) {
    let pid = guest.arg();
    for point in 1.. {
        let mut command = whet_command(&["optimize", &pid, "--seconds", "0.15", "--format", "json"]);
        command.env("WHET_FAULT", point.to_string());
        let answer = run(command);
        guest.progresses(1);
        // In every other case whoever comes next rebuilds what the dead one left.
        if point % 2 == 0 {
            whet(&["undo", &pid]).exits(0);
            assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
        }
        if answer.signal.is_none() && answer.code != Some(7) {
            assert!(point > 3 && answer.exits(0).json()["reused"].is_u64());
            return;
        }
    }
}

/// One more; `None` where the guest got no CPU while it was sampled.
fn rebuild(guest: &Guest) -> Option<Value> {
    let pid = guest.arg();
    let answer = whet(&["optimize", &pid, "--seconds", "0.15", "--count", "0.02", "--format", "json"]);
    (answer.code != Some(7)).then(|| answer.exits(0).json())
}

#[test]
fn rebuilds_without_end() {
    let wanted = if stress() { 1000 } else { 60 };
    let guest = Guest::working(&build("throwing.cc"), &[], 1);
    let (mut made, mut reused, mut sizes) = (0, 0, Vec::new());
    while made < wanted {
        let Some(report) = rebuild(&guest) else { continue };
        made += 1;
        assert_eq!(
            (&report["state"], &report["generation"]),
            (&"optimized".into(), &made.into()),
            "{report}"
        );
        reused += u64::from(!report["reused"].is_null());
        sizes.push((kib(&guest, "VmSize"), kib(&guest, "VmRSS")));
    }
    guest.progresses(1);
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    eprintln!("{made} rebuilds, {reused} by earlier clones; VmSize and VmRSS in KiB {first:?} to {last:?}");
    assert!(reused > 0 && last.0 - first.0 < 128 << 10);
    // Once there is no room nothing grows but the guest's own memory, by a little.
    let full = sizes[sizes.len() - usize::try_from(reused).unwrap()];
    assert!(last.0 <= full.0 + 256 && last.1 <= full.1 + 256, "{full:?} {last:?}");
    dies_at_any_instant(&guest);
    whet(&["redo", &guest.arg()]).exits(0);
    // What is in force is one generation, as ever.
    let pid = guest.arg();
    whet(&["verify", &pid]).exits(0);
    whet(&["undo", &pid]).exits(0);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    whet(&["redo", &pid]).exits(0);
    wait_until("a state", || whet(&["status", &pid]).exits(0).stdout.contains("optimized"));
    guest.progresses(1);
    assert_eq!(guest.finish().1, None);
}
