//! The processes of a run, by session and by ancestry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A process. Its start time tells it from a later one with the same pid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    start: u64,
}

/// The fields of `/proc/PID/stat` that tests use.
struct Stat {
    process: Process,
    state: char,
    parent: i32,
    session: i32,
}

/// Reads all processes. Those that end meanwhile are left out.
fn all() -> Vec<Stat> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let read = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in brackets may contain anything.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Stat {
            process: Process { pid, start: fields[19].parse().ok()? },
            state: fields[0].chars().next()?,
            parent: fields[1].parse().ok()?,
            session: fields[3].parse().ok()?,
        })
    };
    pids.filter_map(read).collect()
}

/// Returns the descendants of a process. Some of them, as PostgreSQL's sessions, have a session of their own.
pub fn descendants(pid: i32) -> BTreeSet<Process> {
    let all = all();
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for stat in &all {
        children.entry(stat.parent).or_default().push(stat.process);
    }
    let mut found = BTreeSet::new();
    let mut next = vec![pid];
    while let Some(pid) = next.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                next.push(child.pid);
            }
        }
    }
    found
}

/// Returns the processes that still run: those of a session, and of `known`. A zombie counts as ended.
pub fn running(session: i32, known: &BTreeSet<Process>) -> Vec<String> {
    let ours = |stat: &Stat| stat.session == session || known.contains(&stat.process);
    let name = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!("{pid}: {}", String::from_utf8_lossy(&line).replace('\0', " "))
    };
    let running = all().into_iter().filter(|stat| ours(stat) && stat.state != 'Z');
    running.map(|stat| name(stat.process.pid)).collect()
}
