//! whet killed while it works: whatever the instant, the program runs on unharmed, and the next whet can undo
//! everything.
//!
//! With `WHET_FAULT=N` whet kills itself at the N-th point at which it changes something. The program
//! computes, throws and walks its stack in three threads, and compares each round with the first.

use crate::support::{
    Answer, Guest, build, changed_text, pid_of, stress, tracers, wait_until, whet, whet_command,
};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

const THREADS: u64 = 3;

/// Functions of the program, of libstdc++ and of libc, so that each has a code cache near it.
const ONLY: [&str; 13] = [
    "choose",
    "loop",
    "frames",
    "descend",
    "attempt",
    "rounds",
    "malloc",
    "free",
    "backtrace",
    "__cxa_throw",
    "__cxa_begin_catch",
    "__cxa_end_catch",
    "__cxa_allocate_exception",
];

/// Returns the points to die at, from the first of them: every third up to the fortieth, then some; all of
/// them in the long form.
fn points(first: u32) -> Box<dyn Iterator<Item = u32>> {
    if stress() { Box::new(1..2000) } else { Box::new((first..=40).step_by(3).chain((41..2000).step_by(9))) }
}

fn start() -> Guest {
    Guest::working(&build("throwing.cc"), &[], THREADS)
}

/// Ends a program that was not harmed: its output is that of an untouched program.
fn ends_well(guest: Guest) {
    static UNTOUCHED: LazyLock<(Option<i32>, Option<i32>, String)> = LazyLock::new(|| start().finish());
    assert_eq!((UNTOUCHED.0, UNTOUCHED.1), (Some(0), None));
    assert_eq!(guest.finish(), *UNTOUCHED);
}

fn optimize_arguments(guest: &Guest) -> Vec<String> {
    let pid = guest.arg();
    let how = ["optimize", &pid, "--shuffle", "1", "--format", "json", "--only"];
    how.into_iter().chain(ONLY).map(str::to_owned).collect()
}

/// As [`optimize_arguments`], with the clones in files.
fn in_files(guest: &Guest) -> Vec<String> {
    [optimize_arguments(guest), vec!["--code-cache".to_owned(), "file".to_owned()]].concat()
}

fn optimize(guest: &Guest) -> Answer {
    whet(&optimize_arguments(guest))
}

/// Runs whet so that it dies at a point. Returns `None` if it died, and its answer if it ended before.
fn dying_at(point: u32, arguments: &[String]) -> Option<Answer> {
    let mut command = whet_command(arguments);
    command.env("WHET_FAULT", point.to_string());
    let answer = crate::support::run(command);
    match answer.signal {
        None => Some(answer),
        Some(signal) => {
            assert_eq!(signal, 9, "{answer:?}");
            None
        }
    }
}

/// Returns whether a program is so full of killed installations that there is no room for another.
fn is_full(answer: &Answer) -> bool {
    answer.code == Some(5) && ["memory_cap", "too_many_caches"].iter().any(|c| answer.stdout.contains(c))
}

/// Checks that all threads run, that no process traces them, and that all changed bytes are those of the
/// journal. Returns the number of live redirects.
#[track_caller]
fn is_intact(guest: &Guest) -> u64 {
    guest.progresses(THREADS);
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    let verified = whet(&["verify", &guest.arg(), "--format", "json"]).exits(0).json();
    assert_eq!(verified["identical"], true, "{verified}");
    verified["live_redirects"].as_u64().unwrap()
}

/// Undoes everything, and checks without whet that no change is left.
#[track_caller]
fn take_out(guest: &Guest) {
    let undone = whet(&["undo", &guest.arg(), "--format", "json"]);
    assert!(matches!(undone.code, Some(0 | 7)), "{undone:?}");
    assert_eq!(is_intact(guest), 0, "{undone:?}");
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
}

/// Something else is mapped at chosen places meanwhile: at the anchor's (the first one of all), at a cache's.
/// Clones are placed elsewhere; after four attempts whet says that they may be tried again.
#[test]
fn places_that_are_taken() {
    for taken in ["1", "1,2,3", "2", "3", "2,4,6", "2,4,6,8", "1,2,3,4"] {
        for words in [optimize_arguments, in_files] {
            let guest = start();
            let mut command = whet_command(&words(&guest));
            command.env("WHET_TAKEN", taken);
            let answer = crate::support::run(command);
            if taken.split(',').count() < 4 {
                answer.exits(0);
                assert!(is_intact(&guest) > 0, "{taken}");
            } else {
                assert_eq!(answer.exits(6).json()["error"]["code"], "busy");
                assert_eq!(is_intact(&guest), 0, "{taken}");
                optimize(&guest).exits(0);
                assert!(is_intact(&guest) > 0, "{taken}");
            }
            take_out(&guest);
            ends_well(guest);
        }
    }
}

#[test]
fn the_first_installation() {
    let started = Instant::now();
    for point in points(1) {
        let guest = start();
        let survived = dying_at(point, &in_files(&guest));
        let live = is_intact(&guest);
        if let Some(answer) = survived {
            answer.exits(0);
            assert!(live > 10, "{live} redirects");
            println!("an installation passes fewer than {point} points ({:?})", started.elapsed());
            assert!(point > 10);
            ends_well(guest);
            return;
        }
        take_out(&guest);
        ends_well(guest);
    }
    panic!("no end of points");
}

#[test]
fn installations_over_installations() {
    let started = Instant::now();
    let mut guest = start();
    let mut fresh = 0;
    for point in points(2) {
        let mut survived = dying_at(point, &optimize_arguments(&guest));
        // Each generation must be marked as undone, so without new programs the number of points would grow
        // without end.
        if survived.as_ref().is_some_and(is_full) || point % 8 == 0 {
            ends_well(std::mem::replace(&mut guest, start()));
            optimize(&guest).exits(0);
            fresh += 1;
            survived = dying_at(point, &optimize_arguments(&guest));
        }
        is_intact(&guest);
        if let Some(answer) = survived {
            answer.exits(0);
            println!("another one fewer than {point}, with {fresh} new programs ({:?})", started.elapsed());
            assert!(point > 10);
            take_out(&guest);
            ends_well(guest);
            return;
        }
        // Every other time the remains stay, and the next installation comes on top.
        if point % 2 == 0 {
            take_out(&guest);
        }
    }
    panic!("no end of points");
}

#[test]
fn undo_and_redo() {
    let started = Instant::now();
    let guest = start();
    let command = |word: &str| vec![word.to_owned(), guest.arg()];
    optimize(&guest).exits(0);
    let all = is_intact(&guest);
    for point in points(1) {
        // From everything to nothing, and on from where whet died.
        let undone = dying_at(point, &command("undo"));
        let left = is_intact(&guest);
        take_out(&guest);
        // From nothing to everything.
        let redone = dying_at(point, &command("redo"));
        let partly = is_intact(&guest);
        if redone.is_none() && point % 2 == 0 {
            take_out(&guest);
        }
        whet(&command("redo")).exits(0);
        assert_eq!(is_intact(&guest), all);
        if let (Some(undone), Some(redone)) = (undone, redone) {
            undone.exits(0);
            redone.exits(0);
            assert_eq!((left, partly), (0, all));
            println!("undo and redo pass fewer than {point} points ({:?})", started.elapsed());
            assert!(point > 5);
            take_out(&guest);
            ends_well(guest);
            return;
        }
    }
    panic!("no end of points");
}

/// Deaths one after the other, in an order drawn from a fixed seed: each whet begins with what the one before
/// left unfinished.
#[test]
fn one_after_the_other() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |n: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap() % n
    };
    let mut guest = start();
    optimize(&guest).exits(0);
    let (mut deaths, mut fresh) = (0, 0);
    for _ in 0..if stress() { 600 } else { 25 } {
        let (arguments, points) = match random(3) {
            0 => (optimize_arguments(&guest), 30),
            1 => (vec!["undo".to_owned(), guest.arg()], 8),
            _ => (vec!["redo".to_owned(), guest.arg()], 8),
        };
        match dying_at(1 + random(points), &arguments) {
            None => deaths += 1,
            Some(full) if is_full(&full) => {
                take_out(&guest);
                ends_well(std::mem::replace(&mut guest, start()));
                optimize(&guest).exits(0);
                fresh += 1;
            }
            Some(answer) => drop(answer.exits(0)),
        }
        is_intact(&guest);
    }
    println!("{deaths} deaths, {fresh} new programs");
    take_out(&guest);
    ends_well(guest);
}

/// Starts a program that has huge pages switched off.
fn without_huge_pages() -> Guest {
    Guest::working(&build("throwing.cc"), &["small"], THREADS)
}

/// Returns whether a program may have huge pages, if the kernel reports it.
fn huge_pages(guest: &Guest) -> Option<bool> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    status.lines().find_map(|l| l.strip_prefix("THP_enabled:")).map(|v| v.trim() == "1")
}

/// Counts mappings of code that have huge pages.
fn code_on_huge_pages(guest: &Guest) -> usize {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", guest.pid())).unwrap();
    let mut code = false;
    let mut huge = |line: &str| {
        if line.contains('-') {
            code = line.contains(" r-xp ");
        }
        code && line.strip_prefix("AnonHugePages:").is_some_and(|kb| kb.trim() != "0 kB")
    };
    smaps.lines().filter(|line| huge(line)).count()
}

/// The arguments to rebuild all functions: clones of a few are not worth a huge page.
fn rebuild_all(guest: &Guest) -> [String; 4] {
    ["optimize", &guest.arg(), "--shuffle", "1"].map(str::to_owned)
}

/// A program may have switched huge pages off for its data. Its clones get them all the same, and the switch
/// is restored.
#[test]
fn clones_on_huge_pages_of_a_program_that_has_them_switched_off() {
    let doctor = whet(&["doctor", "--format", "json"]).json();
    let check = doctor["checks"].as_array().unwrap().iter().find(|c| c["name"] == "huge-pages").unwrap();
    if check["ok"] == false {
        return crate::support::skip("this host has no huge pages");
    }
    let guest = without_huge_pages();
    assert_eq!(code_on_huge_pages(&guest), 0);
    let mut got = 0;
    // Sometimes the kernel has no huge page at hand.
    for _ in 0..4 {
        whet(&rebuild_all(&guest)).exits(0);
        got += code_on_huge_pages(&guest);
        assert_ne!(huge_pages(&guest), Some(true));
        is_intact(&guest);
    }
    assert!(got > 0, "small pages each time");
    take_out(&guest);
    ends_well(guest);
}

/// If a program has huge pages switched off, whet switches them on for a moment. If whet dies then, the next
/// whet switches them off again, whatever its command is.
#[test]
fn a_switch_left_on() {
    let (start, all) = (without_huge_pages, rebuild_all);
    if huge_pages(&start()) != Some(false) {
        return crate::support::skip("the kernel does not show whether huge pages are switched off");
    }
    // Returns whether a whet that died at a point left them on.
    let left_on = |point: u32, next: fn(&Guest) -> Vec<String>| {
        let guest = start();
        assert!(dying_at(point, &all(&guest)).is_none(), "huge pages were never switched on");
        is_intact(&guest);
        let on = huge_pages(&guest) == Some(true);
        if on {
            let next = next(&guest);
            whet(&next).exits(0);
            assert_eq!(huge_pages(&guest), Some(false), "after {next:?}");
            is_intact(&guest);
        }
        ends_well(guest);
        on
    };
    // They are on at two points at least: before the pages are touched, and after.
    let undo = |guest: &Guest| vec!["undo".to_owned(), guest.arg()];
    let optimize = |guest: &Guest| rebuild_all(guest).to_vec();
    let found = (8..100).step_by(2).find(|&point| left_on(point, undo)).unwrap();
    left_on(found - 1, optimize);
    assert!((found + 1..100).any(|point| !left_on(point, optimize)));
}

/// The same for a program whose clones are in order: what the daemon does after the death of a worker.
#[test]
fn a_switch_left_on_is_mended() {
    let guest = without_huge_pages();
    if huge_pages(&guest) != Some(false) {
        return crate::support::skip("the kernel does not show whether huge pages are switched off");
    }
    whet(&rebuild_all(&guest)).exits(0);
    for point in (5..30).step_by(2) {
        assert!(dying_at(point, &rebuild_all(&guest)).is_none(), "huge pages were never switched on");
        if huge_pages(&guest) == Some(true) {
            engine::mend(engine::Pid(guest.pid())).unwrap();
            assert_eq!(huge_pages(&guest), Some(false));
            is_intact(&guest);
            take_out(&guest);
            return ends_well(guest);
        }
    }
    panic!("huge pages were never switched on");
}

/// Deaths at any instant, not only at the points.
#[test]
fn at_any_instant() {
    let mut guest = start();
    let begun = Instant::now();
    optimize(&guest).exits(0);
    let whole = begun.elapsed();
    let times = if stress() { 300 } else { 12 };
    for i in 0..times {
        let mut child = whet_command(&in_files(&guest)).stdout(std::process::Stdio::null()).spawn().unwrap();
        // Most of the time passes before anything is changed, so more deaths fall into the later half.
        let until = whole.mul_f64(0.4 + 0.7 * f64::from(i) / f64::from(times));
        let started = Instant::now();
        while started.elapsed() < until && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(100));
        }
        let pid = pid_of(&child);
        let _ = child.kill();
        child.wait().unwrap();
        wait_until("nobody traces", || !tracers(guest.pid()).contains(&pid));
        is_intact(&guest);
        if i % 3 == 0 {
            take_out(&guest);
        }
        if i % 20 == 19 {
            take_out(&guest);
            ends_well(std::mem::replace(&mut guest, start()));
        }
    }
    take_out(&guest);
    ends_well(guest);
}
