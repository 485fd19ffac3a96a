//! Counters lie behind the GS base of each thread. A program that uses the GS base itself is not harmed,
//! whenever it begins.

use crate::support::{Guest, build, build_with, wait_until, whet, whet_command};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

fn optimizes(guest: &Guest, count: &str) -> Child {
    let words = ["optimize", &guest.arg(), "--seconds", "0.5", "--count", count, "--format", "json"];
    whet_command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until clones count or whet has ended. Returns whether clones count.
fn counts(guest: &Guest, whet_: &mut Child) -> bool {
    let state = |word: &str| whet(&["status", &guest.arg()]).stdout.contains(word);
    let mut counts = false;
    wait_until("counting", || {
        counts = state("counting");
        counts || whet_.try_wait().unwrap().is_some()
    });
    counts
}

fn answer(whet_: Child) -> serde_json::Value {
    let out = whet_.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Optimizes a guest whose threads wait inside clones that count, and use the GS base afterwards. Returns
/// what whet reports of counting.
#[track_caller]
fn uses_gs_afterwards(program: &Path, arguments: &[&str], count: &str) -> serde_json::Value {
    goes_on_to_use_gs(Guest::working(program, arguments, 2), count)
}

/// Does the same for a guest with clones that counted before, and count again.
#[track_caller]
fn uses_gs_after_counting_again(program: &Path) -> serde_json::Value {
    let guest = Guest::working(program, &[], 2);
    was_counted(&answer(optimizes(&guest, "0.3"))["counting"]);
    let counting = goes_on_to_use_gs(guest, "2");
    assert!(counting["again"].as_u64() > Some(0), "{counting}");
    counting
}

#[track_caller]
fn goes_on_to_use_gs(guest: Guest, count: &str) -> serde_json::Value {
    let mut whet_ = optimizes(&guest, count);
    if counts(&guest, &mut whet_) {
        // Since then both threads have begun a new round, in clones that count.
        guest.progresses(2);
    }
    guest.go();
    wait_until("threads that wait", || guest.counter(2) == 1 && guest.counter(3) == 1);
    let answer = answer(whet_);
    let (code, signal, _) = guest.finish();
    assert_eq!((code, signal), (Some(0), None), "1: a base is left, 2: memory has changed; {answer}");
    answer["counting"].clone()
}

#[track_caller]
fn was_counted(counting: &serde_json::Value) {
    assert!(counting["left_out"].is_null() && counting["counters"].as_u64() > Some(0), "{counting}");
}

#[track_caller]
fn was_inferred(counting: &serde_json::Value) {
    assert!(counting["left_out"].as_str().is_some_and(|w| w.contains("GS")), "{counting}");
}

fn library() -> PathBuf {
    build_with("gslib.c", &["-shared", "-fPIC", "-mfsgsbase"]).unwrap()
}

/// The control: counts come from counters, and no thread keeps a base.
#[test]
fn no_thread_keeps_a_base() {
    was_counted(&uses_gs_afterwards(&build("gs.c"), &[], "2"));
    was_counted(&uses_gs_after_counting_again(&build("gs.c")));
}

#[test]
fn a_library_loaded_later_may_use_it() {
    let library = library();
    was_counted(&uses_gs_afterwards(&build("gs.c"), &[library.to_str().unwrap()], "2"));
}

/// Counting ends as soon as a library that uses the GS base is loaded.
#[test]
fn a_library_loaded_while_functions_are_counted_may_use_it() {
    let library = library();
    was_inferred(&uses_gs_afterwards(&build("gs.c"), &[library.to_str().unwrap(), "early"], "10"));
}

#[test]
fn programs_that_use_the_gs_base_are_not_counted() {
    for way in ["BY_PRCTL", "BY_CODE", "BY_WRGSBASE", "BY_WRGSBASE32", "BY_RELOAD", "BY_POP"] {
        let program = build_with("gs.c", &[&format!("-D{way}"), "-mfsgsbase"]).unwrap();
        eprintln!("{way}");
        was_inferred(&uses_gs_afterwards(&program, &[], "1"));
    }
}

/// The child has clones that count, and a base in memory of its own.
#[test]
fn a_child_forked_while_functions_are_counted_has_no_base() {
    let program = build_with("gs.c", &["-DFORKS"]).unwrap();
    was_counted(&uses_gs_afterwards(&program, &[], "2"));
    was_counted(&uses_gs_after_counting_again(&program));
}

/// A target whose new memory is locked is counted, or its counts are inferred.
#[test]
fn locked_memory() {
    // KiB. 0: the system's limit; 72: enough for clones, not for counters.
    for (limit, counted) in [(0, true), (72, false)] {
        let program = build_with("gs.c", &[&format!("-DLOCKED={limit}")]).unwrap();
        let counting = uses_gs_afterwards(&program, &[], "1");
        assert_eq!(counting["left_out"].is_null(), counted, "{counting}");
    }
}
