//! Debuggers and profilers on an optimized process: whole backtraces and names, of the process, of its core,
//! under load.

use crate::support::{Answer, Guest, build, have, run, scratch, skip, whet};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const THREADS: u64 = 5;

/// The guest's own functions.
const OWN: [&str; 5] = ["--only", "at_the_bottom", "dive_plain", "dive_saving", "dive_alloca"];

/// Starts a program whose threads are deep in clones: of its own functions, or of its libraries' too.
fn deep(only: &[&str]) -> Guest {
    let guest = Guest::working(&build("deep.c"), &[], THREADS);
    json(&[&["optimize", &guest.arg(), "--shuffle", "2"], only].concat());
    guest.progresses(THREADS);
    guest
}

fn optimize(guest: &Guest) -> Value {
    json(&[&["optimize", &guest.arg(), "--shuffle", "2"], &OWN[..]].concat())
}

fn json(words: &[&str]) -> Value {
    whet(&[words, &["--format", "json"]].concat()).exits(0).json()
}

/// Runs gdb as whet's report says, and returns all stacks.
fn backtraces(report: &Value) -> String {
    let command = report["command"].as_str().unwrap();
    let arguments = command.strip_prefix("gdb ").unwrap();
    let script = format!("exec gdb --batch -nx {arguments} -ex 'thread apply all bt'");
    let mut sh = Command::new("sh");
    sh.args(["-c", &script]).env_remove("DEBUGINFOD_URLS");
    let answer = run(sh).exits(0);
    assert!(!answer.stderr.contains("rror"), "{answer:?}");
    answer.stdout
}

/// Checks three things: every stack reaches the start of its thread, every frame has a name, and each of the
/// guest's threads has clones on its stack.
#[track_caller]
fn are_whole(text: &str) {
    let stacks: Vec<&str> = text.split("\nThread ").skip(1).collect();
    assert_eq!(stacks.len() as u64, THREADS, "{text}");
    for stack in stacks {
        let frames: Vec<&str> = stack.lines().filter(|l| l.starts_with('#')).collect();
        let last = frames.last().unwrap_or(&"no frame");
        assert!([" main", "clone3 ("].iter().any(|end| last.contains(end)), "ends at {last:?}: {stack}");
        let hole = stack.lines().find(|l| l.contains("?? ()") || l.contains("Backtrace stopped"));
        assert_eq!(hole, None, "{stack}");
        let clones = frames.iter().filter(|f| f.contains("whet")).count();
        assert!(clones >= 3, "{clones} clones: {stack}");
        // No frame is lost in the middle either: each dive is called by another dive.
        let dives = frames.iter().filter(|f| f.contains("dive_")).count();
        assert!(dives >= 2 && dives + 14 > frames.len(), "{dives} dives of {} frames: {stack}", frames.len());
    }
}

fn has_gdb() -> bool {
    let has = have("gdb") && have("gcore");
    if !has {
        skip("no gdb");
    }
    has
}

#[test]
fn gdb_sees_whole_stacks_live_and_in_cores() {
    if !has_gdb() {
        return;
    }
    // Sleeping threads are in clones of the C library's functions.
    let some = [&OWN[..], &["nanosleep", "clock_nanosleep"]].concat();
    let mut guest = deep(if crate::support::stress() { &[] } else { &some });
    let report = json(&["gdb", &guest.arg()]);
    let file = PathBuf::from(report["file"].as_str().unwrap());
    assert_eq!(report["unknown_frames"], 0, "{report}");
    assert!(report["symbols"].as_u64().unwrap() > 10 && report["frames"].as_u64().unwrap() > 10, "{report}");
    for _ in 0..if crate::support::stress() { 20 } else { 2 } {
        are_whole(&backtraces(&report));
        guest.progresses(THREADS);
    }
    fs::remove_file(file).unwrap();

    // The threads do not leave the clones meanwhile: clones that were undone are still on stacks, and have
    // names.
    json(&["undo", &guest.arg()]);
    json(&["redo", &guest.arg()]);
    guest.progresses(THREADS);

    // Two cores: the one that gdb writes of the live process, and the one that the kernel writes when it
    // ends.
    let file = scratch("symbols with a space");
    let of_core =
        |core: &Path| json(&["gdb", "-o", file.to_str().unwrap(), "--core", core.to_str().unwrap()]);
    let prefix = scratch("core");
    let mut gcore = Command::new("gcore");
    gcore.arg("-o").arg(&prefix).arg(guest.arg()).env_remove("DEBUGINFOD_URLS");
    run(gcore).exits(0);
    let core =
        prefix.with_file_name(format!("{}.{}", prefix.file_name().unwrap().to_str().unwrap(), guest.arg()));
    let report = of_core(&core);
    assert_eq!(report["exe"].as_str().unwrap(), build("deep.c").to_str().unwrap());
    are_whole(&backtraces(&report));

    // A core that is cut off gives an error that says so.
    let len = fs::metadata(&core).unwrap().len();
    for keep in [1000, len / 50] {
        fs::File::options().write(true).open(&core).unwrap().set_len(keep).unwrap();
        let code = whet(&["gdb", "--core", core.to_str().unwrap()]).code;
        assert!(matches!(code, Some(2 | 7)), "{code:?}");
    }
    fs::remove_file(&core).unwrap();

    if let Some(core) = abort(&mut guest) {
        are_whole(&backtraces(&of_core(&core)));
        fs::remove_file(core).unwrap();
    }
    fs::remove_file(file).unwrap();
}

/// Ends the guest with a core by the kernel, if the kernel writes cores beside the program's folder.
fn abort(guest: &mut Guest) -> Option<PathBuf> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let pattern = pattern.trim();
    if pattern.contains(['|', '/', '%']) || pattern.is_empty() {
        skip(&format!("the kernel's own core: core_pattern is {pattern:?}"));
        return None;
    }
    let folder = fs::read_link(format!("/proc/{}/cwd", guest.pid())).unwrap();
    let pid = guest.arg();
    let mut limit = Command::new("prlimit");
    limit.args(["--pid", &pid, "--core=unlimited:unlimited"]);
    if run(limit).code != Some(0) {
        skip("the kernel's own core: the limit cannot be raised here");
        return None;
    }
    let before = folder.join(pattern);
    let after = folder.join(format!("{pattern}.{pid}"));
    let mut abort = Command::new("kill");
    abort.args(["-ABRT", &pid]);
    run(abort).exits(0);
    assert_eq!(guest.ended().1, Some(6));
    let core = [after, before].into_iter().find(|c| c.is_file());
    if core.is_none() {
        skip("the kernel wrote no core");
    }
    core
}

#[test]
fn wrong_uses_of_gdb_are_refused() {
    let guest = Guest::working(&build("deep.c"), &[], THREADS);
    let error = |a: &Answer| serde_json::from_str::<Value>(&a.stdout).unwrap()["error"]["code"].clone();
    let answer = whet(&["gdb", &guest.arg(), "--format", "json"]).exits(7);
    assert_eq!(error(&answer), "not_installed");
    let answer = whet(&["gdb", "--core", "/proc/self/exe", "--format", "json"]).exits(2);
    assert_eq!(error(&answer), "no_core_file");
    whet(&["gdb", "--core", "/nonexistent"]).exits(3);
    whet(&["gdb"]).exits(2);
    whet(&["gdb", "1", "--core", "core"]).exits(2);
}

/// Samples a process by perf, with more arguments. Returns the output of `perf script`, after `perf inject`
/// if `inject` is set.
fn sampled(guest: &Guest, more: &[&str], inject: bool) -> Option<String> {
    let perf = |words: &[&str], file: &Path| {
        let mut c = Command::new("perf");
        c.args(words).arg(file);
        run(c)
    };
    let (data, injected) = (scratch("perf.data"), scratch("perf.jit.data"));
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "499", "-p", &guest.arg()]).args(more);
    record.arg("-o").arg(&data).args(["--", "sleep", "1"]);
    let answer = run(record);
    if answer.code != Some(0) {
        skip(&format!("perf record does not work here: {}", answer.stderr));
        return None;
    }
    let mut read = &data;
    if inject {
        perf(&["inject", "--jit", "-i", data.to_str().unwrap(), "-o"], &injected).exits(0);
        read = &injected;
    }
    let text = perf(&["script", "-F", "ip,sym,dso", "-i"], read).exits(0).stdout;
    for file in [data, injected] {
        let _ = fs::remove_file(file);
    }
    Some(text)
}

#[test]
fn perf_names_clones() {
    if !have("perf") {
        return skip("no perf");
    }
    let guest = deep(&OWN);
    let in_clones = |text: &str, of: &str| {
        text.lines().filter(|l| l.contains("at_the_bottom.whet") && l.contains(of)).count()
    };
    let Some(text) = sampled(&guest, &[], false) else { return };
    assert!(in_clones(&text, &format!("/tmp/perf-{}.map", guest.pid())) > 20, "{text}");
    // Not all of libc's own functions have names.
    assert!(!text.lines().any(|l| l.contains("[unknown]") && !l.contains(".so")), "{text}");

    // The same with the code of clones, written twice as a later generation would.
    for _ in 0..2 {
        let report = json(&["perf", &guest.arg(), "--jitdump"]);
        assert_eq!(report["jitdump"], format!("/tmp/jit-{}.dump", guest.pid()));
        assert_eq!(report["perf_map"]["left_out"], Value::Null, "{report}");
    }
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
    assert_eq!(maps.lines().filter(|l| l.contains("/tmp/jit-")).count(), 1, "{maps}");
    guest.progresses(THREADS);
    let jitted = sampled(&guest, &["-k", "mono"], true);
    assert_eq!(json(&["verify", &guest.arg()])["identical"], true);
    let left = |name: &str| {
        let own = [format!("jitted-{}-", guest.pid()), format!("jit-{}.dump", guest.pid())];
        own.iter().any(|o| name.starts_with(o.as_str()))
    };
    for entry in fs::read_dir("/tmp").unwrap().flatten() {
        if left(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let text = jitted.unwrap();
    assert!(in_clones(&text, &format!("/tmp/jitted-{}-", guest.pid())) > 20, "{text}");
}

fn map_of(pid: i32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

#[test]
fn perf_maps_of_others_are_left_alone() {
    let guest = Guest::working(&build("deep.c"), &[], THREADS);
    let path = map_of(guest.pid());
    let left_out = |report: &Value| report["perf_map"]["left_out"].as_str().map(str::to_owned);
    // The file of a language runtime.
    fs::write(&path, "1000 10 compiled\n").unwrap();
    assert!(left_out(&optimize(&guest)).unwrap().contains("not whet's"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "1000 10 compiled\n");
    // A symbolic link to another file.
    fs::remove_file(&path).unwrap();
    let victim = scratch("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &path).unwrap();
    symlink(&victim, format!("{}.unfinished", path.display())).unwrap();
    assert!(left_out(&json(&["redo", &guest.arg()])).is_some());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    assert_eq!(left_out(&json(&["redo", &guest.arg()])), None);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    fs::remove_file(victim).unwrap();
    // A file of whet's own is written anew, and undo leaves it.
    let first = fs::read_to_string(&path).unwrap();
    assert!(first.contains(" dive_plain.whet\n") && first.contains(" whet_find_object\n"), "{first}");
    optimize(&guest);
    let second = fs::read_to_string(&path).unwrap();
    assert!(second.len() > first.len() && second.contains(&first[..40]), "{second}");
    json(&["undo", &guest.arg()]);
    assert_eq!(fs::read_to_string(&path).unwrap(), second);
}

/// A process with a `/tmp` of its own gets its map there.
#[test]
fn a_map_goes_where_the_process_lives() {
    let program = build("deep.c");
    let inside = |mount: &[&str]| {
        Guest::start_by(|page| {
            // The program and its page may lie in the folder that the mount covers.
            let script = format!(
                "exec 3<\"$0\" 4<>\"$1\" && mount {} none /tmp && exec /proc/self/fd/3 /proc/self/fd/4",
                mount.join(" ")
            );
            let mut c = Command::new("unshare");
            c.args(["-m", "sh", "-c", &script]).arg(&program).arg(page);
            c
        })
    };
    if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success()) {
        return skip("no mount namespaces without root");
    }
    let guest = inside(&["-t", "tmpfs"]);
    guest.progresses(THREADS);
    let report = optimize(&guest);
    assert_eq!(report["perf_map"]["left_out"], Value::Null, "{report}");
    assert!(!map_of(guest.pid()).exists());
    let map = fs::read_to_string(format!("/proc/{0}/root/tmp/perf-{0}.map", guest.pid())).unwrap();
    assert!(map.contains(" dive_plain.whet\n"), "{map}");

    // If the map cannot be written there, the process is optimized all the same.
    let guest = inside(&["-t", "tmpfs", "-o", "ro"]);
    guest.progresses(THREADS);
    let report = optimize(&guest);
    assert!(report["perf_map"]["left_out"].as_str().unwrap().contains("ead-only"), "{report}");
    assert_eq!(report["state"], "optimized");
}
