//! Probes and breakpoints of other tools in a process that whet has rebuilt. The process lives, the probes
//! count, and each can be set and removed in any order with `optimize`, `undo` and `redo`.

use crate::support::{Guest, build, have, run, skip, wait_until, whet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const TRACING: &str = "/sys/kernel/tracing";
/// The functions of the guest that are probed.
const OWN: [&str; 3] = ["mixed", "pointed", "round_of"];
/// Functions with one place for a redirect, each of another form.
const FORMS: [&str; 6] =
    ["behind_segment", "behind_repeat", "behind_size", "behind_opcode", "jumps_on", "jumps_perhaps"];
/// Functions of the C library that the guest uses.
const LIBRARY: [&str; 2] = ["snprintf", "strtoul"];

/// A group of uprobes, removed when dropped.
struct Probes {
    group: String,
    names: Vec<String>,
}

impl Probes {
    fn new(group: &str) -> Self {
        Self { group: format!("whet_{group}_{}", std::process::id()), names: Vec::new() }
    }

    /// Adds a probe at an offset of a file. Returns false if the kernel does not probe that instruction.
    fn add(&mut self, file: &Path, offset: u64) -> bool {
        // Hits are listed by name, without the group.
        let name = format!("{}_{}", self.group, self.names.len());
        let line = format!("p:{}/{name} {}:{offset:#x}\n", self.group, file.display());
        let added = append("uprobe_events", &line);
        if added {
            self.names.push(name);
        }
        added
    }

    fn enable(&self, on: bool) {
        for name in &self.names {
            let file = format!("{TRACING}/events/{}/{name}/enable", self.group);
            // If an instruction cannot be probed, the kernel says so here.
            let done = fs::write(&file, if on { "1" } else { "0" });
            assert!(on || done.is_ok(), "{file}: {done:?}");
        }
    }

    /// Returns how often each probe has fired.
    fn hits(&self) -> Vec<u64> {
        let profile = fs::read_to_string(format!("{TRACING}/uprobe_profile")).unwrap();
        let hits = |name: &String| {
            let fields = profile.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
            let line = fields.into_iter().find(|f| f.get(1) == Some(&name.as_str())).unwrap();
            line[2].parse().unwrap()
        };
        self.names.iter().map(hits).collect()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = fs::write(format!("{TRACING}/events/{}/{name}/enable", self.group), "0");
            append("uprobe_events", &format!("-:{}/{name}\n", self.group));
        }
    }
}

fn append(file: &str, line: &str) -> bool {
    let file = fs::File::options().append(true).open(Path::new(TRACING).join(file));
    file.and_then(|mut f| f.write_all(line.as_bytes())).is_ok()
}

/// Returns whether uprobes can be placed here.
fn has_uprobes() -> bool {
    let events = Path::new(TRACING).join("uprobe_events");
    if !events.exists() {
        let _ = Command::new("mount").args(["-t", "tracefs", "nodev", TRACING]).status();
    }
    let has = fs::File::options().append(true).open(events).is_ok();
    if !has {
        skip("no uprobes: they need root and the kernel's tracefs");
    }
    has
}

/// Returns the file offsets of a function's instructions, by objdump.
fn instructions(program: &Path, function: &str) -> Vec<u64> {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")]).arg(program);
    let text = run(objdump).exits(0).stdout;
    let at = |line: &str| {
        let (at, rest) = line.trim_start().split_once(":\t")?;
        u64::from_str_radix(at, 16).ok().filter(|_| !rest.is_empty())
    };
    // The program's text has the same offsets in the file and in memory.
    let all: Vec<u64> = text.lines().filter_map(at).collect();
    assert!(!all.is_empty(), "{function}: {text}");
    all
}

/// Returns the C library that a process has mapped, and the offsets of functions in it.
fn library(guest: &Guest, names: &[&str]) -> (PathBuf, Vec<u64>) {
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
    let path = maps.split_whitespace().find(|w| w.contains("/libc.so")).unwrap();
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", path]);
    let symbols = run(nm).exits(0).stdout;
    let of = |name: &&str| {
        let line =
            symbols.lines().find(|l| l.split(' ').nth(2).is_some_and(|n| n.split('@').next() == Some(name)));
        u64::from_str_radix(line.unwrap().split(' ').next().unwrap(), 16).unwrap()
    };
    (PathBuf::from(path), names.iter().map(of).collect())
}

/// A guest with its own copies of program and C library, because a uprobe is in all processes that have
/// mapped the file.
struct Probed {
    folder: PathBuf,
    program: PathBuf,
    guest: Guest,
}

/// Starts such a guest.
fn started() -> Probed {
    let folder = crate::support::scratch("probed");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("program");
    crate::support::copy(&build("probed.c"), &program);
    crate::support::copy(Path::new("/lib/x86_64-linux-gnu/libc.so.6"), &folder.join("libc.so.6"));
    let guest = Guest::start_by(|page| {
        let mut command = Command::new(&program);
        command.arg(page).env("LD_LIBRARY_PATH", &folder);
        command
    });
    guest.progresses(1);
    Probed { folder, program, guest }
}

/// Starts a guest and clones all of its functions, in random order.
fn rebuilt() -> Probed {
    let probed = started();
    let guest = &probed.guest;
    whet(&["optimize", &guest.arg(), "--shuffle", "3"]).exits(0);
    guest.progresses(1);
    probed
}

fn ends_well(probed: Probed) {
    let Probed { folder, guest, .. } = probed;
    whet(&["undo", &guest.arg()]).exits(0);
    guest.progresses(1);
    let verified = whet(&["verify", &guest.arg(), "--format", "json"]).exits(0).json();
    assert_eq!(verified["identical"], true, "{verified}");
    let (code, signal, said) = guest.finish();
    assert_eq!((code, signal, said.as_str()), (Some(0), None, ""));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn probes_at_the_entries_of_rebuilt_functions_count_and_go() {
    if !has_uprobes() {
        return;
    }
    let probed = rebuilt();
    let (program, guest) = (probed.program.clone(), &probed.guest);
    let mut probes = Probes::new("entries");
    for function in OWN {
        assert!(probes.add(&program, instructions(&program, function)[0]));
    }
    let (libc, entries) = library(guest, &LIBRARY);
    entries.iter().for_each(|&at| assert!(probes.add(&libc, at)));
    probes.enable(true);
    guest.progresses(1);
    // `mixed` and `pointed` are called through pointers, which lead to the originals.
    let hits = probes.hits();
    assert!(hits[0] > 0 && hits[1] > 0, "{hits:?}");
    probes.enable(false);
    guest.progresses(1);
    // Again, with redirects that are undone and redone below the probes.
    probes.enable(true);
    for command in ["undo", "redo", "undo"] {
        whet(&[command, &guest.arg()]).exits(0);
        guest.progresses(1);
    }
    let undone = probes.hits();
    assert!(undone.iter().zip(&hits).all(|(now, then)| now > then), "{hits:?} {undone:?}");
    whet(&["redo", &guest.arg()]).exits(0);
    drop(probes);
    guest.progresses(1);
    ends_well(probed);
}

/// Returns the offset of the last call that a function makes: behind its redirect.
fn last_call(program: &Path, function: &str) -> u64 {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "--no-show-raw-insn", &format!("--disassemble={function}")]).arg(program);
    let text = run(objdump).exits(0).stdout;
    let call = text.lines().rfind(|l| l.contains("\tcall")).unwrap();
    u64::from_str_radix(call.trim_start().split(':').next().unwrap(), 16).unwrap()
}

#[test]
fn status_names_a_probed_function() {
    if !has_uprobes() {
        return;
    }
    let probed = rebuilt();
    let (program, guest) = (probed.program.clone(), &probed.guest);
    let changed = || {
        let status = whet(&["status", &guest.arg(), "--format", "json"]).exits(0).json();
        status["targets"][0]["changed_originals"].clone()
    };
    assert!(changed().is_null(), "{}", changed());
    let mut probes = Probes::new("named");
    assert!(probes.add(&program, last_call(&program, "pointed")));
    probes.enable(true);
    assert_eq!(changed(), serde_json::json!(["pointed"]));
    drop(probes);
    assert!(changed().is_null(), "{}", changed());
    ends_well(probed);
}

#[test]
fn the_daemon_gives_way_to_a_probe() {
    if !has_uprobes() {
        return;
    }
    let probed = started();
    let (program, guest) = (probed.program.clone(), &probed.guest);
    let more = "[harm]\njudge = false\n[reoptimize]\nevery = \"1s\"\n";
    let mut daemon = crate::daemon::Daemon::for_program(&program, more);
    daemon.start();
    daemon.comes_to(guest.pid(), "optimized");
    guest.progresses(1);
    let mut probes = Probes::new("given");
    assert!(probes.add(&program, last_call(&program, "mixed")));
    probes.enable(true);
    // Before the rebuild, calls by clones reached only the clone.
    wait_until(&format!("a probe that fires; the log: {}", daemon.log()), || {
        let before = probes.hits()[0];
        guest.progresses(1);
        // Each round makes 150 calls, a third of them by a pointer.
        probes.hits()[0] >= before + 150
    });
    daemon.comes_to(guest.pid(), "optimized");
    drop(probes);
    guest.progresses(1);
    drop(daemon);
    ends_well(probed);
}

/// Each form of redirect is in force, and changes no first byte of an instruction.
#[test]
fn redirects_of_each_form_keep_first_bytes() {
    let probed = rebuilt();
    let (program, guest) = (&probed.program, &probed.guest);
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
    let first = maps.lines().find(|l| l.ends_with(program.to_str().unwrap())).unwrap();
    let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let file = fs::read(program).unwrap();
    let memory = fs::File::open(format!("/proc/{}/mem", guest.pid())).unwrap();
    for function in FORMS {
        let starts = instructions(program, function);
        let (from, to) = (starts[0], starts[starts.len() - 1] + 1);
        let mut live = vec![0; usize::try_from(to - from).unwrap()];
        memory.read_exact_at(&mut live, base + from).unwrap();
        let wanted = &file[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        assert_ne!(live, wanted, "{function} has no redirect");
        let first = |bytes: &[u8]| -> Vec<u8> {
            starts.iter().map(|at| bytes[usize::try_from(at - from).unwrap()]).collect()
        };
        assert_eq!(first(&live), first(wanted), "{function}");
    }
    ends_well(probed);
}

/// Each instruction of rebuilt functions is probed, including the one with the redirect.
#[test]
fn a_probe_at_any_instruction_comes_and_goes() {
    if !has_uprobes() {
        return;
    }
    let probed = rebuilt();
    let (program, guest) = (probed.program.clone(), &probed.guest);
    let mut probes = Probes::new("all");
    for function in OWN.iter().chain(&FORMS) {
        let added =
            instructions(&program, function).into_iter().filter(|&at| probes.add(&program, at)).count();
        assert!(added > 4, "{function}: {added}");
    }
    for _ in 0..3 {
        probes.enable(true);
        guest.progresses(1);
        probes.enable(false);
        guest.progresses(1);
    }
    // Probes are in place while redirects are undone and redone.
    probes.enable(true);
    whet(&["undo", &guest.arg()]).exits(0);
    guest.progresses(1);
    whet(&["redo", &guest.arg()]).exits(0);
    probes.enable(false);
    guest.progresses(1);
    drop(probes);
    ends_well(probed);
}

#[test]
fn perf_probes_a_rebuilt_function() {
    if !has_uprobes() || !have("perf") {
        return skip("no perf, or no uprobes");
    }
    let probed = rebuilt();
    let (program, guest) = (probed.program.clone(), &probed.guest);
    let event = format!("whet_perf_{}", std::process::id());
    let mut add = Command::new("perf");
    add.arg("probe").arg("-x").arg(&program).arg(format!("{event}:mixed=mixed"));
    let added = run(add);
    if added.code != Some(0) {
        return skip(&format!("perf probe does not work here: {}", added.stderr));
    }
    let data = crate::support::scratch("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", &format!("{event}:mixed"), "-p", &guest.arg(), "-o"]).arg(&data);
    let recorded = run({
        record.args(["--", "sleep", "0.5"]);
        record
    });
    let mut script = Command::new("perf");
    script.args(["script", "-F", "event", "-i"]).arg(&data);
    let events = run(script);
    let mut delete = Command::new("perf");
    delete.args(["probe", "-q", "-d", &format!("{event}:mixed")]);
    run(delete);
    let _ = fs::remove_file(&data);
    recorded.exits(0);
    assert!(events.exits(0).stdout.lines().count() > 10);
    guest.progresses(1);
    ends_well(probed);
}

#[test]
fn a_breakpoint_stops_after_what_whet_says_to_do_first() {
    if !have("gdb") {
        return skip("no gdb");
    }
    let probed = rebuilt();
    let guest = &probed.guest;
    let report = whet(&["gdb", &guest.arg(), "--format", "json"]).exits(0).json();
    let first = report["before_breakpoints"].as_str().unwrap();
    let arguments: Vec<&str> = first.strip_prefix("whet ").unwrap().split(' ').collect();
    whet(&arguments).exits(0);
    let command = report["command"].as_str().unwrap().strip_prefix("gdb ").unwrap();
    let script =
        format!("exec gdb --batch -nx {command} -ex 'break mixed' -ex continue -ex 'bt 1' -ex detach");
    let mut sh = Command::new("sh");
    sh.args(["-c", &script]).env_remove("DEBUGINFOD_URLS");
    let answer = run(sh).exits(0);
    assert!(answer.stdout.contains("Breakpoint 1, ") && answer.stdout.contains("mixed ("), "{answer:?}");
    whet(&["redo", &guest.arg()]).exits(0);
    guest.progresses(1);
    let _ = fs::remove_file(report["file"].as_str().unwrap());
    ends_well(probed);
}

/// gdb writes its breakpoint in the first byte of an instruction, and puts that byte back.
#[test]
fn breakpoints_at_any_instruction_come_and_go() {
    if !have("gdb") {
        return skip("no gdb");
    }
    let probed = rebuilt();
    let (program, guest) = (probed.program.clone(), &probed.guest);
    // Functions that are called through pointers, which lead to the originals.
    for function in ["mixed", "pointed"].iter().chain(&FORMS) {
        let at = instructions(&program, function);
        let base = at[0];
        let mut gdb = Command::new("gdb");
        gdb.args(["--batch", "-nx", "-p", &guest.arg(), "-ex", "set breakpoint always-inserted on"]);
        for offset in at.iter().map(|a| a - base) {
            gdb.args(["-ex", &format!("break *((char *){function} + {offset})")]);
        }
        gdb.args(["-ex", "continue", "-ex", "continue", "-ex", "delete", "-ex", "detach"])
            .env_remove("DEBUGINFOD_URLS");
        let answer = run(gdb).exits(0);
        assert!(answer.stdout.contains("Breakpoint"), "{answer:?}");
        assert!(!answer.stdout.contains("SIG"), "{answer:?}");
        guest.progresses(1);
    }
    ends_well(probed);
}
