//! A host with far more to do than it has CPUs.

use crate::support::{Guest, build, whet};
use std::process::{Child, Command};

/// Busy programs for each CPU: a thread that is ready to run waits for a third of a second.
const EACH: usize = 100;

/// Programs that want all of the CPUs; ended when dropped.
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

/// All three need a stop of every thread, of which some are ready to run and some sleep.
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
