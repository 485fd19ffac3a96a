//! A process that must be left alone is refused with an exit code, a reason and a hint, and runs on as it
//! was.

use crate::support::{
    Answer, Guest, OpenFolder, build, build_with, changed_text, have, pid_of, run, scratch, skip, stray_code,
    stress, tracers, wait_until, whet, whet_command,
};
use engine::is_root;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Checks the form of a refusal. Returns its message.
#[track_caller]
fn refusal(answer: &Answer, exit: i32, code: &str) -> String {
    assert_eq!(answer.code, Some(exit), "{answer:?}");
    let object = answer.json();
    assert_eq!(keys(&object), ["error"], "{answer:?}");
    let error = &object["error"];
    assert_eq!(keys(error), ["code", "exit_code", "message", "next"], "{answer:?}");
    assert_eq!((&error["code"], &error["exit_code"]), (&Value::from(code), &Value::from(exit)), "{answer:?}");
    let (message, next) = (error["message"].as_str().unwrap(), error["next"].as_str().unwrap());
    assert!(message.len() > 10 && next.len() > 4, "{answer:?}");
    assert_eq!(answer.stderr, format!("whet: {message}\nwhet: hint: {next}\n"));
    message.to_owned()
}

fn keys(value: &Value) -> Vec<&str> {
    let keys: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.into_iter().collect()
}

/// Checks that a command on a process is refused, with the same text for people and in JSON.
#[track_caller]
fn refused(pid: i32, command: &[&str], exit: i32, code: &str) -> String {
    let pid = pid.to_string();
    let arguments = [&command[..1], &[pid.as_str()], &command[1..]].concat();
    let message = refusal(&whet(&[&arguments[..], &["--format", "json"]].concat()), exit, code);
    let human = whet(&arguments).exits(exit);
    assert_eq!(human.stdout, "");
    // Measured times differ.
    let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    assert_eq!(human.stderr.lines().next().map(words), Some(words(&format!("whet: {message}"))));
    message
}

const OPTIMIZE: [&str; 3] = ["optimize", "--seconds", "0.2"];

/// Checks that no process traces this one, that its code is that of its files, and that it has no code of
/// whet's.
#[track_caller]
fn is_untouched(pid: i32) {
    assert_eq!(tracers(pid), [] as [i32; 0]);
    assert_eq!(changed_text(pid), [] as [String; 0]);
    assert_eq!(stray_code(pid), [] as [String; 0]);
}

/// Waits until a process has used CPU time from now on.
#[track_caller]
fn burns(pid: i32) {
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after = stat.rsplit_once(')').unwrap().1;
        after.split_whitespace().skip(11).take(2).map(|f| f.parse::<u64>().unwrap()).sum::<u64>()
    };
    let from = ticks();
    wait_until("CPU time", || ticks() > from);
}

fn cases(way: &str, counters: u64) -> Guest {
    Guest::working(&build("cases.c"), &[way], counters)
}

fn kill(signal: &str, pid: i32) {
    run(shell(&format!("kill -{signal} {pid}"))).exits(0);
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn no_such_process() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = pid_of(&child);
    child.wait().unwrap();
    for pid in [pid, 0, 1 << 23, i32::MAX] {
        refused(pid, &OPTIMIZE, 3, "no_such_process");
        refused(pid, &["undo"], 3, "no_such_process");
        refused(pid, &["verify"], 3, "no_such_process");
        refused(pid, &["explain"], 3, "no_such_process");
        refused(pid, &["status"], 3, "no_such_process");
        refused(pid, &["measure"], 3, "no_such_process");
    }
}

#[test]
fn a_thread() {
    let guest = cases("threads", 2);
    let message = refused(guest.second_thread(), &OPTIMIZE, 3, "not_a_process");
    assert!(message.contains(&guest.arg()), "the right id is named: {message}");
    guest.progresses(2);
    is_untouched(guest.pid());
}

#[test]
fn a_kernel_thread() {
    if fs::read_to_string("/proc/2/comm").ok().as_deref().map(str::trim) != Some("kthreadd") {
        return skip("kernel threads are not seen here");
    }
    refused(2, &OPTIMIZE, 5, "kernel_thread");
    refused(2, &["undo"], 5, "kernel_thread");
}

#[test]
fn whet_itself() {
    let mut command = shell(r#"exec "$0" optimize $$ --format json"#);
    command.arg(env!("CARGO_BIN_EXE_whet"));
    refusal(&run(command), 5, "itself");
}

#[test]
fn traced_already() {
    if !have("gdb") {
        return skip("no gdb");
    }
    let guest = cases("spin", 1);
    let mut gdb = Command::new("gdb")
        .args(["-nx", "-q", "-p", &guest.arg()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("gdb traces", || !tracers(guest.pid()).is_empty());
    for command in [&OPTIMIZE[..], &["undo"]] {
        let message = refused(guest.pid(), command, 5, "already_traced");
        assert!(message.contains("gdb") && message.contains(&gdb.id().to_string()), "{message}");
    }
    // When its commands end, gdb releases the process.
    drop(gdb.stdin.take());
    gdb.wait().unwrap();
    guest.progresses(1);
    is_untouched(guest.pid());
}

#[test]
fn stopped_by_job_control() {
    let guest = cases("spin", 1);
    kill("STOP", guest.pid());
    let state = || fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
    wait_until("a stop", || state().contains(") T "));
    refused(guest.pid(), &OPTIMIZE, 5, "stopped");
    refused(guest.pid(), &["undo"], 5, "stopped");
    assert!(state().contains(") T "), "it is for others to continue it");
    kill("CONT", guest.pid());
    guest.progresses(1);
    is_untouched(guest.pid());
}

#[test]
fn strict_seccomp() {
    let guest = cases("strict", 1);
    refused(guest.pid(), &OPTIMIZE, 5, "seccomp_strict");
    guest.progresses(1);
    is_untouched(guest.pid());
    assert_eq!(guest.finish().0, Some(0));
}

/// Few calls are allowed, without mmap. With root's rights the filter is suspended for whet's own calls, and
/// only for these.
#[test]
fn a_seccomp_filter() {
    let guest = cases("filter", 1);
    let answer = whet(&[
        "optimize",
        &guest.arg(),
        "--format",
        "json",
        "--shuffle",
        "1",
        "--only",
        "mix_some",
        "sum_up",
    ]);
    guest.progresses(1);
    if answer.code == Some(0) {
        assert_eq!(answer.json()["functions"]["cloned"], 2, "{answer:?}");
        whet(&["undo", &guest.arg()]).exits(0);
        guest.progresses(1);
        assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
        assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    } else {
        refusal(&answer, 5, "seccomp_filter");
        is_untouched(guest.pid());
    }
    let status = fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
    assert!(status.contains("Seccomp:\t2"), "the filter is in force: {status}");
    assert_eq!(guest.finish().0, Some(0));
}

#[test]
fn a_32_bit_program() {
    let program = match build_with("spin32.s", &["-m32", "-nostdlib", "-static"]) {
        Ok(program) => program,
        Err(why) => return skip(&why),
    };
    let guest = Guest::start(&program, &[]);
    burns(guest.pid());
    refused(guest.pid(), &OPTIMIZE, 5, "not_x86_64");
    burns(guest.pid());
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
}

#[test]
fn a_go_program() {
    if !have("go") {
        return skip("no go");
    }
    let program = scratch("spin.go");
    let source = support_file("spin.go");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg(source);
    command.env("GO111MODULE", "off").env("GOFLAGS", "").env("GOPROXY", "off");
    if std::env::var_os("HOME").is_none() {
        command.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    }
    let built = run(command);
    if built.code != Some(0) {
        return skip(&built.stderr);
    }
    let guest = Guest::start(&program, &[]);
    fs::remove_file(&program).unwrap();
    burns(guest.pid());
    refused(guest.pid(), &OPTIMIZE, 5, "go");
    burns(guest.pid());
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(stray_code(guest.pid()), [] as [String; 0]);
}

fn support_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support").join(name)
}

#[test]
fn a_java_machine() {
    if !have("java") {
        return skip("no java");
    }
    let guest = Guest::start_by(|_| {
        let mut command = Command::new("java");
        command.arg("-Xshare:auto").arg(support_file("Spin.java"));
        command
    });
    wait_until("java", || guest.said().contains("ready") || guest.has_ended());
    if guest.has_ended() {
        return skip("java cannot run a source");
    }
    refused(guest.pid(), &OPTIMIZE, 5, "jvm");
    burns(guest.pid());
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
}

#[test]
fn a_static_program_without_symbols() {
    let program = match build_with("cases.c", &["-static", "-s"]) {
        Ok(program) => program,
        Err(why) => return skip(&why),
    };
    let guest = Guest::working(&program, &["spin"], 1);
    refused(guest.pid(), &OPTIMIZE, 5, "no_unwind_lookup");
    guest.progresses(1);
    is_untouched(guest.pid());
}

#[test]
fn a_process_that_has_ended() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = pid_of(&child);
    wait_until("its end", || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z "));
    refused(pid, &OPTIMIZE, 5, "exiting");
    refused(pid, &["undo"], 5, "exiting");
    child.wait().unwrap();
}

#[test]
fn anothers_process() {
    if !is_root() || !have("setpriv") {
        return skip("takes root and setpriv");
    }
    let guest = cases("spin", 1);
    let nobody = Nobody::new();
    for command in
        [&["optimize", "--seconds", "0.2"][..], &["optimize", "--shuffle", "1"], &["undo"], &["verify"]]
    {
        refusal(&nobody.whet(command[0], &guest, &command[1..]), 4, "not_permitted");
    }
    guest.progresses(1);
    is_untouched(guest.pid());
}

/// If root in a container lacks a right, the message names it, and does not say "run as root".
#[test]
fn root_without_its_rights() {
    if !is_root() || !have("setpriv") {
        return skip("takes root and setpriv");
    }
    let guest = cases("spin", 1);
    let optimize = |caps: &str| {
        let mut whet = Command::new("setpriv");
        whet.args(["--bounding-set", caps, "--inh-caps", caps]).arg(env!("CARGO_BIN_EXE_whet"));
        whet.args(["optimize", &guest.arg(), "--seconds", "0.2", "--format", "json"]);
        run(whet)
    };
    let answer = optimize("-all");
    let message = refusal(&answer, 4, "not_permitted");
    assert!(message.contains("CAP_SYS_PTRACE"), "{message}");
    assert!(!answer.stderr.contains("as root"), "{answer:?}");
    // Without only the rights to sample, the message does not say it either.
    let answer = optimize("-perfmon,-sys_admin");
    assert!(!answer.stderr.contains("as root"), "{answer:?}");
    guest.progresses(1);
    whet(&["undo", &guest.arg()]);
    let doctor = whet(&["doctor"]).stdout;
    assert!(!doctor.contains("run as root"), "{doctor}");
}

/// A user without rights, with a copy of whet that this user can start.
struct Nobody(OpenFolder);

impl Nobody {
    fn new() -> Self {
        Self(OpenFolder::new())
    }

    /// Returns the command that starts a program as this user.
    fn command(program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
        command
    }

    fn whet(&self, name: &str, guest: &Guest, args: &[&str]) -> Answer {
        let mut whet = Self::command(&self.0.file("whet"));
        whet.arg(name).arg(guest.arg()).args(args).args(["--format", "json"]);
        run(whet)
    }
}

/// Returns whether a whet works on a process: it has locked the file of the process's memory.
fn is_locked(pid: i32) -> bool {
    let Ok(file) = fs::metadata(format!("/proc/{pid}/mem")) else { return false };
    let inode = format!(":{}", file.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let of = |line: &str| line.split_whitespace().any(|word| word.ends_with(&inode));
    locks.lines().any(|line| line.contains(" FLOCK ") && of(line))
}

#[test]
fn another_whet_at_work() {
    let guest = cases("spin", 1);
    let file = File::open(format!("/proc/{}/mem", guest.pid())).unwrap();
    file.lock().unwrap();
    refused(guest.pid(), &OPTIMIZE, 6, "locked");
    refused(guest.pid(), &["undo"], 6, "locked");
    guest.progresses(1);
    is_untouched(guest.pid());
    // A lock that is released soon is waited for.
    std::thread::scope(|s| {
        let optimize = || whet(&["optimize", &guest.arg(), "--shuffle", "1", "--only", "mix_some"]);
        let waits = s.spawn(optimize);
        std::thread::sleep(Duration::from_millis(500));
        is_untouched(guest.pid());
        drop(file);
        waits.join().unwrap().exits(0);
    });
    whet(&["undo", &guest.arg()]).exits(0);
}

/// A process that holds the locks of its own files does not keep a whet out.
#[test]
fn a_process_that_locks_itself() {
    for more in [&[][..], &["both"]] {
        let guest = Guest::working(&build("cases.c"), &[&["locks_itself"], more].concat(), 1);
        assert!(is_locked(guest.pid()));
        whet(&["optimize", &guest.arg(), "--shuffle", "1", "--only", "mix_some"]).exits(0);
        assert_ne!(changed_text(guest.pid()), [] as [String; 0]);
        // Other whets are kept out all the same.
        let mut at_work = whet_command(&["optimize", &guest.arg(), "--seconds", "60"]);
        let mut at_work = at_work.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if more.is_empty() {
            wait_until("a whet at work", || is_worked_on(&guest));
            refused(guest.pid(), &OPTIMIZE, 6, "locked");
        }
        at_work.kill().unwrap();
        at_work.wait().unwrap();
        whet(&["undo", &guest.arg()]).exits(0);
        assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
        guest.progresses(1);
        assert_eq!(guest.finish().0, Some(0));
    }
}

fn is_worked_on(guest: &Guest) -> bool {
    let answer = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
    answer["targets"][0]["worked_on_by"].is_number()
}

/// This holds for any holder of the lock, whether or not it is a whet.
#[test]
fn an_undo_wins_over_the_holder_of_the_lock() {
    let guest = cases("spin", 1);
    let shuffle = |seed| ["optimize", "--shuffle", seed, "--only", "mix_some", "sum_up"];
    let optimize = |seed| whet(&[&shuffle(seed)[..1], &[&guest.arg()], &shuffle(seed)[1..]].concat());
    optimize("1").exits(0);
    let file = File::open(format!("/proc/{}/mem", guest.pid())).unwrap();
    file.lock().unwrap();
    refused(guest.pid(), &["redo"], 6, "locked");
    whet(&["undo", &guest.arg()]).exits(0);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    drop(file);
    // A whet that works on the process, and a whet that was stopped while it did: their changes do not come
    // into force.
    for stuck in [false, true] {
        optimize("2").exits(0);
        let mut at_work = whet_command(&["optimize", &guest.arg(), "--seconds", "8", "--format", "json"]);
        let at_work = at_work.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("a whet at work", || is_worked_on(&guest));
        if stuck {
            kill("STOP", pid_of(&at_work));
        }
        whet(&["undo", &guest.arg()]).exits(0);
        assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
        kill("CONT", pid_of(&at_work));
        let answer = at_work.wait_with_output().unwrap();
        let said: Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert_eq!((answer.status.code(), &said["error"]["code"]), (Some(6), &"changed".into()), "{said}");
        assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
        assert!(!is_worked_on(&guest));
        let status = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
        assert_eq!(status["targets"][0]["state"], "undone");
    }
    optimize("3").exits(0);
    whet(&["undo", &guest.arg()]).exits(0);
    guest.progresses(1);
    assert_eq!(guest.finish().0, Some(0));
}

/// A container's whet and the host's see the process under different ids, each in its own /proc.
#[test]
fn a_whet_in_another_pid_namespace() {
    if !is_root() || !have("unshare") || !have("nsenter") {
        return skip("takes root, unshare and nsenter");
    }
    let program = build("cases.c");
    let guest = Guest::start_by(|page| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(&program).arg(page).arg("spin");
        command
    });
    wait_until("the guest", || guest.has_begun() || guest.has_ended());
    if guest.has_ended() {
        return skip("no pid namespaces here");
    }
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", guest.pid())).unwrap();
    let pid: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    let has_files = {
        let pidfd = shell(&format!(
            "python3 -c 'import os; print(os.fstat(os.pidfd_open({pid})).st_ino != os.fstat(os.pidfd_open(1)).st_ino)'"
        ));
        run(pidfd).stdout.trim() == "True"
    };
    // In the namespace the process has the id 1.
    let inside = |args: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid.to_string(), "--pid", "--mount"]).arg(env!("CARGO_BIN_EXE_whet"));
        command.args(args).args(["--format", "json"]);
        run(command)
    };
    let shuffle = ["--shuffle", "1", "--only", "mix_some", "sum_up"];
    inside(&[&["optimize", "1"], &shuffle[..]].concat()).exits(0);
    assert_ne!(changed_text(pid), [] as [String; 0]);
    let mut at_work = whet_command(&["optimize", &pid.to_string(), "--seconds", "8", "--format", "json"]);
    let at_work = at_work.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a whet at work", || is_locked(pid));
    if has_files {
        let answer = inside(&[&["optimize", "1"], &shuffle[..]].concat());
        assert_eq!(refusal(&answer, 6, "locked"), "another whet is working on process 1");
    }
    inside(&["undo", "1"]).exits(0);
    assert_eq!(changed_text(pid), [] as [String; 0]);
    let answer = at_work.wait_with_output().unwrap();
    let said: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!((answer.status.code(), &said["error"]["code"]), (Some(6), &"changed".into()), "{said}");
    assert_eq!(changed_text(pid), [] as [String; 0]);
    assert_eq!(tracers(pid), [] as [i32; 0]);
    wait_until("its work", || guest.counter(0) > 0);
    guest.progresses(1);
}

/// Root and the owner of a process keep each other out until the whet at work has ended.
#[test]
fn another_users_whet_at_work() {
    if !is_root() || !have("setpriv") {
        return skip("takes root and setpriv");
    }
    if fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.trim() != "0") {
        return skip("only root may trace here");
    }
    let guest = Guest::start_by(|_| {
        let mut sleep = Nobody::command(Path::new("sleep"));
        sleep.arg("1000");
        sleep
    });
    let owner = || fs::metadata(format!("/proc/{}/mem", guest.pid())).unwrap().uid();
    let program = || fs::read_link(format!("/proc/{}/exe", guest.pid())).unwrap();
    wait_until("sleep", || owner() == 65534 && program().ends_with("sleep"));
    let nobody = Nobody::new();
    refusal(&nobody.whet("undo", &guest, &[]), 7, "not_installed");
    let mut by_root =
        whet_command(&["optimize", &guest.arg(), "--seconds", "60"]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("a whet at work", || is_locked(guest.pid()));
    refusal(&nobody.whet("undo", &guest, &[]), 6, "locked");
    by_root.kill().unwrap();
    by_root.wait().unwrap();
    refusal(&nobody.whet("undo", &guest, &[]), 7, "not_installed");
    is_untouched(guest.pid());
}

/// A parent in vfork waits where nothing can stop it. After the deadline all threads are released.
#[test]
fn a_process_that_cannot_be_stopped() {
    let guest = cases("vfork", 2);
    let command = ["optimize", "--shuffle", "1", "--only", "mix_some"];
    let message = refused(guest.pid(), &command, 6, "busy");
    assert!(
        message.contains("did not stop within") && !message.contains('.'),
        "whole milliseconds: {message}"
    );
    guest.progresses(2);
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    assert_eq!(guest.finish().0, Some(0));
}

#[test]
fn nothing_hot_and_nothing_there() {
    let guest = Guest::start_by(|_| {
        let mut command = Command::new("sleep");
        command.arg("1000");
        command
    });
    let maps = || fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap_or_default();
    wait_until("sleep", || maps().contains("/sleep") && maps().contains("/libc"));
    // It has started, and sleeps.
    std::thread::sleep(Duration::from_millis(100));
    refused(guest.pid(), &OPTIMIZE, 7, "nothing_hot");
    for command in ["undo", "redo", "explain"] {
        refused(guest.pid(), &[command], 7, "not_installed");
    }
    is_untouched(guest.pid());
}

/// Starts to sample a process, and meanwhile lets it do its special action.
fn while_sampled(guest: &Guest) -> Answer {
    std::thread::scope(|s| {
        let whet = s.spawn(|| whet(&["optimize", &guest.arg(), "--seconds", "1.5", "--format", "json"]));
        wait_until("a whet at work", || is_locked(guest.pid()));
        std::thread::sleep(Duration::from_millis(400));
        guest.go();
        whet.join().unwrap()
    })
}

#[test]
fn another_program_meanwhile() {
    let guest = cases("exec", 1);
    refusal(&while_sampled(&guest), 10, "gone");
    guest.progresses(1);
    is_untouched(guest.pid());
    assert_eq!(guest.finish().0, Some(0));
}

#[test]
fn the_end_meanwhile() {
    let mut guest = cases("leave", 1);
    refusal(&while_sampled(&guest), 10, "gone");
    assert_eq!(guest.ended(), (Some(3), None));
}

/// After an interrupted whet, the process is as it was.
#[test]
fn whet_interrupted() {
    let guest = cases("spin", 1);
    for signal in ["INT", "TERM", "HUP"] {
        let mut child = whet_command(&["optimize", &guest.arg(), "--seconds", "60"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("a whet at work", || is_locked(guest.pid()));
        std::thread::sleep(Duration::from_millis(100));
        kill(signal, pid_of(&child));
        child.wait().unwrap();
        guest.progresses(1);
        is_untouched(guest.pid());
    }
}

/// A program that uses the GS base itself is optimized by samples alone, and its data stays as it was.
#[test]
fn a_gs_base_in_use() {
    let guest = cases("gs", 1);
    let answer = whet(&["optimize", &guest.arg(), "--seconds", "0.3", "--count", "0.3", "--format", "json"]);
    let answer = answer.exits(0).json();
    assert!(answer["counting"]["left_out"].as_str().unwrap().contains("GS base"), "{answer}");
    assert_eq!((&answer["counting"]["counters"], &answer["state"]), (&0.into(), &"optimized".into()));
    guest.progresses(1);
    assert_eq!(guest.finish().0, Some(0));
}

/// An interrupted second optimization leaves the first in force.
#[test]
fn whet_interrupted_the_second_time() {
    let guest = cases("spin", 1);
    whet(&["optimize", &guest.arg(), "--shuffle", "1"]).exits(0);
    let mut child = whet_command(&["optimize", &guest.arg(), "--seconds", "0.3", "--count", "60"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let state = |word: &str| whet(&["status", &guest.arg()]).exits(0).stdout.contains(word);
    wait_until("clones that count", || state("counting"));
    kill("INT", pid_of(&child));
    assert_eq!(child.wait().unwrap().code(), Some(11));
    assert!(state("optimized"));
    guest.progresses(1);
}

/// If whet is interrupted while clones count, it undoes these clones.
#[test]
fn whet_interrupted_while_counting() {
    let guest = cases("spin", 1);
    let start = || {
        let words = ["optimize", &guest.arg(), "--seconds", "0.3", "--count", "60", "--format", "json"];
        whet_command(&words).stdout(Stdio::piped()).spawn().unwrap()
    };
    let counts = || whet(&["status", &guest.arg()]).exits(0).stdout.contains("counting");
    for signal in ["INT", "TERM", "HUP"] {
        let mut child = start();
        wait_until("clones that count", || {
            // A guest that got no CPU while it was sampled has nothing hot.
            if child.try_wait().unwrap().is_some_and(|end| end.code() == Some(7)) {
                child = start();
            }
            counts()
        });
        kill(signal, pid_of(&child));
        let mut answer = String::new();
        child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(11), "{answer}");
        assert!(answer.contains("\"interrupted\""), "{answer}");
        guest.progresses(1);
        assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
        assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
        let undone = whet(&["status", &guest.arg()]).exits(0).stdout;
        assert!(!undone.contains("counting"), "{undone}");
    }
}

/// There is a limit to how often a process can be optimized again. The error names it, and an undo is still
/// possible.
#[test]
fn too_many_generations() {
    let guest = cases("spin", 1);
    let again = || {
        let words =
            ["optimize", &guest.arg(), "--format", "json", "--shuffle", "1", "--only", "mix_some", "free"];
        let mut command = whet_command(&words);
        command.env("WHET_LIST_ROOM", "120");
        run(command)
    };
    let mut generations = 0;
    let full = loop {
        let answer = again();
        if answer.code != Some(0) {
            break answer;
        }
        generations += 1;
        assert!(generations < 200);
    };
    refusal(&full, 5, "too_many_caches");
    // Some places of the list are reserved for routines that finish calls.
    assert!(generations >= 38, "{generations}");
    guest.progresses(1);
    assert_eq!(whet(&["verify", &guest.arg(), "--format", "json"]).exits(0).json()["identical"], true);
    whet(&["undo", &guest.arg()]).exits(0);
    guest.progresses(1);
    assert_eq!(tracers(guest.pid()), [] as [i32; 0]);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
}

/// Clones of all generations take at most 128 MiB. In the long form only: it takes a minute to fill them.
#[test]
fn the_cap_of_memory() {
    if !stress() {
        return skip("the cap of memory is reached in the long form only");
    }
    let guest = Guest::working(&build("throwing.cc"), &[], 3);
    let mut mapped = 0;
    let full = loop {
        let answer = whet(&["optimize", &guest.arg(), "--format", "json", "--shuffle", "1"]);
        if answer.code != Some(0) {
            break answer;
        }
        let status = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
        mapped = status["targets"][0]["mapped_bytes"].as_u64().unwrap();
        assert!(mapped <= 128 << 20, "{status}");
    };
    refusal(&full, 5, "memory_cap");
    assert!(mapped > 100 << 20, "{mapped}");
    guest.progresses(3);
    whet(&["undo", &guest.arg()]).exits(0);
    guest.progresses(3);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    assert_eq!(guest.finish().0, Some(0));
}
