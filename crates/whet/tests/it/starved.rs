//! A host with far more to do than it has CPUs.

use crate::support::{Guest, build, build_with, skip, wait_until, whet, whet_command};
use std::process::{Child, Command, Stdio};

/// Busy programs for each CPU, with which a thread that is ready to run waits for a third of a second.
const EACH: usize = 100;

/// Programs that keep all CPUs busy; ended when dropped.
struct Crowd(Vec<Child>);

impl Crowd {
    fn gather() -> Self {
        let cpus = std::thread::available_parallelism().map_or(2, usize::from).min(4);
        let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self((0..EACH * cpus).map(|_| busy()).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// All three commands need a stop of every thread. Some threads are ready to run and some sleep.
#[test]
fn a_starved_target_is_optimized_undone_and_redone() {
    const THREADS: u64 = 3;
    let guest = Guest::working(&build("throwing.cc"), &[], THREADS);
    let pid = guest.arg();
    let crowd = Crowd::gather();
    let only = ["--only", "choose", "loop", "descend", "attempt", "rounds"];
    let optimize = [&["optimize", &pid, "--shuffle", "1", "--format", "json"], &only[..]].concat();
    let optimized = whet(&optimize).exits(0).json();
    println!("{}, mapping {}", optimized["stop_ms"], optimized["map_stop_ms"]);
    for (command, state) in [("undo", "undone"), ("redo", "optimized"), ("undo", "undone")] {
        let answer = whet(&[command, &pid, "--format", "json"]).exits(0).json();
        println!("{command}: {}", answer["stop_ms"]);
        assert_eq!(answer["state"], state);
    }
    drop(crowd);
    guest.progresses(THREADS);
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None));
}

/// A target with much code is killed while its clones are built: whet does not continue to build.
#[test]
fn work_for_a_target_that_is_killed_ends() {
    let large = ["-Wl,--no-as-needed", "-l:libLLVM-14.so.1"];
    let Ok(program) = build_with("probed.c", &large) else {
        return skip("no libLLVM-14.so.1 (libllvm14)");
    };
    let mut guest = Guest::working(&program, &[], 1);
    let words = ["optimize", &guest.arg(), "--shuffle", "1", "--format", "json"];
    let whet_ = whet_command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("building", || whet(&["status", &guest.arg()]).stdout.contains("optimizing"));
    guest.kill();
    let out = whet_.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(10), "{out:?}");
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(said["error"]["code"], "gone", "{said}");
}
