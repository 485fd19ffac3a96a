//! A server on another host, which a shell reaches. The other host is a namespace with a host name of its own,
//! and a script takes whet's part.

use crate::support::running::Running;
use crate::support::{count, lab, records, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Becomes a command on the other host.
const THERE: &str = "echo db1 >/proc/sys/kernel/hostname && exec";
/// Logs each command with the host. A command that the file `trouble` names takes two seconds, or ends the
/// shell once.
const WHET: &str = r#"#!/bin/sh
here=$(dirname "$0")
read -r host </proc/sys/kernel/hostname
echo "$host $*" >>"$here/calls"
case "$(cat "$here/trouble" 2>/dev/null)" in
"slow $1") sleep 2 ;;
"ends at $1") rm "$here/trouble"; echo 'the line is cut' >&2; kill -9 $PPID ;;
esac
case $1 in
--version) echo 'whet 0' ;;
status) echo '{ "targets": [ { "state": "none" } ] }' ;;
*) echo '{ "state": "optimized" }' ;;
esac
echo "end of $1" >>"$here/calls"
"#;

/// A server on the other host, and a whet there.
struct Other {
    server: Running,
}

impl Other {
    /// Returns `None`, and prints why, if there can be no other host here.
    fn start() -> Option<Self> {
        let may_name = Command::new("unshare").args(["--uts", "sh", "-c", &format!("{THERE} true")]).output();
        if !may_name.is_ok_and(|o| o.status.success()) {
            println!("skipped: no namespace with a host name of its own here");
            return None;
        }
        if !["/usr/sbin/mariadbd", "/usr/bin/sysbench"].iter().all(|p| Path::new(p).exists()) {
            println!("skipped: no mariadbd or no sysbench here");
            return None;
        }
        let server = Running::start(&["unshare", "--uts", "sh", "-c", &format!("{THERE} \"$@\""), "sh"]);
        let other = Self { server };
        // A name that the shell must quote.
        let whet = other.whet();
        fs::write(&whet, WHET).unwrap();
        fs::set_permissions(&whet, fs::Permissions::from_mode(0o755)).unwrap();
        Some(other)
    }

    fn whet(&self) -> PathBuf {
        self.server.folder().join("a 'whet'")
    }

    fn trouble(&self, what: &str) {
        fs::write(self.server.folder().join("trouble"), what).unwrap();
    }

    /// Returns what the script has logged, and forgets it.
    fn calls(&self) -> Vec<String> {
        let calls = self.server.folder().join("calls");
        let text = fs::read_to_string(&calls).unwrap_or_default();
        let _ = fs::remove_file(calls);
        text.lines().map(str::to_owned).collect()
    }

    /// Returns a short run, with a shell if there is one.
    fn lab(&self, out: &str, shell: Option<&str>) -> Command {
        let mut lab = lab();
        lab.arg("fixed-rate").args(["--threads=1", "--tables=1", "--rows=500", "--rate=200", "--pairs=2"]);
        lab.args(["--control=1", "--window=0.5", "--settle=0.1", "--warm-up=0.5", "--seed=7"]);
        lab.arg(format!("--dsn=mysql://root@localhost?socket={}", self.server.socket().display()));
        lab.arg(format!("--whet={}", self.whet().display())).arg("--out").arg(self.server.folder().join(out));
        lab.args(shell.map(|shell| format!("--shell={shell}")));
        lab
    }
}

fn there() -> String {
    format!("unshare --uts sh -c '{THERE} sh'")
}

#[test]
fn whet_and_cpu_times_go_through_the_shell() {
    let Some(other) = Other::start() else { return };
    // A login may print a greeting. All that is sent goes to a file as well.
    let sent = other.server.folder().join("sent");
    let shell = format!("echo welcome; tee {} | {}", sent.display(), there());
    let (code, _, err) = run(&mut other.lab("run", Some(&shell)));
    assert_eq!(code, Some(0), "{err}");
    let records = records(&other.server.folder().join("run"));
    // Both hosts are this machine.
    let head = fs::read_to_string(other.server.folder().join("run/run.json")).unwrap();
    let machine = &serde_json::from_str::<Value>(&head).unwrap()["machine"];
    let of_server = &machine["server"];
    assert!(!machine["kernel"].as_str().unwrap().is_empty(), "{machine}");
    for figure in ["cpu", "memory_mib", "kernel", "identity", "smt", "distribution", "governor"] {
        assert_eq!(machine[figure], of_server[figure], "{figure}: {machine}");
    }
    // The lab may be confined to some of the CPUs.
    assert!(of_server["cpus"].as_u64() >= machine["cpus"].as_u64(), "{machine}");
    assert!(!of_server["topology"]["cores"].as_array().unwrap().is_empty(), "{machine}");
    let windows: Vec<&Value> = records.iter().filter(|r| r["kind"] == "window").collect();
    assert_eq!((windows.len(), count(&records, "optimize"), count(&records, "done")), (6, 1, 1));
    for window in windows {
        let figure = |name: &str| window[name].as_f64().unwrap_or(-1.0);
        assert!(figure("cpu") > 0.0 && figure("capacity") > 0.0 && figure("iowait") >= 0.0, "{window}");
    }
    assert!(records[0]["exe"].as_str().unwrap().ends_with("mariadbd"), "{}", records[0]);
    let calls = other.calls();
    let pid = other.server.pid();
    let sent = fs::read_to_string(sent).unwrap();
    for file in ["/proc/stat".to_owned(), format!("/proc/{pid}/task/*/schedstat")] {
        // At both ends of each window.
        assert!(sent.matches(&file).count() >= 2 * 6, "{file}: {sent}");
    }
    let of = |command: &str| {
        let wanted = format!("db1 {command} {pid} ");
        calls.iter().filter(|c| c.starts_with(&wanted)).count()
    };
    assert!(of("status") == 1 && of("optimize") == 1 && of("undo") >= 1 && of("redo") >= 1, "{calls:?}");
    assert!(calls.iter().all(|c| c.starts_with("db1 ") || c.starts_with("end of ")), "{calls:?}");
    // A server that had no clones is left without.
    let last = calls.iter().rfind(|c| c.starts_with("db1 ")).unwrap();
    assert!(last.starts_with(&format!("db1 undo {pid}")), "{calls:?}");
}

#[test]
fn a_shell_that_fails_is_named() {
    let Some(other) = Other::start() else { return };
    let refused = |out: &str, shell: Option<&str>, code: i32, wanted: &[&str]| {
        let (found, _, err) = run(&mut other.lab(out, shell));
        assert_eq!(found, Some(code), "{err}");
        assert!(wanted.iter().all(|w| err.contains(w)), "{err}");
    };
    std::thread::scope(|scope| {
        let of = |out, shell, code, wanted| scope.spawn(move || refused(out, shell, code, wanted));
        of(
            "none",
            Some("echo no route to db1 >&2; exit 255"),
            13,
            &[
                "the shell to the server's host (echo no route",
                "no route to db1",
                "exit status: 255",
                "run the command of --shell by hand",
            ],
        );
        of("here", Some("sh"), 2, &["--shell does not reach the server's process: the shell runs on", "db1"]);
    });
    // Without a shell, whet cannot reach the server. The whet given is on this host here.
    refused("without", None, 2, &["on another host: name a shell"]);
    other.calls();

    // A line that breaks in the middle of the run: the lab calls again to undo what it did.
    other.trouble("ends at undo");
    refused("cut", Some(&there()), 13, &["the shell to the server's host", "ended", "the line is cut"]);
    let calls = other.calls();
    assert!(
        calls[calls.len() - 2].starts_with("db1 undo ") && calls.last().unwrap() == "end of undo",
        "{calls:?}"
    );
}

/// The command on the other host goes on, so what it does is undone after its end.
#[test]
fn ctrl_c_in_the_middle_of_a_command_on_the_other_host() {
    let Some(other) = Other::start() else { return };
    other.trouble("slow optimize");
    let shell = there();
    let mut lab = other.lab("run", Some(&shell));
    let mut child = lab.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let log = other.server.folder().join("calls");
    let until = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&log).unwrap_or_default().contains("optimize") {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "no optimize");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(11));
    let calls: Vec<String> = other.calls();
    let calls: Vec<&str> = calls.iter().rev().take(3).map(String::as_str).collect();
    assert!(calls[0] == "end of undo" && calls[1].starts_with("db1 undo "), "{calls:?}");
    assert_eq!(calls[2], "end of optimize");
}
