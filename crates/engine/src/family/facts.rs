//! Reads the facts of `/proc` by which families are found.

use crate::Error;
use crate::family::members::{self, Fact, Family};
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
        Some(family) => Ok(family),
        None => Err(tracee::preflight(pid).err().unwrap_or(tracee::Error::NoSuchProcess(pid)).into()),
    }
}

/// Returns `None` for a process that has ended, a kernel thread, or a process that may not be read.
fn fact(pid: Pid) -> Option<Fact> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    Some(Fact {
        pid,
        parent: Pid(i32::try_from(stat_field(&stat, 4)?).ok()?),
        start: stat_field(&stat, 22)?,
        exe: program(pid)?,
        groups: fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default(),
    })
}

/// Returns device and inode of a process's program.
pub(crate) fn program(pid: Pid) -> Option<(u64, u64)> {
    let exe = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((exe.dev(), exe.ino()))
}

/// Returns the current time in the clock ticks of process start times in `/proc/PID/stat`: hundredths of a
/// second, from the decimals of `/proc/uptime`. Returns `None` if there is no such file.
pub(crate) fn now() -> Option<u64> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    text.split(' ').next()?.replace('.', "").parse().ok()
}
