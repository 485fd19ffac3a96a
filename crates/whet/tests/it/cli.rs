//! The command line as an interface: spellings, exit codes, and the fields of each JSON answer.

use crate::support::{
    Answer, Guest, build, copy, finish, have, run, scratch, skip, wait_until, whet, whet_command,
};
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

const COMMANDS: [&str; 13] = [
    "start", "stop", "optimize", "undo", "redo", "status", "explain", "report", "verify", "measure", "gdb",
    "doctor", "run",
];

fn spinning() -> Guest {
    Guest::working(&build("cases.c"), &["spin"], 1)
}

/// Returns the JSON answer to a command on a guest that must succeed.
#[track_caller]
fn ask(guest: &Guest, command: &str, more: &[&str]) -> Value {
    let pid = guest.arg();
    whet(&[&[command, &pid, "--format", "json"], more].concat()).exits(0).json()
}

/// The options of most tests: quick, and without a profile.
const QUICK: [&str; 5] = ["--shuffle", "1", "--only", "mix_some", "sum_up"];

#[track_caller]
fn has_fields(value: &Value, fields: &[&str]) {
    let mut found: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    found.sort_unstable();
    let mut wanted = fields.to_vec();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{value}");
}

const OPTIMIZE_FIELDS: [&str; 22] = [
    "pid",
    "exe",
    "state",
    "generation",
    "is_full",
    "seconds",
    "phases",
    "samples",
    "lost_samples",
    "source",
    "functions",
    "refusals",
    "coverage",
    "coverage_main",
    "code_bytes",
    "mapped_bytes",
    "huge_page",
    "redirects",
    "skipped_redirects",
    "stop_ms",
    "map_stop_ms",
    "perf_map",
];

fn is_optimize_answer(answer: &Value, counted: bool) {
    let more = if counted {
        &["counting", "dyno", "user_time", "whet_peak_rss_mb"][..]
    } else {
        &["whet_peak_rss_mb"]
    };
    has_fields(answer, &[&OPTIMIZE_FIELDS[..], more].concat());
    if counted {
        is_table(&answer["dyno"]);
        has_fields(&answer["counting"], &["rounds", "functions", "again", "counters", "inexact", "seconds"]);
    }
    has_fields(&answer["functions"], &["hot", "cloned", "refused", "last"]);
    has_fields(&answer["stop_ms"], &["median", "max"]);
    assert_eq!(answer["state"], "optimized");
    // The phases follow each other and cover the whole command.
    let phases: Vec<&str> =
        answer["phases"].as_array().unwrap().iter().map(|p| p["phase"].as_str().unwrap()).collect();
    let all = "opening reading sampling analysing counting laying_out emitting verifying building mapping \
               filling stopping installing";
    let wanted = all.split(' ').filter(|p| counted || !["sampling", "counting"].contains(p));
    assert!(phases.iter().copied().eq(wanted), "{phases:?}");
    let sum: f64 = answer["phases"].as_array().unwrap().iter().map(|p| p["seconds"].as_f64().unwrap()).sum();
    assert!(sum >= answer["seconds"].as_f64().unwrap() - 0.01, "{answer}");
}

/// Checks the table of executions, before and after: stable names, and figures that agree with each other.
fn is_table(dyno: &Value) {
    has_fields(dyno, &["functions", "before", "after"]);
    let [before, after] = ["before", "after"].map(|when| {
        let s = &dyno[when];
        let executed = [
            "instructions",
            "bytes",
            "fall_throughs",
            "inserted_jumps",
            "dropped_jumps",
            "exits_to_original",
        ];
        let branches = ["total_branches", "taken_branches", "unconditional_branches", "conditional_branches"];
        let conditional = ["taken_conditional_branches", "non_taken_conditional_branches"];
        let calls = ["calls", "indirect_calls", "plt_calls", "returns", "indirect_jumps"];
        let touched = ["lines", "pages", "hot_lines", "hot_pages"];
        has_fields(s, &[&executed[..], &branches, &conditional, &calls, &touched].concat());
        move |name: &str| s[name].as_u64().unwrap()
    });
    for s in [&before as &dyn Fn(&str) -> u64, &after] {
        let conditional = s("taken_conditional_branches") + s("non_taken_conditional_branches");
        assert_eq!(s("conditional_branches"), conditional, "{dyno}");
        assert_eq!(s("total_branches"), conditional + s("unconditional_branches"), "{dyno}");
        assert_eq!(
            s("taken_branches"),
            s("taken_conditional_branches") + s("unconditional_branches"),
            "{dyno}"
        );
        assert!(
            s("instructions") > 1000 && s("hot_lines") <= s("lines") && s("hot_pages") <= s("pages"),
            "{dyno}"
        );
    }
    for same in ["conditional_branches", "calls", "returns", "indirect_calls", "indirect_jumps"] {
        assert_eq!(before(same), after(same), "{same}: {dyno}");
    }
    let jumps = |s: &dyn Fn(&str) -> u64| s("instructions") + s("dropped_jumps");
    assert_eq!(jumps(&after), before("instructions") + after("inserted_jumps"), "{dyno}");
}

#[test]
fn help_has_examples() {
    let all = whet(&["--help"]).exits(0).stdout;
    assert!(all.contains("Examples:\n") && all.contains("Exit codes:\n"), "{all}");
    assert_eq!(whet(&["-help"]).exits(0).stdout, all);
    for command in COMMANDS {
        assert!(all.contains(&format!("  {command} ")), "{command} in {all}");
        let help = whet(&[command, "--help"]).exits(0).stdout;
        assert!(help.contains(&format!("Examples:\n  whet {command}")), "{help}");
    }
    assert_eq!(whet(&["--version"]).exits(0).stdout, format!("whet {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_command_lines_are_refused() {
    let wrong: [&[&str]; 13] = [
        &[],
        &["sharpen"],
        &["--fast", "doctor"],
        &["doctor", "--format", "xml"],
        &["optimize"],
        &["optimize", "mysqld"],
        &["optimize", "99999999999"],
        &["optimize", "1", "--seconds", "-1"],
        &["optimize", "1", "--seconds", "3601"],
        &["optimize", "1", "--seconds", "soon"],
        &["undo"],
        &["redo"],
        &["undo", "1", "--all"],
    ];
    for arguments in wrong {
        let answer = whet(arguments).exits(2);
        assert_eq!(answer.stdout, "", "{arguments:?}");
        assert!(answer.stderr.contains("--help") || answer.stderr.contains("Usage:"), "{answer:?}");
    }
}

/// A profile is taken, functions are found hot, and each answer has its documented fields.
#[test]
fn answers_have_their_fields() {
    let guest = spinning();
    let optimized = ask(&guest, "optimize", &["--seconds", "1"]);
    is_optimize_answer(&optimized, true);
    assert_eq!(optimized["pid"], guest.pid());
    assert!(optimized["exe"].as_str().unwrap().contains("cases.c"), "{optimized}");
    assert!(
        ["branch-stacks", "cycles", "cpu-clock"].contains(&optimized["source"].as_str().unwrap()),
        "{optimized}"
    );
    assert!(optimized["samples"].as_u64().unwrap() > 20, "{optimized}");
    assert!(optimized["coverage_main"].as_f64().unwrap() > 0.8, "{optimized}");
    assert_eq!(optimized["generation"], 1);

    let toggle_fields = ["pid", "state", "redirects", "skipped_redirects", "stop_ms"];
    for (command, state, live) in [("undo", "undone", false), ("redo", "optimized", true)] {
        let answer = ask(&guest, command, &[]);
        let more = if live { &["perf_map"][..] } else { &[] };
        has_fields(&answer, &[&toggle_fields[..], more].concat());
        has_fields(&answer["stop_ms"], &["median", "max"]);
        assert_eq!((&answer["state"], &answer["pid"]), (&Value::from(state), &Value::from(guest.pid())));

        let verified = ask(&guest, "verify", &[]);
        let fields =
            ["pid", "identical", "unexpected", "state", "live_redirects", "kept_redirects", "compared_bytes"];
        has_fields(&verified, &[&fields[..], &["uncompared"]].concat());
        assert_eq!((&verified["identical"], &verified["state"]), (&Value::from(true), &Value::from(state)));
        assert_eq!(verified["live_redirects"].as_u64().unwrap() > 0, live, "{verified}");
        assert!(verified["compared_bytes"].as_u64().unwrap() > 1_000_000, "{verified}");
    }

    let explained = ask(&guest, "explain", &[]);
    let fields =
        ["pid", "exe", "state", "generation", "shuffle", "samples", "coverage", "coverage_main", "refusals"];
    has_fields(&explained, &[&fields[..], &["user_time", "dyno", "functions"]].concat());
    assert_eq!(explained["user_time"], optimized["user_time"]);
    assert_eq!(explained["dyno"], optimized["dyno"]);
    has_fields(
        &explained["functions"][0],
        &["name", "at", "samples", "clone", "clone_bytes", "warm", "warm_bytes", "reason"],
    );
    assert_eq!(explained["shuffle"], Value::Null);

    let doctor = whet(&["doctor", "--format", "json"]).exits(0).json();
    has_fields(&doctor, &["ok", "checks"]);
    for check in doctor["checks"].as_array().unwrap() {
        has_fields(check, &["name", "ok", "needed", "found", "mend"]);
    }
    // Without `--format json`, the same answers are sentences.
    for (command, word) in
        [("undo", "undone"), ("redo", "optimized"), ("explain", "taken branches"), ("status", "optimized")]
    {
        let text = whet(&[command, &guest.arg()]).exits(0).stdout;
        assert!(text.contains(word) && !text.starts_with('{'), "{text}");
    }
}

#[test]
fn status_finds_processes_by_themselves() {
    let guest = spinning();
    assert_eq!(ask(&guest, "status", &[])["targets"], Value::Array(Vec::new()));
    let optimized = ask(&guest, "optimize", &QUICK);
    let of_journal =
        ["pid", "exe", "state", "generation", "is_full", "since", "redirects", "code_bytes", "mapped_bytes"];
    let of_notes = ["cloned", "refused", "refusals", "coverage", "coverage_main"];
    let fields = [&of_journal[..], &of_notes, &["stop_ms", "cpu_seconds", "worked_on_by"]].concat();
    for arguments in [&["status"][..], &["status", &guest.arg()], &["-status"], &["-status", &guest.arg()]] {
        let answer = whet(&[arguments, &["--format", "json"]].concat()).exits(0).json();
        has_fields(&answer, &["targets", "unreadable"]);
        let targets = answer["targets"].as_array().unwrap();
        let found = targets.iter().find(|t| t["pid"] == guest.pid()).unwrap();
        has_fields(found, &fields);
        assert_eq!((&found["state"], &found["generation"]), (&Value::from("optimized"), &Value::from(1)));
        assert_eq!((&found["exe"], &found["code_bytes"]), (&optimized["exe"], &optimized["code_bytes"]));
        let since = found["since"].as_str().unwrap();
        assert!(since.len() == 20 && since.starts_with("20") && since.ends_with('Z'), "{since}");
    }
    ask(&guest, "optimize", &QUICK);
    whet(&["-undo", &guest.arg()]).exits(0);
    let answer = ask(&guest, "status", &[]);
    assert_eq!(
        (&answer["targets"][0]["state"], &answer["targets"][0]["generation"]),
        (&"undone".into(), &2.into())
    );
    whet(&["-redo", &guest.arg()]).exits(0);
    assert_eq!(ask(&guest, "status", &[])["targets"][0]["state"], "optimized");
}

#[test]
fn which_functions() {
    let guest = spinning();
    let cloned = |explained: &Value| -> Vec<String> {
        let functions = explained["functions"].as_array().unwrap();
        let clones = functions.iter().filter(|f| !f["clone"].is_null());
        clones.map(|f| f["name"].as_str().unwrap().to_owned()).collect()
    };
    // One by name, two by name, one by an address inside it.
    let one = ask(&guest, "optimize", &["--shuffle", "1", "--only", "mix_some"]);
    assert_eq!((&one["functions"]["cloned"], &one["functions"]["last"]), (&1.into(), &"mix_some".into()));
    let explained = ask(&guest, "explain", &[]);
    assert_eq!(cloned(&explained), ["mix_some"]);
    let at = explained["functions"][0]["at"].as_str().unwrap().to_owned();
    let inside = u64::from_str_radix(at.trim_start_matches("0x"), 16).unwrap() + 3;
    ask(&guest, "optimize", &["--shuffle", "1", "--only", "sum_up", "mix_some"]);
    let mut two = cloned(&ask(&guest, "explain", &[]));
    two.sort_unstable();
    assert_eq!(two, ["mix_some", "sum_up"]);
    ask(&guest, "optimize", &["--shuffle", "1", "--only", &format!("{inside:#x}")]);
    assert_eq!(cloned(&ask(&guest, "explain", &[])), ["mix_some"]);
    // With a limit, the first functions come first.
    let mut before = Vec::new();
    for n in [1, 3, 10] {
        let answer = ask(&guest, "optimize", &["--shuffle", "1", "--max-functions", &n.to_string()]);
        assert_eq!(answer["functions"]["cloned"], n, "{answer}");
        let now = cloned(&ask(&guest, "explain", &[]));
        assert_eq!(now.len(), n);
        assert!(before.iter().all(|f| now.contains(f)), "{before:?} {now:?}");
        before = now;
    }
    // The same seed gives the same clones.
    let bytes =
        || ask(&guest, "optimize", &["--shuffle", "5", "--max-functions", "10"])["code_bytes"].clone();
    assert_eq!(bytes(), bytes());
    guest.progresses(1);
    let error = whet(&["optimize", &guest.arg(), "--shuffle", "1", "--only", "nonesuch"]).exits(3);
    assert!(error.stderr.contains("nonesuch"), "{error:?}");
}

/// Whichever pass is left out, the program does the same, and the pass has no effect.
#[test]
fn without_some_passes() {
    let guest = spinning();
    let shuffled = ["--shuffle", "1", "--max-functions", "400"];
    let optimize =
        |without: &[&str]| ask(&guest, "optimize", &[&shuffled[..], &["--without"], without].concat());
    let kinds = |answer: &Value| -> Vec<String> {
        answer["redirects"].as_object().unwrap().keys().cloned().collect()
    };
    let all = ask(&guest, "optimize", &shuffled);
    assert!(kinds(&all).iter().any(|k| k == "call"), "{all}");
    let entries = optimize(&["calls,tables"]);
    assert_eq!(kinds(&entries), ["entry"], "{entries}");
    let own = optimize(&["libraries,huge-pages"]);
    assert!(own["functions"]["cloned"].as_u64() < all["functions"]["cloned"].as_u64(), "{own}");
    assert_eq!((&own["huge_page"], &own["without"]), (&false.into(), &json!(["libraries", "huge-pages"])));
    assert_eq!(ask(&guest, "explain", &[])["without"], own["without"]);
    // By samples and counts: in random order, most passes do nothing that could be left out.
    let measured = ["--seconds", "0.3", "--count", "0.1", "--without"];
    for pass in ["blocks", "split", "functions", "loops", "inlining", "side-exits", "guards", "stubs"] {
        ask(&guest, "optimize", &[&measured[..], &[pass]].concat());
        guest.progresses(1);
    }
    // Each `--without` takes one word; what is behind it is another argument.
    let word = ["optimize", "--shuffle", "1", "--max-functions", "1", "--without", "blocks", &guest.arg()];
    whet(&word).exits(0);
    let wrong = whet(&["optimize", &guest.arg(), "--without", "everything"]).exits(2);
    assert!(wrong.stderr.contains("blocks, split, functions"), "{wrong:?}");
}

#[test]
fn explaining_one_function() {
    let guest = spinning();
    ask(&guest, "optimize", &QUICK);
    let by_name = ask(&guest, "explain", &["mix_some"]);
    let functions = by_name["functions"].as_array().unwrap();
    assert_eq!(functions.len(), 1, "{by_name}");
    let clone = functions[0]["clone"].as_str().unwrap();
    let start = u64::from_str_radix(clone.trim_start_matches("0x"), 16).unwrap();
    let last = start + functions[0]["clone_bytes"].as_u64().unwrap() - 1;
    let original = functions[0]["at"].as_str().unwrap().to_owned();
    for address in [clone.to_owned(), format!("{last:#x}"), original] {
        let by_address = ask(&guest, "explain", &[&address]);
        assert_eq!(by_address["functions"], by_name["functions"], "{address}");
    }
    // A function may be cut into two fragments by chance. An address in the second also names the function.
    ask(&guest, "optimize", &["--shuffle", "3"]);
    let all = ask(&guest, "explain", &[]);
    let apart = |f: &&Value| f["warm"].is_string();
    let function = all["functions"].as_array().unwrap().iter().find(apart).unwrap().clone();
    let warm = u64::from_str_radix(function["warm"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    let end = warm + function["warm_bytes"].as_u64().unwrap();
    for address in [warm, end - 1] {
        let mut found = ask(&guest, "explain", &[&format!("{address:#x}")])["functions"].take();
        let anatomy = found[0].as_object_mut().unwrap().remove("anatomy").unwrap();
        assert_eq!((found, &anatomy["standing"]), (json!([function]), &json!("cloned")));
    }
    for none in ["nonesuch", "0x10", &format!("{:#x}", last + (1 << 30))] {
        whet(&["explain", &guest.arg(), none]).exits(3);
    }
}

/// `whet run`: the command's output and exit code are the command's.
#[test]
fn running_a_command() {
    let plain = |code: &str| {
        let guest = Guest::working(&build("cases.c"), &["spin", code], 1);
        guest.finish()
    };
    let report = scratch("report");
    let guest = Guest::start_by(|page| {
        let mut command = whet_command(&["run"]);
        command
            .args(QUICK)
            .arg("--report")
            .arg(&report)
            .arg("--")
            .arg(build("cases.c"))
            .arg(page)
            .args(["spin", "7"]);
        command.stderr(Stdio::null());
        command
    });
    wait_until("a report", || fs::read_to_string(&report).is_ok_and(|t| t.ends_with('\n')));
    is_optimize_answer(&serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap(), false);
    fs::remove_file(&report).unwrap();
    guest.progresses(1);
    assert_eq!(guest.finish(), plain("7"));
}

#[test]
fn running_what_ends_or_cannot_be_optimized() {
    let sh = |script: &str| whet(&["run", "--seconds", "0.1", "--delay", "0.1", "--", "sh", "-c", script]);
    let ended = sh("echo out; echo err >&2; exit 5").exits(5);
    assert_eq!(ended.stdout, "out\n");
    assert!(ended.stderr.starts_with("err\n") && ended.stderr.contains("whet: warning: "), "{ended:?}");
    sh("kill -9 $$").exits(128 + 9);
    // Nothing is hot: the command runs on unchanged, and whet says so.
    let idle = sh("sleep 0.5; echo out").exits(0);
    assert_eq!(idle.stdout, "out\n");
    assert!(idle.stderr.contains("not optimized"), "{idle:?}");
    // whet's own flags end where the command begins.
    assert_eq!(
        whet(&["run", "--delay", "0", "--", "echo", "--format", "json", "-x"]).exits(0).stdout,
        "--format json -x\n"
    );
    assert!(whet(&["run", "--", "/nonexistent/command"]).exits(3).stderr.contains("/nonexistent/command"));
    whet(&["run"]).exits(2);
}

/// `--all` in a pid namespace of its own has nothing but its processes, so it can be tested beside other
/// tests at work.
#[test]
fn all_of_them() {
    let isolated = ["unshare", "nsenter"].into_iter().all(have)
        && run(command("unshare", &["--pid", "--fork", "--mount-proc", "true"])).code == Some(0);
    if !isolated {
        return skip("pid namespaces cannot be made here");
    }
    let program = build("cases.c");
    let guest = Guest::start_by(|page| {
        let mut unshare = command("unshare", &["--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare.arg(&program).arg(page).arg("spin");
        unshare
    });
    guest.progresses(1);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", guest.pid())).unwrap();
    let inner = children.trim();
    // From outside, it is a process like any other.
    whet(&[&["optimize", inner][..], &QUICK].concat()).exits(0);
    let inside = |arguments: &[&str]| -> Answer {
        let mut nsenter = command("nsenter", &["-t", inner, "-p", "-m", env!("CARGO_BIN_EXE_whet")]);
        nsenter.args(arguments).args(["--format", "json"]);
        run(nsenter)
    };
    let state = || inside(&["status"]).exits(0).json()["targets"][0]["state"].clone();
    assert_eq!(state(), "optimized");
    for (arguments, wanted) in [
        (&["undo", "--all"][..], "undone"),
        (&["redo", "--all"], "optimized"),
        (&["-undo"], "undone"),
        (&["-redo"], "optimized"),
        (&["undo", "1"], "undone"),
    ] {
        let answer = inside(arguments).exits(0).json();
        if arguments.last() != Some(&"1") {
            has_fields(&answer, &["targets"]);
            assert_eq!(answer["targets"].as_array().unwrap().len(), 1, "{answer}");
            assert_eq!(answer["targets"][0]["pid"], 1, "{answer}");
        }
        assert_eq!(state(), wanted, "{arguments:?}");
    }
    guest.progresses(1);
    // Optimized from inside too.
    inside(&[&["optimize", "1"][..], &QUICK].concat()).exits(0);
    assert_eq!(ask_verify(inner)["identical"], true);
    // The perf map of a process that is the first in its pid namespace; its /tmp is the host's.
    fs::remove_file("/tmp/perf-1.map").unwrap();
    guest.progresses(1);
    assert_eq!(guest.finish().0, Some(0));
}

/// The spellings of older documents, and today's.
#[test]
fn single_dash_spellings() {
    let guest = spinning();
    let pid = guest.arg();
    whet(&[&["optimize", &pid][..], &QUICK].concat()).exits(0);
    let state = || ask(&guest, "-status", &[])["targets"][0]["state"].clone();
    for (word, wanted) in [("-undo", "undone"), ("-redo", "optimized"), ("-undo", "undone")] {
        ask(&guest, word, &[]);
        assert_eq!(state(), wanted, "{word}");
    }
    guest.progresses(1);
    // A daemon of this test's own, which does not run.
    let config = scratch("whet.toml");
    let socket = scratch("socket");
    fs::write(&config, format!("[paths]\nsocket = {:?}\n", socket.to_str().unwrap())).unwrap();
    let [old, new] = ["-stop", "stop"].map(|word| {
        let answer = whet(&[word, "--config", config.to_str().unwrap()]).exits(12);
        assert!(answer.stderr.contains(socket.to_str().unwrap()), "{answer:?}");
        answer.stderr
    });
    assert_eq!(old, new);
    fs::remove_file(&config).unwrap();
    assert_eq!(whet(&["-start", "--help"]).exits(0).stdout, whet(&["start", "--help"]).exits(0).stdout);
    // A number is a pid.
    for number in [["optimize", "-5"], ["status", "-5"]] {
        assert!(whet(&number).exits(3).stderr.contains("no process -5"));
    }
    // Behind another word, an old spelling is taken for options. `-optimize` is no old spelling.
    for wrong in [&["status", "-undo"][..], &["-optimize", "1"]] {
        whet(wrong).exits(2);
    }
}

/// The files for packages.
#[test]
fn man_pages_and_completions() {
    let folder = scratch("generated");
    let answer = whet(&["generate", folder.to_str().unwrap(), "--format", "json"]).exits(0).json();
    let files: Vec<&str> = answer["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    for command in COMMANDS {
        let page = text(&format!("whet-{command}.1"));
        assert!(page.contains(".SH \"EXAMPLES\"\n.nf\n\\&  whet "), "{page}");
        for completion in ["whet.bash", "_whet", "whet.fish"] {
            assert!(text(completion).contains(command), "{command} in {completion}");
        }
    }
    assert!(text("whet.1").contains(".SH \"EXIT CODES\"\n.nf\n\\&  0 success "));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), files.len());
    fs::remove_dir_all(&folder).unwrap();
    // If the folder cannot be made, the file in its place stays.
    let file = scratch("in-the-way");
    fs::write(&file, "mine").unwrap();
    whet(&["generate", file.to_str().unwrap()]).exits(2);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    fs::remove_file(&file).unwrap();
}

fn ask_verify(pid: &str) -> Value {
    whet(&["verify", pid, "--format", "json"]).exits(0).json()
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// A program whose file was replaced or removed is still read, and compared with the file that it runs.
#[test]
fn a_program_without_its_file() {
    let program = scratch("copy");
    copy(&build("cases.c"), &program);
    let guest = Guest::working(&program, &["spin"], 1);
    fs::remove_file(&program).unwrap();
    let optimized = ask(&guest, "optimize", &QUICK);
    assert_eq!(optimized["functions"]["cloned"], 2, "{optimized}");
    let verified = ask(&guest, "verify", &[]);
    assert_eq!(verified["identical"], true, "{verified}");
    guest.progresses(1);
    ask(&guest, "undo", &[]);
    assert_eq!(guest.finish().0, Some(0));
}

/// `verify` finds a change by another program, and its exit code says so.
#[test]
fn verify_finds_changes_by_other_programs() {
    use std::os::unix::fs::FileExt;
    let guest = spinning();
    let memory = fs::File::options().write(true).open(format!("/proc/{}/mem", guest.pid())).unwrap();
    ask(&guest, "optimize", &QUICK);
    assert_eq!(ask(&guest, "verify", &[])["identical"], true);
    let explained = ask(&guest, "explain", &["mix_some"]);
    let at = explained["functions"][0]["at"].as_str().unwrap().trim_start_matches("0x").to_owned();
    let at = u64::from_str_radix(&at, 16).unwrap();
    // Padding before the function: no thread runs it.
    memory.write_all_at(&[0xcc], at - 1).unwrap();
    let answer = whet(&["verify", &guest.arg(), "--format", "json"]).exits(8).json();
    assert_eq!(answer["identical"], false);
    let unexpected = &answer["unexpected"].as_array().unwrap()[..];
    assert_eq!(unexpected.len(), 1, "{answer}");
    has_fields(&unexpected[0], &["module", "at", "len", "what"]);
    assert_eq!((&unexpected[0]["at"], &unexpected[0]["len"]), (&format!("{:#x}", at - 1).into(), &1.into()));
}

/// While another whet works on the target, `verify` says so instead of reporting its half of a change.
#[test]
fn verify_beside_another_whet() {
    use std::os::unix::fs::FileExt;
    let guest = spinning();
    ask(&guest, "optimize", &QUICK);
    let path = format!("/proc/{}/mem", guest.pid());
    let memory = fs::File::options().read(true).write(true).open(&path).unwrap();
    let explained = ask(&guest, "explain", &["mix_some"]);
    let at = explained["functions"][0]["at"].as_str().unwrap().trim_start_matches("0x").to_owned();
    // Padding before the function: no thread runs it.
    let at = u64::from_str_radix(&at, 16).unwrap() - 1;
    let mut before = [0];
    memory.read_exact_at(&mut before, at).unwrap();
    let lock = fs::File::open(&path).unwrap();
    lock.try_lock().unwrap();
    ask(&guest, "verify", &[]);
    memory.write_all_at(&[0xcc], at).unwrap();
    for more in [&[][..], &["--family"]] {
        let pid = guest.arg();
        let words = [&["verify", &pid, "--format", "json"], more].concat();
        let error = whet(&words).exits(6).json()["error"].clone();
        assert_eq!(error["code"], "locked", "{error}");
    }
    // The other whet ends its work during the comparison.
    let waits = whet_command(&["verify", &guest.arg()]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    memory.write_all_at(&before, at).unwrap();
    drop(lock);
    assert_eq!(finish(waits), (Some(0), None));
}

/// A reader of the answer may go away: this is no error, and a command without an end ends.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    for arguments in [&["doctor"][..], &["--help"], &["status"], &["status", "--watch", "--format", "json"]] {
        let mut child =
            whet_command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut errors = child.stderr.take().unwrap();
        assert_eq!(finish(child), (Some(0), None), "{arguments:?}");
        let mut text = String::new();
        errors.read_to_string(&mut text).unwrap();
        assert_eq!(text, "", "{arguments:?}");
    }
}

#[test]
fn watching() {
    let own = std::process::id().to_string();
    let mut child = whet_command(&["status", &own, "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut lines = 0;
    let mut byte = [0];
    while lines < 2 {
        stdout.read_exact(&mut byte).unwrap();
        lines += usize::from(byte == *b"\n");
    }
    drop(stdout);
    assert_eq!(finish(child).0, Some(0));
}

#[test]
fn one_is_not_many() {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let pid = guest.arg();
    let answers = [
        &["optimize", &pid, "--shuffle", "1", "--only", "mix_some"][..],
        &["status", &pid],
        &["explain", &pid],
        &["verify", &pid],
        &["undo", &pid],
    ];
    let text: String = answers.iter().map(|args| whet(args).exits(0).stdout).collect();
    assert!(text.contains("1 of 1 hot function rebuilt"), "{text}");
    assert!(text.contains(" 1 function in "), "{text}");
    for word in ["hot function", "function", "redirect", "live redirect", "sample", "byte", "process"] {
        assert!(!text.contains(&format!(" 1 {word}s")), "{word}: {text}");
    }
}
