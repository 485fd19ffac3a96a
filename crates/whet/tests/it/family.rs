//! Families: a parent with workers that it forks, short-lived ones among them.

use crate::support::{
    Answer, Guest, build, build_with, changed_text, run, stress, tracers, wait_until, whet, whet_command,
};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

/// The page's words behind the counters of rounds.
const ENDED: u64 = 2;
const NEWEST: u64 = 3;

/// Starts a family, and waits until its workers work.
fn start(long: u64, flows: bool) -> Guest {
    let long = long.to_string();
    let args: Vec<&str> = [long.as_str()].into_iter().chain(flows.then_some("flows")).collect();
    let guest = Guest::start(&build("family.c"), &args);
    works(&guest, flows);
    guest
}

/// Waits until long-lived workers have done more, and until further short-lived ones have ended.
#[track_caller]
fn works(guest: &Guest, flows: bool) {
    guest.progresses(1);
    let ended = guest.counter(ENDED);
    wait_until("short-lived workers", || !flows || guest.counter(ENDED) > ended + 2);
}

fn on_family(command: &str, pid: &str, more: &[&str]) -> Answer {
    let words = [command, "--family", pid, "--format", "json"];
    whet(&words.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Returns how many members are in which state.
fn states(guest: &Guest) -> Value {
    on_family("status", &guest.arg(), &[]).exits(0).json()["states"].clone()
}

/// Returns the long-lived workers: all members, where no short-lived ones come and go.
fn members(guest: &Guest) -> Vec<i32> {
    let status = on_family("status", &guest.arg(), &[]).exits(0).json();
    let pid = |m: &Value| i32::try_from(m["pid"].as_i64().unwrap()).unwrap();
    status["members"].as_array().unwrap().iter().map(pid).collect()
}

/// Checks that all processes work untraced, and that all changed bytes are those of the journals. Returns the
/// number of live redirects.
#[track_caller]
fn is_intact(guest: &Guest, flows: bool) -> u64 {
    works(guest, flows);
    let verified = on_family("verify", &guest.arg(), &[]).exits(0).json();
    assert_eq!(verified["identical"], true, "{verified}");
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    verified["live_redirects"].as_u64().unwrap()
}

/// Undoes the family, and checks without whet that its parent and its newest long-lived worker are unchanged.
#[track_caller]
fn take_out(guest: &Guest) {
    let undone = on_family("undo", &guest.arg(), &[]);
    assert!(matches!(undone.code, Some(0 | 7)), "{undone:?}");
    let newest = i32::try_from(guest.counter(NEWEST)).unwrap();
    for pid in [guest.pid(), newest] {
        assert_eq!(changed_text(pid), [] as [String; 0], "{pid}: {undone:?}");
    }
}

#[track_caller]
fn ends_well(guest: Guest) {
    assert_eq!(guest.finish(), (Some(0), None, "done\n".to_owned()));
}

const FAST: [&str; 4] = ["--seconds", "1", "--count", "0.3"];

#[test]
fn one_build_for_all() {
    let guest = start(4, true);
    let answer = on_family("optimize", &guest.arg(), &FAST).exits(0).json();
    let (parent, report) = (&answer["parent"], &answer["members"]);
    assert_eq!(parent["pid"], guest.pid(), "{answer}");
    // The parent only waits for its workers, so the counts are a worker's.
    assert!(parent["counting"]["counted_in"].is_i64(), "{answer}");
    assert!(parent["counting"]["left_out"].is_null(), "{answer}");
    assert_eq!(report["left_alone"], serde_json::json!([]), "{answer}");
    assert_eq!(report["installed"].as_u64(), Some(4), "{answer}");
    // Later workers inherit the clones.
    works(&guest, true);
    let all_are = |state: &str| {
        let states = states(&guest);
        assert!(states[state].as_u64() >= Some(4), "{states}");
        assert_eq!(states.as_object().unwrap().len(), 1, "{states}");
    };
    all_are("optimized");
    assert!(is_intact(&guest, true) > 5 * 3);
    let again = on_family("redo", &guest.arg(), &[]).exits(0).json();
    assert_eq!(again["members"]["installed"], 0, "{again}");
    assert!(again["members"]["in_force"].as_u64() >= Some(4), "{again}");

    // Any member names the family.
    let worker = guest.counter(NEWEST).to_string();
    let undone = on_family("undo", &worker, &[]).exits(0).json();
    assert_eq!(undone["parent"], guest.pid(), "{undone}");
    assert_eq!(undone["left"], serde_json::json!([]), "{undone}");
    all_are("undone");
    assert_eq!(is_intact(&guest, true), 0);
    take_out(&guest);

    let redone = on_family("redo", &worker, &[]).exits(0).json();
    assert!(redone["members"]["redone"].as_u64() >= Some(4), "{redone}");
    all_are("optimized");
    let explained = whet(&["explain", "--family", &worker, "--format", "json"]).exits(0).json();
    assert_eq!(explained["pid"], guest.pid(), "{explained}");
    is_intact(&guest, true);
    // A second generation takes the place of the first in all of them.
    let second = on_family("optimize", &guest.arg(), &FAST).exits(0).json();
    assert_eq!(second["parent"]["generation"], 2, "{second}");
    assert_eq!(second["members"]["left_alone"], serde_json::json!([]), "{second}");
    all_are("optimized");
    take_out(&guest);
    ends_well(guest);
}

/// whet, run by another program with these words.
fn through(words: &[&str], command: &str, guest: &Guest, more: &[&str]) -> Answer {
    let mut outer = Command::new(words[0]);
    outer.args(&words[1..]).arg(env!("CARGO_BIN_EXE_whet"));
    outer.args([command, "--family", &guest.arg(), "--format", "json"]).args(more);
    run(outer)
}

/// More processes than whet may have open files. On one CPU whet works on few processes at a time, each of which takes
/// some files.
#[test]
fn a_family_larger_than_the_limit_of_open_files() {
    let guest = start(40, false);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let one = cpus.split([',', '-']).next().unwrap();
    let few = ["taskset", "--cpu-list", one, "prlimit", "--nofile=100:"];
    let answer = through(&few, "optimize", &guest, &["--seconds", "1", "--count", "0"]).exits(0).json();
    assert_eq!(answer["members"]["installed"], 40, "{answer}");
    assert_eq!(answer["members"]["left_alone"], serde_json::json!([]), "{answer}");
    let undone = through(&few, "undo", &guest, &[]).exits(0).json();
    assert_eq!(undone["undone"], 40, "{undone}");
    take_out(&guest);
    ends_well(guest);
}

/// lxcfs shows a container an uptime of its own, while processes show when they started after the host's boot.
#[test]
fn a_container_with_an_uptime_of_its_own() {
    let guest = start(3, false);
    let uptime = crate::support::scratch("uptime");
    std::fs::write(&uptime, "1.00 1.00\n").unwrap();
    let script = format!("mount --bind {} /proc/uptime && exec \"$@\"", uptime.display());
    let inside = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let shuffled = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
    let answer = through(&inside, "optimize", &guest, &shuffled);
    if answer.stderr.contains("unshare") || answer.stderr.contains("mount:") {
        println!("skipped: no mount namespaces here: {}", answer.stderr);
        return;
    }
    assert_eq!(answer.exits(0).json()["members"]["installed"], 3);
    assert_eq!(through(&inside, "undo", &guest, &[]).exits(0).json()["undone"], 3);
    take_out(&guest);
    ends_well(guest);
}

/// Replaces the last byte of a process's own code, which is never executed. Returns the byte before.
fn replace_last_code_byte(pid: i32, byte: u8) -> u8 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|l| l.contains("r-xp") && l.contains("family.c")).unwrap();
    let end = line.split([' ', '-']).nth(1).unwrap();
    let at = u64::from_str_radix(end, 16).unwrap() - 1;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let mut before = [0];
    memory.read_exact_at(&mut before, at).unwrap();
    memory.write_all_at(&[byte], at).unwrap();
    before[0]
}

/// A worker that executed the program anew has other addresses and is no member. One has other code and is
/// left alone.
#[test]
fn a_member_that_does_not_fit_is_left_alone() {
    let guest = start(3, false);
    let before = members(&guest);
    guest.go_to(2);
    let moved = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        line.ends_with(b"\x000\x00")
    };
    wait_until("a worker that executes", || before.iter().any(moved));
    let moved = *before.iter().find(|p| moved(p)).unwrap();
    let changed = *before.iter().find(|p| **p != moved).unwrap();
    let byte = replace_last_code_byte(changed, 0xa5);
    assert_ne!(byte, 0xa5);
    works(&guest, false);
    let shuffled = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
    let answer = on_family("optimize", &guest.arg(), &shuffled).exits(0).json();
    let report = &answer["members"];
    assert_eq!((&report["found"], &report["installed"]), (&2.into(), &1.into()), "{answer}");
    let code = |pid: i32| {
        let all = report["left_alone"].as_array().unwrap();
        all.iter().find(|l| l["pid"] == pid).map(|l| l["code"].clone())
    };
    assert_eq!(code(moved), None, "{answer}");
    assert_eq!(code(changed), Some("other_bytes".into()), "{answer}");
    assert_eq!(states(&guest), serde_json::json!({ "optimized": 1, "untouched": 1 }));
    assert_eq!(replace_last_code_byte(changed, byte), 0xa5);
    // Now it fits.
    let redone = on_family("redo", &guest.arg(), &[]).exits(0).json();
    assert_eq!(redone["members"]["installed"], 1, "{redone}");
    is_intact(&guest, false);
    take_out(&guest);
    ends_well(guest);
}

/// A worker that changed the access rights of a page of its code: the page is a mapping of its own
/// afterwards.
#[test]
fn a_member_with_other_rights_of_code() {
    for (go, left_alone) in [(5, Some("other_rights")), (6, Some("other_bytes")), (7, None)] {
        let guest = start(2, false);
        guest.go_to(go);
        works(&guest, false);
        wait_until("the change", || guest.counter(4) == 1);
        let shuffled = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
        let answer = on_family("optimize", &guest.arg(), &shuffled).exits(0).json();
        let code = answer["members"]["left_alone"][0]["code"].as_str();
        assert_eq!(code, left_alone, "{answer}");
        works(&guest, false);
        on_family("undo", &guest.arg(), &[]).exits(0);
        ends_well(guest);
    }
}

/// The parent's first thread has ended; its family lives on.
#[test]
fn a_parent_without_its_first_thread() {
    let guest = Guest::start(&build("family.c"), &["2", "flows", "headless"]);
    works(&guest, true);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    let answer = on_family("optimize", &guest.arg(), &FAST).exits(0).json();
    assert_eq!(answer["members"]["left_alone"], serde_json::json!([]), "{answer}");
    assert_eq!(answer["members"]["installed"], 2, "{answer}");
    is_intact(&guest, true);
    on_family("undo", &guest.arg(), &[]).exits(0);
    assert_eq!(is_intact(&guest, true), 0);
    ends_well(guest);
}

/// A slot that the parent has bound and a worker has not: the worker's journal leaves it out.
#[test]
fn slots_that_a_member_has_not_bound_yet() {
    let guest = Guest::start(&build_with("lazy.c", &["-Wl,-z,lazy"]).unwrap(), &[]);
    guest.progresses(2);
    let shuffled = ["--shuffle", "1", "--only", "swab", "round_of", "alone"];
    let answer = on_family("optimize", &guest.arg(), &shuffled).exits(0).json();
    assert_eq!(answer["members"]["installed"], 1, "{answer}");
    let redirects = answer["parent"]["redirects"].clone();
    assert!(redirects["slot"].as_u64() >= Some(1), "the guest must have such a slot: {redirects}");
    let verified = |how: &str| {
        let verified = on_family("verify", &guest.arg(), &[]).exits(0).json();
        assert_eq!(verified["identical"], true, "{how}: {verified}");
    };
    verified("not bound");
    let again = on_family("redo", &guest.arg(), &[]).exits(0).json();
    assert_eq!(again["members"]["in_force"], 1, "{again}");
    // Now the worker binds it.
    guest.go_to(2);
    guest.progresses(2);
    verified("bound");
    let again = on_family("redo", &guest.arg(), &[]).exits(0).json();
    assert_eq!(again["members"]["in_force"], 1, "{again}");
    let undone = on_family("undo", &guest.arg(), &[]).exits(0).json();
    assert_eq!((&undone["undone"], &undone["left"]), (&1.into(), &serde_json::json!([])), "{undone}");
    verified("undone");
    take_out(&guest);
    ends_well(guest);
}

/// The clones of all processes are measured in a busy one, and shown by the parent's page.
#[test]
fn one_process_is_measured_for_all() {
    let guest = start(2, false);
    let shuffled = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
    whet(&["measure", "--family", &guest.arg()]).exits(7);
    on_family("optimize", &guest.arg(), &shuffled).exits(0);
    let answer = on_family("measure", &guest.arg(), &["--rounds", "5", "--window", "0.05"]);
    assert!(matches!(answer.code, Some(0 | 7)), "{answer:?}");
    let measured = answer.json()["pid"].clone();
    let all = members(&guest).into_iter().chain([guest.pid()]);
    assert!(all.into_iter().any(|pid| measured == pid), "{answer:?}");
    assert_eq!(states(&guest), serde_json::json!({ "optimized": 2 }));
    let page = crate::support::scratch("page.html");
    let worker = guest.counter(NEWEST).to_string();
    whet(&["report", "--family", &worker, "-o", page.to_str().unwrap()]).exits(0);
    assert!(std::fs::read_to_string(&page).unwrap().contains(&guest.arg()));
    is_intact(&guest, false);
    take_out(&guest);
    ends_well(guest);
}

/// A worker that is stopped by job control holds no clones: undo of the family is complete without it.
#[test]
fn undo_is_complete_without_members_that_hold_nothing() {
    let guest = start(2, false);
    let worker = members(&guest)[0];
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &worker.to_string()]).status().unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    let shuffled = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
    let answer = on_family("optimize", &guest.arg(), &shuffled).exits(0).json();
    assert_eq!(answer["members"]["left_alone"][0]["pid"], worker, "{answer}");
    let undone = on_family("undo", &guest.arg(), &[]).exits(0).json();
    assert_eq!((&undone["undone"], &undone["left"]), (&1.into(), &serde_json::json!([])), "{undone}");
    signal("-CONT");
    take_out(&guest);
    ends_well(guest);
}

/// The parent ends while the family is sampled, while a member counts, and after the family was optimized. Its workers
/// work on.
#[test]
fn the_end_of_the_parent_ends_the_family() {
    for (state, how, to_undo) in [
        (Some("profiling"), ["--seconds", "600", "--count", "0.3"], &[7][..]),
        (Some("counting"), ["--seconds", "0.5", "--count", "600"], &[0, 7]),
        (None, ["--seconds", "0.5", "--count", "0.3"], &[0]),
    ] {
        let mut guest = start(3, false);
        let workers = members(&guest);
        let pid = guest.arg();
        let mut command = whet_command(&[&["optimize", "--family", &pid], &how[..]].concat());
        let mut command = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        match state {
            Some("counting") => wait_until("counting", || states(&guest)["counting"].is_u64()),
            Some(state) => wait_until(state, || whet(&["status", &pid]).stdout.contains(state)),
            None => assert!(command.wait().unwrap().success()),
        }
        guest.go_to(3);
        assert_eq!(guest.ended(), (Some(0), None));
        wait_until("the end of the command", || command.try_wait().unwrap().is_some());
        // 10: the target has ended.
        assert_eq!(command.wait().unwrap().code(), Some(if state.is_some() { 10 } else { 0 }));
        guest_works_without_parent(&guest);
        for worker in workers {
            let pid = worker.to_string();
            whet(&["verify", &pid]).exits(0);
            assert!(
                state.is_none() || changed_text(worker).is_empty(),
                "{state:?}: clones are left in force"
            );
            let undone = whet(&["undo", "--family", &pid]);
            assert!(undone.code.is_some_and(|code| to_undo.contains(&code)), "{undone:?}");
            assert_eq!(changed_text(worker), [] as [String; 0]);
        }
        guest.stop();
    }
}

fn guest_works_without_parent(guest: &Guest) {
    let before = guest.counter(0);
    wait_until("workers", || guest.counter(0) > before + 10);
}

fn dying_at(point: u32, words: &[&str]) -> bool {
    let mut command = whet_command(words);
    command.env("WHET_FAULT", point.to_string());
    let answer = run(command);
    assert!(matches!((answer.code, answer.signal), (Some(0), None) | (None, Some(9))), "{answer:?}");
    answer.signal.is_some()
}

/// Something else is mapped at one of the chosen places meanwhile: the parent maps an anchor and two parts of a
/// cache, then its only worker does. A member has clones at the parent's addresses or none, but its anchor may lie
/// anywhere.
#[test]
fn places_that_are_taken() {
    let how = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
    for (taken, installed) in [("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5", 0), ("6", 0)] {
        let guest = start(1, false);
        let pid = guest.arg();
        let mut command =
            whet_command(&[&["optimize", "--family", &pid, "--format", "json"], &how[..]].concat());
        command.env("WHET_TAKEN", taken);
        let report = run(command).exits(0).json()["members"].clone();
        let left: Vec<&Value> = report["left_alone"].as_array().unwrap().iter().map(|m| &m["code"]).collect();
        assert_eq!(report["installed"], installed, "{taken}: {report}");
        assert_eq!(left, vec!["place_taken"; 1 - installed], "{taken}: {report}");
        is_intact(&guest, false);
        take_out(&guest);
        ends_well(guest);
    }
}

/// Kills whet at points of an installation, of an undo and of a redo. The family works on; a worker that is
/// forked then has what was done until then. The next command brings all of them into one state.
#[test]
fn killed_at_any_point() {
    let how = ["--shuffle", "1", "--only", "choose", "leaf", "loop"];
    for (command, step) in [("optimize", 10), ("undo", 3), ("redo", 3)] {
        for point in (1..).step_by(if stress() { 1 } else { step }) {
            let guest = start(2, true);
            let pid = guest.arg();
            if command != "optimize" {
                on_family("optimize", &pid, &how).exits(0);
            }
            if command == "redo" {
                on_family("undo", &pid, &[]).exits(0);
            }
            let mut words = vec![command, "--family", &pid];
            words.extend(how.iter().filter(|_| command == "optimize"));
            let died = dying_at(point, &words);
            is_intact(&guest, true);
            let newest = guest.counter(NEWEST);
            guest.go_to(4);
            wait_until("one more worker", || guest.counter(NEWEST) != newest);
            if point % 3 == 0 {
                // Puts all in force: nothing is left as it was in the midst.
                on_family("optimize", &pid, &how).exits(0);
                let states = states(&guest);
                assert!(states["optimized"].as_u64() >= Some(3), "{command} {point}: {states}");
                assert_eq!(states.as_object().unwrap().len(), 1, "{command} {point}: {states}");
                is_intact(&guest, true);
            }
            take_out(&guest);
            assert_eq!(is_intact(&guest, true), 0, "{command} {point}");
            ends_well(guest);
            if !died {
                println!("{command} passes fewer than {point} points");
                assert!(point > 5, "{command}");
                break;
            }
        }
    }
}
