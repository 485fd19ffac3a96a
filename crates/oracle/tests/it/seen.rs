//! Unmodified profilers see clones in files.

use crate::support::stranger::{Stack, profile};
use crate::support::{Guest, guests, server, shuffled, stress};
use engine::{CodeCache, OptimizeOptions, Pid, optimize, undo};
use std::path::PathBuf;
use std::time::Duration;

/// Removes the files that other tools use: the perf map, and the copies of code files.
fn without_files(pid: Pid, copies: &[String]) {
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    for file in copies.iter().map(PathBuf::from).chain([map]) {
        let _ = std::fs::remove_file(file);
    }
}

/// Checks that at least 99% of stacks are whole, also of the stacks of threads in user code. All clones on
/// them must have names. Returns how many stacks of threads in user code have clones.
#[track_caller]
fn are_whole(stacks: &[Stack], what: &str) -> usize {
    let running = |s: &&Stack| s.running;
    for stacks in [stacks.iter().collect::<Vec<_>>(), stacks.iter().filter(running).collect()] {
        let broken: Vec<&&Stack> = stacks.iter().filter(|s| !s.whole).collect();
        eprintln!("{what}: {} stacks, {} not whole", stacks.len(), broken.len());
        assert!(broken.len() * 100 <= stacks.len(), "{what}: {broken:#?}");
    }
    let nameless = stacks.iter().find(|s| !s.clones_have_names());
    assert!(nameless.is_none(), "{nameless:#?}");
    stacks.iter().filter(running).filter(|s| s.has_clones()).count()
}

fn in_files(options: OptimizeOptions) -> OptimizeOptions {
    OptimizeOptions { code_cache: CodeCache::File, ..options }
}

#[test]
fn a_stranger_sees_clones_in_files() {
    let guest = Guest::start(&guests().join("qsort.c"), &[]);
    let report = optimize(guest.pid(), &in_files(shuffled(1)), &mut |_| {}).unwrap();
    let files = report.code_files.unwrap();
    if !files.mapped {
        return eprintln!("skipped: {:?}", files.left_out);
    }
    without_files(guest.pid(), &files.copies);
    let time = Duration::from_secs(if stress() { 20 } else { 1 });
    assert!(are_whole(&profile(guest.pid(), time), "clones in files") > 5);
    // Frames of clones that were undone stay on stacks.
    undo(guest.pid()).unwrap();
    are_whole(&profile(guest.pid(), time), "undone");

    // The counter-test: in anonymous memory the same profiler loses the stacks.
    optimize(guest.pid(), &shuffled(2), &mut |_| {}).unwrap();
    let lost = profile(guest.pid(), time).iter().filter(|s| !s.whole).count();
    assert!(lost > 0);
}

#[test]
fn a_stranger_sees_a_server() {
    let server = server::Loaded::start();
    let (sampling, counting) = (Duration::from_secs(2), Some(Duration::from_secs(1)));
    let options = in_files(OptimizeOptions { sampling, counting, ..OptimizeOptions::default() });
    let report = optimize(server.pid, &options, &mut |_| {}).unwrap();
    let files = report.code_files.unwrap();
    if !files.mapped {
        return eprintln!("skipped: {:?}", files.left_out);
    }
    without_files(server.pid, &files.copies);
    let time = Duration::from_secs(if stress() { 60 } else { 4 });
    let stacks = profile(server.pid, time);
    undo(server.pid).unwrap();
    let said = server.end();
    assert!(are_whole(&stacks, &format!("a server, {said} queries")) > 20);
}
