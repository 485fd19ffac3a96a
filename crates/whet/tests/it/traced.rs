//! A tracer that comes while a whet is at work on the process.

use crate::support::{
    Guest, build, changed_text, have, pid_of, run, scratch, skip, tracers, wait_until, whet, whet_command,
};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A gdb that traces a process until it is dropped. The kernel shows it under the name by which it was started.
struct Gdb(Child);

impl Gdb {
    fn attach(program: &Path, guest: &Guest) -> Self {
        let child = Command::new(program)
            .args(["-nx", "-q", "-p", &guest.arg()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("gdb traces", || !tracers(guest.pid()).is_empty());
        Self(child)
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        // When its commands end, gdb releases the process.
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

fn signal(name: &str, pid: i32) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{name}")).arg(pid.to_string());
    run(kill).exits(0);
}

fn is_profiled(guest: &Guest) -> bool {
    let answer = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
    answer["targets"][0]["state"] == "profiling"
}

fn user_ticks(guest: &Guest) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", guest.pid())).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split_whitespace().nth(11).unwrap().parse().unwrap()
}

/// Begins to optimize a process. Before the installation `program`, a gdb, traces the process. Returns the exit
/// code and the code of the error.
fn optimize_while_traced_by(program: &Path) -> (Option<i32>, Value) {
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    let mut optimize = whet_command(&["optimize", &guest.arg(), "--seconds", "8", "--format", "json"]);
    let optimize = optimize.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("profiling", || is_profiled(&guest));
    // A process that gdb has stopped gives no samples.
    let begun = user_ticks(&guest);
    wait_until("samples are taken", || user_ticks(&guest) >= begun + 50);
    // However long gdb takes to start, it traces the process before the installation.
    signal("STOP", pid_of(&optimize));
    assert!(is_profiled(&guest), "the installation came first");
    let gdb = Gdb::attach(program, &guest);
    signal("CONT", pid_of(&optimize));
    let answer = optimize.wait_with_output().unwrap();
    drop(gdb);
    guest.progresses(1);
    assert_eq!(changed_text(guest.pid()), [] as [String; 0]);
    let said: Value = serde_json::from_slice(&answer.stdout).unwrap();
    (answer.status.code(), said["error"]["code"].clone())
}

fn gdb() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("gdb")).find(|gdb| gdb.exists())
}

/// A debugger may stay for hours. Another whet is gone in a moment: a daemon tries again soon.
#[test]
fn a_debugger_is_lasting_and_another_whet_is_not() {
    let Some(gdb) = gdb().filter(|_| have("gdb")) else { return skip("no gdb") };
    assert_eq!(optimize_while_traced_by(&gdb), (Some(5), "already_traced".into()));
    // whet recognizes another whet by the name of its tracing thread. The other whet holds no lock: an undo does
    // without if it must.
    let folder = scratch("traced");
    std::fs::create_dir(&folder).unwrap();
    let other = folder.join("whet-tracer");
    symlink(gdb, &other).unwrap();
    assert_eq!(optimize_while_traced_by(&other), (Some(6), "traced_by_whet".into()));
}
