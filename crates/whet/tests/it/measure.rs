//! `whet measure` on a program that makes its own steady load. Checks the answer, and that the program is
//! left in the state before.

use crate::support::{Answer, Guest, build, changed_text, pid_of, run, wait_until, whet, whet_command};
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A process that a test started. Ended when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an optimized program at work.
fn optimized() -> Guest {
    let guest = Guest::working(&build("cases.c"), &["serve"], 1);
    whet(&["optimize", &guest.arg(), "--shuffle", "1", "--only", "mix_some", "sum_up"]).exits(0);
    guest
}

fn state(guest: &Guest) -> String {
    let answer = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
    answer["targets"][0]["state"].as_str().unwrap_or_default().to_owned()
}

/// Returns the command `whet measure` with few and short windows.
fn measure(guest: &Guest, more: &[&str]) -> Command {
    let pid = guest.arg();
    whet_command(&[&["measure", &pid, "--format", "json"], more].concat())
}

const SHORT: [&str; 4] = ["--rounds", "8", "--window", "0.03"];

/// Counts the processes that are to restore a program.
fn guards(guest: &Guest) -> usize {
    guard_pids(guest).len()
}

/// Returns the processes that are to restore a program.
fn guard_pids(guest: &Guest) -> Vec<i32> {
    let words = format!("restore-after-death\0{}\0", guest.pid());
    let folders = fs::read_dir("/proc").unwrap().flatten();
    folders
        .filter(|f| {
            fs::read(f.path().join("cmdline"))
                .is_ok_and(|c| c.windows(words.len()).any(|w| w == words.as_bytes()))
        })
        .filter_map(|f| f.file_name().to_str()?.parse().ok())
        .collect()
}

/// Checks that no process is left that would change the program, and nothing that records the comparison.
#[track_caller]
fn nothing_is_left(guest: &Guest) {
    assert_eq!(guards(guest), 0);
    let is_claim = |name: &str| name.starts_with(&format!("whet-{}-", guest.pid()));
    for folder in ["/run/whet", "/tmp"] {
        let left: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|f| f.file_name()).collect();
        let left: Vec<_> = left.iter().filter(|n| n.to_str().is_some_and(is_claim)).collect();
        assert!(left.is_empty(), "{folder}: {left:?}");
    }
}

#[track_caller]
fn has_fields(value: &Value, fields: &[&str]) {
    let found: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut wanted = fields.to_vec();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{value}");
}

/// Checks an estimate: its value lies in its interval.
#[track_caller]
fn is_estimate(e: &Value) {
    has_fields(e, &["value", "low", "high"]);
    let [value, low, high] = ["value", "low", "high"].map(|f| e[f].as_f64().unwrap());
    assert!(0.0 < low && low <= value && value <= high, "{e}");
}

const FIELDS: [&str; 22] = [
    "pid",
    "exe",
    "method",
    "work",
    "qps",
    "cpu_usage",
    "combined_improvement_factor",
    "user_cpu_factor",
    "events",
    "verdict",
    "can_tell",
    "steady",
    "cpu_bound",
    "warnings",
    "pairs",
    "void_pairs",
    "window_seconds",
    "seed",
    "seconds",
    "switches",
    "stop_ms",
    "windows",
];

/// Checks the answer of a comparison that should give figures, however noisy.
#[track_caller]
fn is_answer(answer: &Answer, kind: &str) -> Value {
    assert!([Some(0), Some(7)].contains(&answer.code), "{answer:?}");
    let json = answer.json();
    has_fields(&json, &FIELDS);
    has_fields(&json["work"], &["kind", "what"]);
    assert_eq!(json["work"]["kind"], kind, "{json}");
    for figure in ["qps", "cpu_usage"] {
        has_fields(&json[figure], &["without", "with", "change"]);
        ["without", "with", "change"].iter().for_each(|side| is_estimate(&json[figure][side]));
    }
    is_estimate(&json["combined_improvement_factor"]);
    has_fields(
        &json["events"],
        &["source", "ipc", "icache_misses", "itlb_misses", "branch_misses", "frontend_stalls"],
    );
    has_fields(&json["stop_ms"], &["median", "max"]);
    assert!(json["switches"].as_u64().unwrap() > 0, "{json}");
    assert_eq!(json["can_tell"].as_bool().unwrap(), answer.code == Some(0), "{json}");
    assert_eq!(json["can_tell"].as_bool().unwrap(), json["verdict"] != "cannot_tell", "{json}");
    // The one thread that serves never sleeps.
    assert_eq!(json["cpu_bound"], true, "{json}");
    json
}

#[test]
fn figures_and_the_state_that_was_found() {
    let guest = optimized();
    // Work is counted as system calls; the program makes one in each round.
    let json = is_answer(
        &run(measure(&guest, &[&SHORT[..], &["--windows", "--seed", "5"]].concat())),
        "system_calls",
    );
    assert_eq!(state(&guest), "optimized");
    assert_eq!((&json["method"], &json["seed"]), (&"paired".into(), &5.into()));
    // On a busy machine some pairs cannot be used.
    assert!((4..=8).contains(&json["pairs"].as_u64().unwrap()), "{json}");
    let windows = json["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 16);
    has_fields(&windows[0], &["pair", "side", "seconds", "work", "cpu", "user", "host_idle"]);

    // Work is counted by the program's own count, which is the same. The program is found undone.
    whet(&["undo", &guest.arg()]).exits(0);
    let rounds = guest.rounds();
    let more = [&SHORT[..], &["--command", &rounds, "--windows"]].concat();
    is_answer(&run(measure(&guest, &more)), "command");
    assert_eq!(state(&guest), "undone");

    let json =
        is_answer(&run(measure(&guest, &["--classic=0.3", "--window", "0.05", "--windows"])), "system_calls");
    assert_eq!((&json["method"], json["windows"].as_array().unwrap().len()), (&"classic".into(), 12));
    assert_eq!((state(&guest).as_str(), &json["switches"]), ("undone", &2.into()));
    assert!(json["warnings"].as_array().unwrap().iter().any(|w| w["code"] == "drift"), "{json}");

    let text = whet(&[&["measure", &guest.arg()], &SHORT[..]].concat()).stdout;
    assert!(text.contains("COMBINED IMPROVEMENT FACTOR  x") && text.contains("QPS"), "{text}");
    nothing_is_left(&guest);
    assert_eq!(guest.finish().0, Some(0));
}

/// From the counts that the layout is made from. The process is only read, so the events are the same every
/// time.
#[test]
fn modelled_events_where_nothing_counts() {
    let guest = Guest::working(&build("cases.c"), &["serve"], 1);
    whet(&["optimize", &guest.arg(), "--seconds", "0.5", "--count", "0.2"]).exits(0);
    let answer = run(measure(&guest, &SHORT)).json();
    if answer["events"]["source"] == "pmu" {
        assert!(answer.get("modelled").is_none(), "{answer}");
        return;
    }
    let modelled = &answer["modelled"];
    has_fields(modelled, &["cpu", "path", "functions", "coverage", "lost", "without", "with"]);
    assert_eq!(modelled["cpu"], "Intel Ice Lake server");
    let events = [
        "instructions",
        "taken_branches",
        "icache_misses",
        "itlb_misses",
        "itlb_walks",
        "btb_misses",
        "direction_misses",
        "target_misses",
        "return_misses",
    ];
    for side in ["without", "with"] {
        has_fields(&modelled[side], &events);
        assert!(modelled[side]["taken_branches"].as_u64().unwrap() > 0, "{modelled}");
    }
    assert_eq!(modelled["without"]["instructions"], modelled["path"]);
    assert_eq!(modelled["lost"], 0);
    assert_eq!(run(measure(&guest, &SHORT)).json()["modelled"], *modelled);
    let text = whet(&[&["measure", &guest.arg()], &SHORT[..]].concat()).stdout;
    assert!(text.contains("modelled, Intel Ice Lake server"), "{text}");
    assert_eq!(state(&guest), "optimized");
    nothing_is_left(&guest);
}

#[test]
fn an_idle_program_is_not_touched() {
    let guest = optimized();
    guest.go();
    // On a busy machine its last round can last as long as a look.
    wait_until("its rest", || guest.counter(1) == 1);
    let json = run(measure(&guest, &SHORT)).exits(7).json();
    assert_eq!((&json["verdict"], &json["can_tell"]), (&"cannot_tell".into(), &false.into()));
    assert_eq!((&json["qps"], &json["switches"], &json["pairs"]), (&Value::Null, &0.into(), &0.into()));
    assert_eq!(json["warnings"][0]["code"], "idle");
    let text = whet(&[&["measure", &guest.arg()], &SHORT[..]].concat()).exits(7).stdout;
    assert!(text.contains("cannot tell") && text.contains("idle"), "{text}");
    assert_eq!(state(&guest), "optimized");
    nothing_is_left(&guest);
}

#[test]
fn killed_or_interrupted_it_leaves_the_state_that_was_found() {
    let guest = optimized();
    whet(&["undo", &guest.arg()]).exits(0);
    // A minute of the other state: time enough to kill whet.
    let begin = || {
        let mut command = measure(&guest, &["--classic=60"]);
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = Started(command.spawn().unwrap());
        wait_until("the other state", || !changed_text(guest.pid()).is_empty());
        assert_eq!(guards(&guest), 1);
        child
    };

    // The whole process group at once, as a shell or a terminal does.
    let mut killed = begin();
    signal("-KILL", &format!("-{}", pid_of(&killed.0)));
    assert_eq!(killed.0.wait().unwrap().code(), None);
    wait_until("the state that was found", || state(&guest) == "undone");
    wait_until("the end of the guard that restored it", || guards(&guest) == 0);
    nothing_is_left(&guest);

    let mut interrupted = begin();
    signal("-INT", &pid_of(&interrupted.0).to_string());
    assert_eq!(interrupted.0.wait().unwrap().code(), Some(11));
    assert_eq!(state(&guest), "undone");
    nothing_is_left(&guest);

    // Another comparison is refused; an operator's undo is not.
    let mut overruled = begin();
    let second = run(measure(&guest, &SHORT)).exits(6).json();
    assert_eq!(second["error"]["code"], "locked");
    assert!(!changed_text(guest.pid()).is_empty());
    whet(&["redo", &guest.arg()]).exits(0);
    signal("-KILL", &pid_of(&overruled.0).to_string());
    let _ = overruled.0.wait();
    wait_until("the end of the guard that would have restored it", || guards(&guest) == 0);
    assert_eq!(state(&guest), "optimized");
    nothing_is_left(&guest);
    guest.progresses(1);
}

/// Sends a signal to a process, or with a minus sign to a process group.
fn signal(word: &str, whom: &str) {
    let sent = Command::new("kill").args([word, "--", whom]).status();
    assert!(sent.unwrap().success());
}

/// Starts an optimized program with two generations of clones.
fn twice_optimized() -> Guest {
    let guest = optimized();
    whet(&["optimize", &guest.arg(), "--shuffle", "2", "--only", "mix_some", "sum_up"]).exits(0);
    guest
}

/// Starts a comparison of the generations of such a program.
fn start(guest: &Guest, words: &[&str]) -> Started {
    Started(measure(guest, words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Kills a comparison together with its guard while the older generation is in force. Before, the newest one was.
fn dies_comparing(guest: &Guest) {
    let newest = changed_text(guest.pid());
    let mut comparison = start(guest, &["--between", "1", "2", "--rounds", "50", "--window", "1"]);
    let older = || changed_text(guest.pid()) != newest && !changed_text(guest.pid()).is_empty();
    wait_until("the older generation", older);
    // First the process that restores, then the one that compares.
    for pid in guard_pids(guest).into_iter().chain([pid_of(&comparison.0)]) {
        signal("-KILL", &pid.to_string());
    }
    let _ = comparison.0.wait();
}

#[test]
fn two_generations_are_compared() {
    let guest = twice_optimized();
    let newest = changed_text(guest.pid());
    let answer = run(measure(&guest, &[&["--between", "1", "2"][..], &SHORT].concat()));
    let json = answer.json();
    assert_eq!(json["between"], serde_json::json!([1, 2]), "{json}");
    // On a busy machine some pairs cannot be used.
    assert!((4..=8).contains(&json["pairs"].as_u64().unwrap()), "{json}");
    assert!(json["switches"].as_u64().unwrap() >= 8, "{json}");
    assert_eq!((state(&guest).as_str(), changed_text(guest.pid())), ("optimized", newest.clone()));
    nothing_is_left(&guest);

    let text = whet(&[&["measure", &guest.arg(), "--between", "2", "1"], &SHORT[..]].concat()).stdout;
    assert!(text.contains("generation 2") && text.contains("generation 1"), "{text}");
    let error = run(measure(&guest, &["--between", "2", "2"])).exits(2).json()["error"].clone();
    assert_eq!(error["code"], "same_generation", "{error}");
    let error = run(measure(&guest, &["--between", "1", "7"])).exits(3).json()["error"].clone();
    assert_eq!(error["code"], "no_such_generation");
    assert!(error["message"].as_str().unwrap().ends_with("its generations: 1, 2"), "{error}");
    assert_eq!((state(&guest).as_str(), changed_text(guest.pid())), ("optimized", newest));
    nothing_is_left(&guest);
}

#[test]
fn a_dead_comparison_of_generations_leaves_what_undo_and_redo_put_right() {
    let guest = twice_optimized();
    let newest = changed_text(guest.pid());
    for right in ["redo", "undo"] {
        dies_comparing(&guest);
        guest.progresses(1);
        assert_eq!(state(&guest), "optimized");
        whet(&[right, &guest.arg()]).exits(0);
        let wanted = if right == "redo" { newest.clone() } else { Default::default() };
        assert_eq!(changed_text(guest.pid()), wanted, "{right}");
        whet(&["verify", &guest.arg()]).exits(0);
        guest.progresses(1);
    }
}

#[test]
fn a_comparison_after_a_dead_one_has_a_guard() {
    let guest = twice_optimized();
    let newest = changed_text(guest.pid());
    dies_comparing(&guest);

    // Its first change is to the newest generation, and its second one leaves that.
    let mut next = start(&guest, &["--classic=5"]);
    wait_until("originals", || changed_text(guest.pid()).is_empty());
    assert_eq!(guards(&guest), 1);
    signal("-KILL", &pid_of(&next.0).to_string());
    let _ = next.0.wait();
    wait_until("the newest generation", || changed_text(guest.pid()) == newest);
    wait_until("the end of the guard that restored it", || guards(&guest) == 0);
    assert_eq!(state(&guest), "optimized");
    guest.progresses(1);
}

#[test]
fn an_operator_is_not_overruled() {
    let guest = optimized();
    let mut command = measure(&guest, &["--rounds", "1000", "--window", "0.05"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a comparison", || guards(&guest) == 1);
    // The comparison may hold the lock at this moment.
    wait_until("undo", || whet(&["undo", &guest.arg()]).code == Some(0));
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((output.status.code(), text.contains("\"changed\"")), (Some(6), true), "{text}");
    assert_eq!(state(&guest), "undone");
    nothing_is_left(&guest);

    // A program that ends during the comparison.
    let mut command = measure(&guest, &["--rounds", "1000", "--window", "0.05"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a comparison", || guards(&guest) == 1);
    assert_eq!(guest.finish().0, Some(0));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(10), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn targets_that_cannot_be_measured_are_refused() {
    let guest = Guest::working(&build("cases.c"), &["serve"], 1);
    let refused = |more: &[&str], exit: i32, code: &str, words: &str| {
        let answer = run(measure(&guest, more)).exits(exit);
        assert_eq!(answer.json()["error"]["code"], code, "{answer:?}");
        assert!(answer.stderr.contains(words), "{answer:?}");
    };
    refused(&[], 7, "not_installed", "whet optimize");
    refused(&["--mysql-socket", "/nonexistent"], 3, "work", "no server can be reached at /nonexistent");
    refused(&["--mysql-option-file", "/nonexistent"], 2, "work", "/nonexistent");
    whet(&["optimize", &guest.arg(), "--shuffle", "1", "--only", "mix_some"]).exits(0);
    refused(&["--command", "echo none"], 2, "work", "it prints \"none\"");
    refused(&["--command", "exit 4"], 2, "work", "exit status: 4");
    nothing_is_left(&guest);
    for wrong in [
        &["--rounds", "4"][..],
        &["--window", "0"],
        &["--classic", "10"],
        &["--classic=10", "--rounds", "9"],
        &["--command", "x", "--mysql"],
        &["--mysql-password", "x"],
    ] {
        run(measure(&guest, wrong)).exits(2);
    }
    assert_eq!(state(&guest), "optimized");
}

/// `status` gives the state that the comparison found and restores, not the state of the present window.
#[test]
fn status_shows_what_a_comparison_restores() {
    let guest = optimized();
    let begin = || {
        let mut command = measure(&guest, &["--rounds", "1000", "--window", "0.05"]);
        Started(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let mut comparison = begin();
    let by = pid_of(&comparison.0);
    let status = || {
        let answer = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
        answer["targets"][0].clone()
    };
    wait_until("a comparison", || status()["worked_on_by"] == by);
    let mut said = Vec::new();
    // The code is seen in both states in that time.
    let (mut with, mut without) = (false, false);
    wait_until("windows with and without", || {
        said.push(status()["state"].as_str().unwrap_or_default().to_owned());
        match changed_text(guest.pid()).is_empty() {
            true => without = true,
            false => with = true,
        }
        with && without && said.len() >= 20
    });
    assert!(comparison.0.try_wait().unwrap().is_none(), "it goes on");
    said.dedup();
    assert_eq!(said, ["optimized"]);
    signal("-INT", &by.to_string());
    comparison.0.wait().unwrap();
    nothing_is_left(&guest);
    assert_eq!(state(&guest), "optimized");
    // The comparison of a program that was undone.
    whet(&["undo", &guest.arg()]).exits(0);
    let mut comparison = begin();
    let by = pid_of(&comparison.0);
    wait_until("a comparison", || status()["worked_on_by"] == by);
    for _ in 0..20 {
        assert_eq!(status()["state"], "undone");
    }
    signal("-INT", &by.to_string());
    comparison.0.wait().unwrap();
}
