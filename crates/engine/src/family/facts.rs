//! Reads the facts of `/proc` by which families are found.

use crate::Error;
use crate::family::members::{self, Fact, Family, Kind};
use std::fs;
use std::os::unix::fs::MetadataExt;
use tracee::{Pid, stat_field};

/// Returns the family of a process.
///
/// # Errors
/// Returns the errors of [`tracee::preflight`] for a process whose facts cannot be read.
pub(crate) fn family_of(pid: Pid) -> Result<Family, Error> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|e| e.file_name().to_str()?.parse().ok()).map(Pid);
    let facts: Vec<Fact> = pids.filter_map(fact).collect();
    match members::family(pid, &facts) {
        Some(family) => Ok(Family { adopts: is_init(family.parent.pid), ..family }),
        None => Err(tracee::preflight(pid).err().unwrap_or(tracee::Error::NoSuchProcess(pid)).into()),
    }
}

/// Returns `None` for a process that has ended, a kernel thread, or a process that may not be read.
fn fact(pid: Pid) -> Option<Fact> {
    let stat = text(&format!("/proc/{pid}/stat"))?;
    Some(Fact {
        pid,
        parent: Pid(i32::try_from(stat_field(&stat, 4)?).ok()?),
        start: stat_field(&stat, 22)?,
        kind: kind(pid)?,
    })
}

/// Returns what all members of a process's family have in common; `None` if the process has ended or may not be
/// read.
#[must_use]
pub fn kind(pid: Pid) -> Option<Kind> {
    let task = living(pid)?;
    let stat = text(&format!("{task}/stat"))?;
    Some(Kind {
        exe: of_file(&format!("{task}/exe"))?,
        groups: text(&format!("{task}/cgroup")).unwrap_or_default(),
        layout: [26, 28].map(|field| stat_field(&stat, field).unwrap_or_default()),
    })
}

/// Returns device and inode of a process's program. Returns `None` for a process that has ended, a kernel
/// thread, or a process that may not be read.
pub(crate) fn program(pid: Pid) -> Option<(u64, u64)> {
    of_file(&format!("{}/exe", living(pid)?))
}

/// Returns the folder of a process, or that of one of its threads. A first thread that has ended has no
/// program and no control groups any more, while its process may live on in other threads.
fn living(pid: Pid) -> Option<String> {
    let own = format!("/proc/{pid}");
    let lives = |folder: &String| of_file(&format!("{folder}/exe")).is_some();
    if lives(&own) {
        return Some(own);
    }
    let tasks = fs::read_dir(format!("{own}/task")).ok()?.flatten();
    tasks.filter_map(|task| task.path().into_os_string().into_string().ok()).find(lives)
}

fn of_file(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

fn text(path: &str) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether a process is the first of its pid namespace. Orphans become its children.
fn is_init(pid: Pid) -> bool {
    let status = text(&format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    ids.split_whitespace().next_back() == Some("1")
}
