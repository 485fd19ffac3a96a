//! Shared memory in huge pages, while a process writes to it.

use crate::support::{Answer, Guest, build, have, run, scratch, skip, tracers, whet, whet_command};
use engine::is_root;
use serde_json::{Value, json};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const HUGE: u64 = 2 * MIB;
/// The guest's word with its worker's pid.
const WORKER: u64 = 1;

/// Starts a guest; `None` where the kernel gives huge pages to all shared memory, or to none.
pub fn start(mib: u64, how: &str) -> Option<Guest> {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    if ["[always]", "[force]", "[deny]"].iter().any(|s| setting.contains(s)) {
        skip(&format!("shmem_enabled is {}", setting.trim()));
        return None;
    }
    Some(Guest::working(&build("shared.c"), &[&mib.to_string(), how], 1))
}

/// Returns how much shared memory a process has mapped by huge pages, by `smaps`. Bytes.
fn mapped_huge(pid: u64) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let kb = smaps.lines().filter_map(|l| l.strip_prefix("ShmemPmdMapped:")?.trim().strip_suffix(" kB"));
    kb.map(|kb| kb.parse::<u64>().unwrap() * 1024).sum()
}

/// Runs the command; again if no process was at rest, as the parent may wait for a CPU on a busy machine.
pub fn huge_pages(guest: &Guest, more: &[&str]) -> Answer {
    let command = || whet(&[&["huge-pages", &guest.arg(), "--format", "json"], more].concat());
    let is_final = |answer: &Answer| answer.json()["error"]["code"] != "no_quiet_process";
    (0..10).map(|_| command()).find(is_final).unwrap_or_else(command)
}

/// Returns whether the host is the reason why nothing was moved, and says so.
fn is_hosts_reason(reason: &Value) -> bool {
    let hosts = ["not_permitted", "old_kernel", "no_huge_page", "memory_short", "memory_limit", "slow"];
    let is_one = hosts.iter().any(|code| reason["code"] == *code);
    if is_one {
        skip(&reason.to_string());
    }
    is_one
}

/// Runs the command. Returns what it says about the guest's mapping; `None` if the host is the reason that it was not
/// moved.
#[track_caller]
fn moved(guest: &Guest, more: &[&str]) -> Option<Value> {
    let answer = huge_pages(guest, more);
    if answer.code != Some(0) {
        assert!(is_hosts_reason(&answer.json()["error"]), "{answer:?}");
        return None;
    }
    let answer = answer.json();
    assert_eq!(answer["pid"], guest.pid(), "{answer}");
    assert_eq!(answer["mappings"].as_array().unwrap().len(), 1, "{answer}");
    let mapping = answer["mappings"][0].clone();
    if is_hosts_reason(&mapping["left"]) {
        return None;
    }
    assert_eq!(mapping["left"], Value::Null, "{answer}");
    Some(mapping)
}

/// Checks that nothing is moved, for this reason or one of the host's.
#[track_caller]
fn is_left(guest: &Guest, exit: i32, code: &str) {
    let answer = huge_pages(guest, &[]);
    let error = &answer.json()["error"];
    assert!(error["code"] == code && answer.code == Some(exit) || is_hosts_reason(error), "{answer:?}");
    assert_eq!(mapped_huge(guest.counter(WORKER)), 0);
}

#[track_caller]
fn number(mapping: &Value, name: &str) -> u64 {
    mapping[name].as_u64().unwrap_or_else(|| panic!("{name} in {mapping}"))
}

#[track_caller]
fn ends_well(guest: Guest) {
    guest.progresses(1);
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(guest.finish(), (Some(0), None, "done\n".to_owned()));
}

#[test]
fn moved_under_writes() {
    let Some(guest) = start(128, "aligned") else { return };
    let worker = guest.counter(WORKER);
    let Some(planned) = moved(&guest, &["--dry-run"]) else { return ends_well(guest) };
    let figures = ["size", "in_use", "dense", "huge", "added"].map(|name| number(&planned, name));
    assert_eq!(figures, [128 * MIB, 128 * MIB, 128 * MIB, 0, 0]);
    assert_eq!(mapped_huge(worker), 0);

    let Some(done) = moved(&guest, &[]) else { return ends_well(guest) };
    assert_eq!((number(&done, "huge"), number(&done, "added")), (128 * MIB, 0));
    // The worker is busy, so the kernel was asked through the parent.
    assert_eq!(done["through"], json!([guest.pid()]), "{done}");
    guest.progresses(1);
    assert_eq!(mapped_huge(worker), 128 * MIB);
    // Any process of the family names the memory, and what is in huge pages stays there.
    let again = whet(&["huge-pages", &worker.to_string(), "--format", "json"]).exits(0).json();
    assert_eq!(number(&again["mappings"][0], "huge"), 128 * MIB, "{again}");
    ends_well(guest);
}

/// A sixteenth of some 2 MiB has no pages yet: it is filled. Half of others has none: they are left in small pages.
#[test]
fn holes_are_filled_only_where_they_are_few() {
    let Some(guest) = start(64, "holes") else { return };
    let (units, sixteenth) = (64 * MIB / HUGE, HUGE / 16);
    let Some(planned) = moved(&guest, &["--dry-run"]) else { return ends_well(guest) };
    let in_use = units / 2 * HUGE + units / 4 * (HUGE - sixteenth) + units / 4 * (HUGE / 2);
    assert_eq!((number(&planned, "in_use"), number(&planned, "dense")), (in_use, units * HUGE / 4 * 3));
    let Some(done) = moved(&guest, &[]) else { return ends_well(guest) };
    assert_eq!(
        (number(&done, "huge"), number(&done, "added")),
        (units * HUGE / 4 * 3, units / 4 * sixteenth)
    );
    let Some(now) = moved(&guest, &["--dry-run"]) else { return ends_well(guest) };
    assert_eq!(number(&now, "in_use"), in_use + units / 4 * sixteenth);
    ends_well(guest);
}

#[test]
fn memory_that_is_not_moved() {
    // The parent of the third is busy, as its worker is: a process that waits to map memory would be felt.
    for (how, exit, code) in [
        ("unaligned", 5, "unaligned"),
        ("empty", 6, "sparse"),
        ("busy", 6, "no_quiet_process"),
        ("private", 7, "no_shared_memory"),
    ] {
        let Some(guest) = start(64, how) else { return };
        is_left(&guest, exit, code);
        ends_well(guest);
    }
}

/// Runs the command and has it signalled after so many milliseconds. Returns its exit code and its answer.
fn signalled(guest: &Guest, signal: &str, after: u64) -> (Option<i32>, Vec<u8>) {
    let mut whet = whet_command(&["huge-pages", &guest.arg(), "--format", "json"]);
    let whet = whet.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(after));
    kill(whet.id(), signal);
    let output = whet.wait_with_output().unwrap();
    (output.status.code(), output.stdout)
}

/// whet may die at any moment. It looks for a quiet process for 300 ms, then it moves memory for as long or longer.
#[test]
fn whet_is_killed_meanwhile() {
    let Some(guest) = start(192, "aligned") else { return };
    let worker = guest.counter(WORKER);
    let mut cut = 0;
    for after in (310..).step_by(10).take(12) {
        signalled(&guest, "-KILL", after);
        guest.progresses(1);
        cut += u32::from((1..192 * MIB).contains(&mapped_huge(worker)));
    }
    println!("died in the midst of it: {cut} times");
    if let Some(done) = moved(&guest, &[]) {
        assert_eq!(number(&done, "huge"), 192 * MIB);
    }
    ends_well(guest);
}

#[test]
fn an_interrupt_keeps_what_was_moved() {
    let Some(guest) = start(192, "aligned") else { return };
    let worker = guest.counter(WORKER);
    let mut heeded = false;
    for after in (200..).step_by(20).take(25) {
        let (Some(11), stdout) = signalled(&guest, "-INT", after) else { continue };
        heeded = true;
        let answer: Value = serde_json::from_slice(&stdout).unwrap();
        // It may have come before memory was moved.
        let Some(huge) = answer["mappings"][0]["huge"].as_u64().filter(|huge| *huge > 0) else { continue };
        assert_eq!(answer["interrupted"], true, "{answer}");
        guest.progresses(1);
        assert!(mapped_huge(worker) >= huge, "{answer}");
        return ends_well(guest);
    }
    assert!(heeded || moved(&guest, &[]).is_none());
    skip("no interrupt came while memory was moved");
    ends_well(guest);
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn without_the_right_to_move_memory() {
    if !is_root() || !have("setpriv") {
        return skip("takes root and setpriv");
    }
    let Some(guest) = start(64, "aligned") else { return };
    if moved(&guest, &["--dry-run"]).is_none() {
        return ends_well(guest);
    }
    let without = |right: &str| {
        let mut whet = Command::new("setpriv");
        whet.args(["--bounding-set", right, "--inh-caps", right]).arg(env!("CARGO_BIN_EXE_whet"));
        whet.args(["huge-pages", &guest.arg(), "--format", "json"]);
        run(whet).exits(4).json()["error"].clone()
    };
    let nice = without("-sys_nice");
    assert!(nice["message"].as_str().unwrap().contains("CAP_SYS_NICE"), "{nice}");
    assert_eq!(without("-sys_admin,-checkpoint_restore")["code"], "not_permitted");
    assert_eq!(mapped_huge(guest.counter(WORKER)), 0);
    ends_well(guest);
}

#[test]
fn the_kill_switch_holds() {
    let (off, config) = (scratch("off"), scratch("toml"));
    fs::write(&off, "").unwrap();
    fs::write(&config, format!("[paths]\nkill_switch = {off:?}\n")).unwrap();
    let Some(guest) = start(64, "aligned") else { return };
    let mut whet = whet_command(&["huge-pages", &guest.arg(), "--format", "json"]);
    whet.env("WHET_CONFIG", &config);
    assert_eq!(run(whet).exits(5).json()["error"]["code"], "kill_switch");
    assert_eq!(mapped_huge(guest.counter(WORKER)), 0);
    fs::remove_file(off).unwrap();
    fs::remove_file(config).unwrap();
    ends_well(guest);
}

#[test]
fn no_such_process() {
    whet(&["huge-pages", "2147483647"]).exits(3);
    whet(&["huge-pages"]).exits(2);
}
