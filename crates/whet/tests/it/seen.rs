//! Unmodified tools on clones in files: whole stacks and names, without a perf map and without a symbol file.

use crate::support::{Guest, build, have, run, scratch, skip, whet};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const THREADS: u64 = 5;
const HOW: [&str; 9] = [
    "--shuffle",
    "2",
    "--code-cache",
    "file",
    "--only",
    "at_the_bottom",
    "dive_plain",
    "dive_saving",
    "dive_alloca",
];

/// Starts a program whose threads are deep in clones, which lie in files. Returns also the paths of the files'
/// copies. `None` if this host has no such files.
fn deep() -> Option<(Guest, Vec<PathBuf>)> {
    let guest = Guest::working(&build("deep.c"), &[], THREADS);
    let report = whet(&[&["optimize", &guest.arg(), "--format", "json"], &HOW[..]].concat()).exits(0).json();
    let files = &report["code_files"];
    if files["mapped"] == false {
        skip(&format!("no files for clones here: {files}"));
        return None;
    }
    assert_eq!(files["left_out"], Value::Null, "{files}");
    // Without the perf map, tools have the files alone.
    fs::remove_file(format!("/tmp/perf-{}.map", guest.pid())).unwrap();
    guest.progresses(THREADS);
    let paths: Vec<_> =
        files["copies"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().into()).collect();
    assert!(!paths.is_empty());
    Some((guest, paths))
}

fn output(program: &str, words: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(words).env_remove("DEBUGINFOD_URLS");
    run(command).exits(0).stdout
}

/// Checks the stacks that eu-stack prints: each thread's reaches the thread's start, through at least `clones`
/// clones with names.
#[track_caller]
fn are_whole(text: &str, clones: usize) {
    let stacks: Vec<&str> = text.split("TID ").skip(1).collect();
    assert_eq!(stacks.len() as u64, THREADS, "{text}");
    for stack in stacks {
        let frames: Vec<&str> = stack.lines().filter(|l| l.starts_with('#')).collect();
        let last = frames.last().unwrap_or(&"no frame");
        assert!(
            [" _start", " __clone3", " clone3"].iter().any(|end| last.contains(end)),
            "{last:?}: {stack}"
        );
        let found = frames.iter().filter(|f| f.contains(".whet")).count();
        assert!(found >= clones, "{found} clones: {stack}");
    }
}

/// A thread with open files of its own cannot be given files: the reason is in the answer.
#[test]
fn why_clones_are_not_in_files() {
    let guest = Guest::working(&build("cases.c"), &["own_files"], 2);
    let how = ["--code-cache", "file", "--shuffle", "1", "--only", "mix_some", "sum_up"];
    let report = whet(&[&["optimize", &guest.arg(), "--format", "json"], &how[..]].concat()).exits(0).json();
    let files = &report["code_files"];
    assert_eq!(files["mapped"], false, "{files}");
    let why = files["left_out"].as_str().unwrap();
    if why.contains("not permitted") {
        return skip(why);
    }
    assert!(why.contains("table of descriptors of its own"), "{why}");
    guest.progresses(2);
}

#[test]
fn elfutils_sees_stacks_live_and_in_cores() {
    if !have("eu-stack") || !have("gcore") {
        return skip("no eu-stack or gcore");
    }
    let Some((guest, _)) = deep() else { return };
    let pid = guest.arg();
    are_whole(&output("eu-stack", &["-p", &pid]), 3);
    guest.progresses(THREADS);
    let prefix = scratch("core");
    output("gcore", &["-o", prefix.to_str().unwrap(), &pid]);
    let core = prefix.with_file_name(format!("{}.{pid}", prefix.file_name().unwrap().to_str().unwrap()));
    let exe = build("deep.c");
    are_whole(&output("eu-stack", &["--core", core.to_str().unwrap(), "-e", exe.to_str().unwrap()]), 3);
    fs::remove_file(core).unwrap();
    // Undone clones may still be on stacks.
    whet(&["undo", &pid]).exits(0);
    fs::remove_file(format!("/tmp/perf-{pid}.map")).unwrap_or_default();
    are_whole(&output("eu-stack", &["-p", &pid]), 0);
}

#[test]
fn perf_sees_names_and_stacks() {
    if !have("perf") {
        return skip("no perf");
    }
    let Some((guest, paths)) = deep() else { return };
    let data = scratch("perf.data");
    let file = data.to_str().unwrap();
    let mut record = Command::new("perf");
    record.args([
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        "199",
        "--call-graph",
        "dwarf",
        "-p",
        &guest.arg(),
    ]);
    record.args(["-o", file, "--", "sleep", "1"]);
    let answer = run(record);
    if answer.code != Some(0) {
        return skip(&format!("perf record does not work here: {}", answer.stderr));
    }
    let text = output("perf", &["script", "-F", "ip,sym,dso", "-i", file]);
    fs::remove_file(data).unwrap();
    let file = paths.iter().map(|p| format!("({})", p.display())).find(|p| text.contains(p.as_str()));
    let file = file.unwrap_or_else(|| panic!("no clone of {paths:?} in {text}"));
    let clones = text.lines().filter(|l| l.contains(&file));
    assert!(clones.clone().count() > 100 && !clones.clone().any(|l| l.contains("[unknown]")), "{text}");
    // Every stack with clones goes on to the start of its thread.
    let stacks = text.split("\n\n").filter(|s| s.contains(&file));
    let (whole, cut): (Vec<&str>, Vec<&str>) =
        stacks.partition(|s| ["_start ", "clone3 "].iter().any(|end| s.contains(end)));
    assert!(whole.len() > 20 && cut.len() * 100 <= whole.len(), "{} whole; {cut:?}", whole.len());
}

#[test]
fn gdb_takes_the_file_as_it_is() {
    if !have("gdb") {
        return skip("no gdb");
    }
    let Some((guest, paths)) = deep() else { return };
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
    let start = |path: &Path| {
        let line =
            maps.lines().find(|l| l.ends_with(path.to_str().unwrap()) && l.contains(" r-xp ")).unwrap();
        line.split('-').next().unwrap().to_owned()
    };
    let mut words = vec!["--batch".to_owned(), "-nx".to_owned(), "-p".to_owned(), guest.arg()];
    for path in &paths {
        words.push("-ex".to_owned());
        words.push(format!("add-symbol-file {} -o 0x{}", path.display(), start(path)));
    }
    words.extend(["-ex".to_owned(), "thread apply all bt".to_owned()]);
    let text = output("gdb", &words.iter().map(String::as_str).collect::<Vec<_>>());
    let stacks: Vec<&str> = text.split("\nThread ").skip(1).collect();
    assert_eq!(stacks.len() as u64, THREADS, "{text}");
    for stack in stacks {
        assert!(!stack.contains("?? ()") && stack.contains("whet"), "{stack}");
        assert!([" main", "clone3 ("].iter().any(|end| stack.contains(end)), "{stack}");
    }
}

/// Nobody can write to the file, the target keeps no descriptor, and forks and later generations stand.
#[test]
fn the_file_is_sealed() {
    let Some((guest, paths)) = deep() else { return };
    let files = |pid: i32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let ours = maps.lines().filter(|l| l.contains(".whet")).map(str::to_owned);
        ours.collect::<Vec<_>>()
    };
    let mapped = files(guest.pid());
    assert!(mapped.len() == 2 * paths.len() && !mapped.iter().any(|l| l.contains(" rw") || l.contains("wx")));
    for line in &mapped {
        let link = format!("/proc/{}/map_files/{}", guest.pid(), line.split(' ').next().unwrap());
        let error = fs::OpenOptions::new().write(true).open(&link).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{link}");
    }
    let open = fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().flatten();
    let targets: Vec<_> = open.filter_map(|e| fs::read_link(e.path()).ok()).collect();
    let odd = targets.iter().find(|t| t.to_string_lossy().contains("socket:") || t.ends_with(".whet"));
    assert_eq!(odd, None, "{targets:?}");
    // Another generation has files of its own; the first one's stay.
    let again = whet(&[&["optimize", &guest.arg(), "--format", "json"], &HOW[..]].concat()).exits(0).json();
    assert_eq!(again["code_files"]["mapped"], true, "{again}");
    assert_eq!(files(guest.pid()).len(), 4 * paths.len());
    assert_eq!(whet(&["verify", &guest.arg(), "--format", "json"]).exits(0).json()["identical"], true);
    whet(&["undo", &guest.arg()]).exits(0);
    guest.progresses(THREADS);
    // A copy that is gone harms nothing.
    fs::remove_file(&paths[0]).unwrap();
    whet(&["redo", &guest.arg()]).exits(0);
    guest.progresses(THREADS);
}

/// Returns the file of each mapping of clones: device, inode and offset.
fn files_of(pid: i32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let fields = |line: &str| line.split_whitespace().skip(2).take(3).collect::<Vec<_>>().join(" ");
    maps.lines().filter(|l| l.contains(".whet")).map(fields).collect()
}

/// Members that were forked before map the files of their parent. A member that can open no further file has
/// its clones in anonymous memory, and the answer says why.
#[test]
fn a_family_shares_its_files() {
    let guest = Guest::start(&build("family.c"), &["3"]);
    guest.progresses(1);
    let on_family = |command: &str, more: &[&str]| {
        whet(&[&[command, "--family", &guest.arg(), "--format", "json"], more].concat()).exits(0).json()
    };
    let status = on_family("status", &[]);
    let members = status["members"].as_array().unwrap().iter();
    let members: Vec<i32> = members.map(|m| i32::try_from(m["pid"].as_i64().unwrap()).unwrap()).collect();
    let full = members[1];
    let mut limit = Command::new("prlimit");
    limit.args(["--pid", &full.to_string(), "--nofile=3:3"]);
    run(limit).exits(0);
    let answer = on_family("optimize", &["--seconds", "1", "--count", "0.3", "--code-cache", "file"]);
    let files = &answer["parent"]["code_files"];
    if files["mapped"] == false {
        return skip(&format!("no files for clones here: {files}"));
    }
    let report = &answer["members"];
    assert_eq!(report["installed"], 3, "{report}");
    assert_eq!(report["not_from_files"][0]["pid"], full, "{report}");
    assert_eq!(report["not_from_files"].as_array().unwrap().len(), 1, "{report}");
    let of_parent = files_of(guest.pid());
    assert!(!of_parent.is_empty());
    for member in &members {
        let expected = if *member == full { &[][..] } else { &of_parent[..] };
        assert_eq!(files_of(*member), expected, "{member}");
    }
    for (command, state) in [("undo", "undone"), ("redo", "optimized")] {
        on_family(command, &[]);
        guest.progresses(1);
        assert_eq!(on_family("verify", &[])["identical"], true);
        assert_eq!(on_family("status", &[])["states"], serde_json::json!({ state: 3 }));
    }
    if have("eu-stack") {
        // The names are in the copy of the parent's file.
        let works = |text: &str| text.contains(".whet");
        let seen = (0..100).any(|_| works(&output("eu-stack", &["-p", &members[0].to_string()])));
        assert!(seen, "no clone on the stacks of {}", members[0]);
    }
    on_family("undo", &[]);
}
