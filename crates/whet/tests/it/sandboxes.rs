//! Servers in containers and services with all their restrictions, and whet with less than all rights. Each
//! server is optimized, verified and undone and runs on unharmed, or is refused with the reason.

use crate::huge_pages::{self, huge_pages};
use crate::support::{
    Answer, Guest, OpenFolder, build, changed_text, have, run, skip, tracers, wait_until, whet_command,
};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Quick, and without a profile.
const QUICK: [&str; 5] = ["--shuffle", "1", "--only", "mix_some", "sum_up"];
/// As [`QUICK`], with the clones in files.
const IN_FILES: [&str; 7] = ["--code-cache", "file", "--shuffle", "1", "--only", "mix_some", "sum_up"];
/// With counting, which needs memory for counters.
const COUNTED: [&str; 4] = ["--seconds", "0.3", "--count", "0.3"];

/// Makes the command that starts whet here; its arguments are added to it.
type Whet<'a> = &'a dyn Fn() -> Command;

fn plainly() -> Command {
    whet_command::<&str>(&[])
}

#[track_caller]
fn ask(whet: Whet<'_>, command: &str, pid: i32, more: &[&str]) -> Answer {
    let mut whet = whet();
    whet.arg(command).arg(pid.to_string()).args(more).args(["--format", "json"]);
    run(whet)
}

/// Optimizes a process, verifies and undoes it. Returns the answer of the optimization.
#[track_caller]
fn goes_through(whet: Whet<'_>, guest: &Guest, pid: i32, how: &[&str]) -> Value {
    let mut answer = ask(whet, "optimize", pid, how);
    // On a busy machine the process may not run at all while it is sampled.
    for _ in 0..20 {
        if answer.code != Some(7) {
            break;
        }
        guest.progresses(1);
        answer = ask(whet, "optimize", pid, how);
    }
    let answer = answer.exits(0).json();
    assert_eq!(answer["state"], "optimized", "{answer}");
    guest.progresses(1);
    let verified = ask(whet, "verify", pid, &[]).exits(0).json();
    assert!(verified["identical"] == true && verified["live_redirects"].as_u64().unwrap() > 0, "{verified}");
    ask(whet, "undo", pid, &[]).exits(0);
    guest.progresses(1);
    let verified = ask(whet, "verify", pid, &[]).exits(0).json();
    assert_eq!((&verified["identical"], &verified["live_redirects"]), (&true.into(), &0.into()));
    is_as_it_was(pid);
    answer
}

#[track_caller]
fn is_as_it_was(pid: i32) {
    assert_eq!(tracers(pid), [] as [i32; 0]);
    assert_eq!(changed_text(pid), [] as [String; 0]);
}

/// Checks that a process is refused by this code, and left alone. Returns the message.
#[track_caller]
fn is_refused(whet: Whet<'_>, guest: &Guest, pid: i32, exit: i32, code: &str) -> String {
    let answer = ask(whet, "optimize", pid, &QUICK).exits(exit).json();
    assert_eq!(answer["error"]["code"], code, "{answer}");
    guest.progresses(1);
    is_as_it_was(pid);
    answer["error"]["message"].as_str().unwrap().to_owned()
}

/// Ends a guest, whose result must be that of a run without whet.
#[track_caller]
fn ends_well(guest: Guest) {
    let plain = Guest::working(&build("cases.c"), &["spin"], 1).finish();
    assert_eq!(guest.finish(), plain);
}

fn boxed(how: &[&str], program: &Path) -> Command {
    let mut command = Command::new(build("box.c"));
    command.args(how).arg("--").arg(program);
    command
}

/// Starts a program at work in a box. Returns `None` if the kernel has no such box.
fn in_box(how: &[&str]) -> Option<Guest> {
    let mut guest = Guest::start_by(|page| {
        let mut command = boxed(how, &build("cases.c"));
        command.arg(page).arg("spin");
        command
    });
    wait_until("a program in its box", || guest.has_ended() || guest.has_begun());
    if guest.has_ended() {
        let (code, _) = guest.ended();
        assert_eq!(code, Some(77), "{how:?}");
        skip(&format!("not in this kernel: {how:?}"));
        return None;
    }
    guest.progresses(1);
    Some(guest)
}

fn status(pid: i32, word: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(word)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn is_root() -> bool {
    status(std::process::id().cast_signed(), "Uid").starts_with("0\t0")
}

/// A container with its own process ids, mounts and /tmp. Seen from outside, by its outer id.
#[test]
fn a_container() {
    if !is_root() {
        return skip("takes root");
    }
    let Some(guest) = in_box(&["ns"]) else { return };
    let list = format!("/proc/{0}/task/{0}/children", guest.pid());
    let children = fs::read_to_string(list).unwrap();
    let inner: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(status(inner, "NSpid"), format!("{inner}\t1"));
    let answer = goes_through(&plainly, &guest, inner, &COUNTED);
    // Profilers inside see it under another id.
    assert_eq!(answer["perf_map"]["left_out"], Value::Null, "{answer}");
    let root = PathBuf::from(format!("/proc/{inner}/root/tmp"));
    assert!(root.join("perf-1.map").is_file(), "{answer}");
    // The container has no path that leads to the file of the clones.
    let answer = goes_through(&plainly, &guest, inner, &IN_FILES);
    assert_eq!(answer["code_files"]["mapped"], true, "{answer}");
    ends_well(guest);
}

#[test]
fn memory_deny_write_execute() {
    for how in [&["mdwe"][..], &["wx"], &["mdwe", "wx"]] {
        let Some(guest) = in_box(how) else { continue };
        if how.contains(&"wx") && !is_root() {
            is_refused(&plainly, &guest, guest.pid(), 5, "seccomp_filter");
        } else {
            goes_through(&plainly, &guest, guest.pid(), &COUNTED);
            goes_through(&plainly, &guest, guest.pid(), &IN_FILES);
        }
        assert_eq!(status(guest.pid(), "NoNewPrivs"), "1");
        ends_well(guest);
    }
}

/// A filter as SystemCallFilter= makes it, in a container; and once more with no other call allowed at all.
#[test]
fn a_system_call_filter() {
    let Some(guest) = in_box(&["wx", "service"]) else { return };
    if is_root() {
        goes_through(&plainly, &guest, guest.pid(), &QUICK);
        let answer = goes_through(&plainly, &guest, guest.pid(), &IN_FILES);
        assert_eq!(answer["code_files"]["mapped"], true, "{answer}");
    } else {
        is_refused(&plainly, &guest, guest.pid(), 5, "seccomp_filter");
    }
    assert_eq!(
        (status(guest.pid(), "Seccomp"), status(guest.pid(), "Seccomp_filters")),
        ("2".into(), "2".into())
    );
    ends_well(guest);
}

/// A whet under a filter cannot suspend another process's filter: the error says so, and doctor too. All
/// other processes can be optimized.
#[test]
fn whet_under_a_filter() {
    let whet = || boxed(&["wx"], Path::new(env!("CARGO_BIN_EXE_whet")));
    if let Some(guest) = in_box(&["wx"]) {
        let message = is_refused(&whet, &guest, guest.pid(), 5, "seccomp_filter");
        assert!(!is_root() || message.contains("this program is under seccomp itself"), "{message}");
        ends_well(guest);
    }
    let guest = Guest::working(&build("cases.c"), &["spin"], 1);
    goes_through(&whet, &guest, guest.pid(), &QUICK);
    ends_well(guest);
    let mut doctor = whet();
    doctor.args(["doctor", "--format", "json"]);
    let checks = run(doctor).exits(0).json();
    let check = checks["checks"].as_array().unwrap().iter().find(|c| c["name"] == "seccomp").unwrap();
    assert_eq!(check["ok"], false, "{check}");
}

/// A memory control group of this test's own.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    kills: &'static str,
}

impl Group {
    /// Makes a group of one test. Returns `None` if groups cannot be made here.
    fn new(test: &str) -> Option<Self> {
        let name = format!("whet-{test}-{}", std::process::id());
        let one = Path::new("/sys/fs/cgroup/memory");
        let two = Path::new("/sys/fs/cgroup");
        let control = fs::read_to_string(two.join("cgroup.subtree_control")).unwrap_or_default();
        let (folder, limit, kills) = if one.join("memory.limit_in_bytes").exists() {
            (one.join(name), "memory.limit_in_bytes", "memory.oom_control")
        } else if control.contains("memory") {
            (two.join(name), "memory.max", "memory.events")
        } else {
            return None;
        };
        fs::create_dir(&folder).ok()?;
        Some(Self { folder, limit, kills })
    }

    fn limit(&self, bytes: u64) {
        fs::write(self.folder.join(self.limit), bytes.to_string()).unwrap();
    }

    /// Returns how many processes the kernel has ended in it.
    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.kills)).unwrap();
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment to see that the group is empty.
        wait_until("an empty group", || fs::remove_dir(&self.folder).is_ok());
    }
}

/// Clones are memory of the process. If there is no room for them, the process is refused; the kernel must
/// not end it.
#[test]
fn a_memory_limit() {
    let Some(group) = Group::new("clones") else { return skip("no memory control groups to make here") };
    let guest = Guest::start_by(|page| {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ >"$0/cgroup.procs"; exec "$@""#]).arg(&group.folder);
        command.arg(build("cases.c")).arg(page).arg("spin");
        command
    });
    guest.progresses(1);
    group.limit(6 << 20);
    let message = is_refused(&plainly, &guest, guest.pid(), 5, "memory_limit");
    assert!(message.contains(group.folder.to_str().unwrap()), "{message}");
    // The group has no room for clones of the whole C library, but has room for the two functions above.
    group.limit(10 << 20);
    let all = ask(&plainly, "optimize", guest.pid(), &["--shuffle", "1"]).exits(5).json();
    assert_eq!(all["error"]["code"], "memory_limit", "{all}");
    goes_through(&plainly, &guest, guest.pid(), &QUICK);
    goes_through(&plainly, &guest, guest.pid(), &IN_FILES);
    group.limit(64 << 20);
    goes_through(&plainly, &guest, guest.pid(), &["--shuffle", "1"]);
    assert_eq!(group.kills(), 0);
    ends_well(guest);
}

/// Shared memory is charged to the group of the process that touched it first, and when it is moved, to that of the
/// process through which it is moved. No more than half of the room of the group is used up.
#[test]
fn a_memory_limit_for_shared_memory_of_another_group() {
    const ROOM: u64 = 48 << 20;
    let Some(group) = Group::new("shared") else { return skip("no memory control groups to make here") };
    let Some(guest) = huge_pages::start(256, "aligned") else { return };
    for pid in [guest.pid().to_string(), guest.counter(1).to_string()] {
        fs::write(group.folder.join("cgroup.procs"), pid).unwrap();
    }
    group.limit(ROOM);
    let answer = huge_pages(&guest, &[]);
    let json = answer.json();
    match answer.code {
        Some(0) => {
            let mapping = &json["mappings"][0];
            assert_eq!(mapping["left"]["code"], "no_room", "{json}");
            let moved = mapping["huge"].as_u64().unwrap();
            assert!((ROOM / 4..=ROOM / 2).contains(&moved), "{json}");
        }
        // The host is the reason.
        _ => assert!(
            ["not_permitted", "old_kernel"].iter().any(|code| json["error"]["code"] == *code),
            "{json}"
        ),
    }
    guest.progresses(1);
    assert_eq!(group.kills(), 0);
    assert_eq!(guest.finish(), (Some(0), None, "done\n".to_owned()));
}

#[test]
fn a_limit_of_address_space() {
    let guest = Guest::start_by(|page| {
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -v 4000; exec "$0" "$@""#]).arg(build("cases.c")).arg(page).arg("spin");
        command
    });
    guest.progresses(1);
    let answer = ask(&plainly, "optimize", guest.pid(), &["--shuffle", "1"]).exits(5).json();
    assert_eq!(answer["error"]["code"], "map_denied", "{answer}");
    guest.progresses(1);
    is_as_it_was(guest.pid());
    ends_well(guest);
}

/// A folder that every user may enter, with a whet and a program.
struct Open(OpenFolder);

impl Open {
    fn new() -> Self {
        let folder = OpenFolder::new();
        for name in ["cases", "box"] {
            folder.add(&build(&format!("{name}.c")), name);
        }
        Self(folder)
    }

    /// Starts another user's program at work.
    fn guest(&self, how: &[&str]) -> Guest {
        let guest = Guest::start_by(|page| {
            // The page lies in a folder that other users may not enter; they reach it through an open file.
            let lead = r#"chmod 666 "$0" && exec 3<>"$0" && exec "$@""#;
            let mut command = Command::new("sh");
            command.args(["-c", lead]).arg(page).args(["setpriv", "--reuid", "1000", "--regid", "1000"]);
            command.arg("--clear-groups").arg(self.0.file("box")).args(how).arg("--");
            command.arg(self.0.file("cases")).args(["/proc/self/fd/3", "spin"]);
            command
        });
        guest.progresses(1);
        assert!(status(guest.pid(), "Uid").starts_with("1000\t"));
        guest
    }

    /// Returns the command for whet with these capabilities, as a user without any other right.
    fn whet(&self, capabilities: &[&str]) -> Command {
        let sets = capabilities.iter().fold("-all".to_owned(), |sets, c| sets + ",+" + c);
        let mut whet = Command::new("setpriv");
        whet.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
        for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
            whet.arg(format!("{set}={sets}"));
        }
        whet.arg(self.0.file("whet"));
        whet
    }
}

/// The capabilities that RUNBOOK.md names, and what is refused without each.
#[test]
fn capabilities_instead_of_root() {
    if !is_root() || !have("setpriv") {
        return skip("takes root and setpriv");
    }
    let open = Open::new();
    let most = ["sys_ptrace", "dac_override", "perfmon", "sys_nice"];
    let plain = open.guest(&[]);
    for missing in ["sys_ptrace", "dac_override"] {
        let less: Vec<&str> = most.into_iter().filter(|c| *c != missing).collect();
        is_refused(&|| open.whet(&less), &plain, plain.pid(), 4, "not_permitted");
    }
    goes_through(&|| open.whet(&most), &plain, plain.pid(), &COUNTED);
    // Files take one more capability: without it, clones are in anonymous memory.
    let answer = goes_through(&|| open.whet(&most), &plain, plain.pid(), &IN_FILES);
    assert_eq!(answer["code_files"]["mapped"], false, "{answer}");
    assert!(answer["code_files"]["left_out"].as_str().unwrap().contains("not permitted"), "{answer}");
    ends_well(plain);
    // A service under a filter takes one more capability.
    let filtered = open.guest(&["wx"]);
    let message = is_refused(&|| open.whet(&most), &filtered, filtered.pid(), 5, "seccomp_filter");
    assert!(message.contains("CAP_SYS_ADMIN"), "{message}");
    let all = [&most[..], &["sys_admin"]].concat();
    goes_through(&|| open.whet(&all), &filtered, filtered.pid(), &QUICK);
    ends_well(filtered);
}

/// whet with what its unit file leaves it: its capabilities, a file system that is read-only, and no filter
/// over it, so that it can optimize services under filters.
#[test]
fn as_its_unit_has_it() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/whet.service");
    let unit = fs::read_to_string(unit).unwrap();
    let settings = || unit.lines().filter_map(|l| l.split_once('='));
    // Everything that systemd 252 does by a filter.
    let by_filters = [
        "SystemCall",
        "Restrict",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "PrivateDevices",
        "ProtectKernel",
        "ProtectClock",
        "ProtectHostname",
        "DynamicUser",
    ];
    for (name, _) in settings() {
        assert!(!by_filters.iter().any(|f| name.starts_with(f)), "{name}= works by a system call filter");
    }
    if !is_root() || !have("setpriv") {
        return skip("takes root and setpriv");
    }
    let bounds = settings().find(|(name, _)| *name == "CapabilityBoundingSet").unwrap().1;
    let bounds = bounds.split_whitespace().map(|c| c.strip_prefix("CAP_").unwrap().to_lowercase());
    let bounds = bounds.fold("-all".to_owned(), |all, one| all + ",+" + &one);
    let whet = || {
        let shut = "mount --make-rprivate / && mount -o remount,bind,ro / && exec \"$@\"";
        let mut whet = Command::new("unshare");
        whet.args(["--mount", "--net", "sh", "-c", shut, "-", "setpriv", "--no-new-privs"]);
        whet.arg(format!("--bounding-set={bounds}")).arg(env!("CARGO_BIN_EXE_whet"));
        whet
    };
    let open = Open::new();
    let guest = open.guest(&["wx", "service"]);
    let answer = goes_through(&whet, &guest, guest.pid(), &COUNTED);
    assert_eq!(answer["perf_map"]["left_out"], Value::Null, "{answer}");
    let answer = goes_through(&whet, &guest, guest.pid(), &IN_FILES);
    assert_eq!(answer["code_files"]["mapped"], true, "{answer}");
    ends_well(guest);
}
