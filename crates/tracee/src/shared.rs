//! Other processes that run in the target's memory.
//!
//! A task made by `clone(CLONE_VM)` without `CLONE_THREAD` shares the memory and is no thread of the process: a stop
//! of all threads leaves it running, through whatever is written meanwhile. So a stop is complete only when there is
//! no such task. Three kinds are met:
//! - a `vfork` or `posix_spawn` under way: the parent's thread waits in the kernel, out of reach, and the stop is busy;
//! - the same in its last moment, when the parent's thread runs again and the child has not quite left the memory, or
//!   a spawn that does not make its parent wait: over in an instant, and worth waiting for;
//! - one that stays. It cannot be stopped with the target, and the target is refused.
//!
//! Memory is shared from birth or never, so the younger one's age is how long they have shared it. Once all threads
//! rest and nobody shares, nobody can begin to: only those who run in a memory can make others do so.
//!
//! The kernel tells by `kcmp`. That it refuses to compare a process with the target, while we may trace the target,
//! means that the process has other rights. One that shares has the target's own memory, program and "dumpable" state,
//! and loses the last one for both as it changes its rights. So such a process is taken for a stranger.
//!
//! Where there is no `kcmp` (a kernel without it, a sandbox that forbids it), whoever has the same program and, to the
//! letter, the same mappings is taken for a sharer. That does not miss any, but a child by plain `fork` may look so too.

use crate::process::{is_kernel_worker, stat_field};
use crate::{Error, Pid, Process, Stuck, Tid};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

/// Whoever has shared the target's memory for so long is no spawn under way.
const LONG: Duration = Duration::from_secs(1);
/// Of `/proc/PID/stat`: what the kernel shows user space, whatever its own clock.
const TICKS_PER_SECOND: u64 = 100;

/// A process that shares the target's memory.
#[derive(Debug)]
pub(crate) struct Sharer {
    pid: Pid,
    age: Duration,
    /// Whether the kernel said so.
    certain: bool,
}

impl Sharer {
    /// The refusal, if it is one that stays.
    pub(crate) fn refusal(&self, target: Pid) -> Option<Error> {
        (self.age >= LONG).then(|| Error::SharesMemory {
            pid: target,
            with: self.pid,
            name: proc_text(self.pid.0, "comm").trim_end().to_owned(),
            doubt: if self.certain { "" } else { ", as far as can be told without kcmp" },
        })
    }

    /// What holds up the stop, if it is not one that stays.
    pub(crate) fn stuck(&self) -> Stuck {
        Stuck {
            tid: Tid(self.pid.0),
            state: state(&proc_text(self.pid.0, "stat")),
            wchan: proc_text(self.pid.0, "wchan"),
        }
    }
}

/// What was found out before the stop, so that little is left for it: who is a stranger.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    strangers: BTreeSet<i32>,
}

impl Survey {
    /// Looks at every process.
    ///
    /// # Errors
    /// [`Error::SharesMemory`] for one that shares the memory and stays; others are left to the stop.
    pub(crate) fn take(process: &Process) -> Result<Self, Error> {
        let mut strangers = BTreeSet::new();
        let Some(tid) = living(process)? else { return Err(Error::Gone(process.pid())) };
        if !can_compare(tid) {
            return Ok(Self::default());
        }
        for pid in others(process)? {
            match relation(tid, pid) {
                Some(false) => {
                    strangers.insert(pid);
                }
                Some(true) => {
                    // The parent of a vfork is out of reach as long as it lasts, however long: the stop tells.
                    if let Some(refusal) = sharer(process, pid, true).refusal(process.pid())
                        && !has_thread_out_of_reach(process)
                    {
                        return Err(refusal);
                    }
                }
                None => {}
            }
        }
        // A thread that ended meanwhile had no memory to compare with any more.
        if process.thread_status(tid).map_or(true, |s| s.is_ending()) {
            strangers.clear();
        }
        Ok(Self { strangers })
    }

    /// One that shares the memory of a process all of whose threads rest; `tid` is one of them. What a number stands
    /// for is taken to be the same as at the survey: it was milliseconds ago, and numbers come round last of all.
    pub(crate) fn sharer(&self, process: &Process, tid: Tid) -> Result<Option<Sharer>, Error> {
        let certain = can_compare(tid);
        let mut seen = BTreeSet::new();
        // One that shares can make another and end before it is looked at: the last list must have nobody new.
        loop {
            let mut new = others(process)?;
            new.retain(|pid| !self.strangers.contains(pid) && seen.insert(*pid));
            if new.is_empty() {
                return Ok(None);
            }
            for pid in new {
                let shares =
                    if certain { relation(tid, pid) == Some(true) } else { looks_the_same(process, pid)? };
                if shares {
                    return Ok(Some(sharer(process, pid, certain)));
                }
            }
        }
    }
}

/// A thread that has not ended.
fn living(process: &Process) -> Result<Option<Tid>, Error> {
    let mut tids = process.threads()?.into_iter();
    Ok(tids.find(|&tid| process.thread_status(tid).is_ok_and(|s| !s.is_ending())))
}

fn has_thread_out_of_reach(process: &Process) -> bool {
    let tids = process.threads().unwrap_or_default();
    tids.into_iter().any(|tid| process.thread_status(tid).is_ok_and(|s| s.state == 'D'))
}

/// The numbers of all other processes.
fn others(process: &Process) -> Result<Vec<i32>, Error> {
    let fail = |source| Error::ProcFile { path: "/proc".into(), source };
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        let pid = name.to_str().and_then(|n| n.parse::<i32>().ok());
        pids.extend(pid.filter(|&pid| pid != process.pid().0));
    }
    Ok(pids)
}

/// Whether a process shares the memory of a thread; nothing where it has ended.
fn relation(tid: Tid, pid: i32) -> Option<bool> {
    match same_memory(tid, Tid(pid)) {
        // The kernel's own threads borrow a memory now and then, but run no code of it.
        Ok(true) => Some(!is_kernel_worker(&proc_text(pid, "stat"))),
        Ok(false) => Some(lives_on_in_another(tid, pid)),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Some(false),
        Err(_) => None,
    }
}

/// A process whose first thread has ended has its memory in the others.
fn lives_on_in_another(tid: Tid, pid: i32) -> bool {
    let stat = proc_text(pid, "stat");
    if state(&stat) != 'Z' || stat_field(&stat, 20).is_none_or(|threads| threads < 2) {
        return false;
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids = tasks.filter_map(|t| t.file_name().to_str()?.parse().ok().map(Tid));
    tids.any(|other| same_memory(tid, other).unwrap_or(false))
}

fn can_compare(tid: Tid) -> bool {
    same_memory(tid, tid).unwrap_or(false)
}

fn same_memory(a: Tid, b: Tid) -> io::Result<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: takes five integers.
    let rc = unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_VM, 0, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc == 0) }
}

/// Whether a process has the same program and mappings.
fn looks_the_same(process: &Process, pid: i32) -> Result<bool, Error> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok().filter(|text| !text.is_empty());
    let exe = process.exe()?;
    if fs::read_link(format!("/proc/{pid}/exe")).ok() != Some(exe) {
        return Ok(false);
    }
    // One that shares may change the mappings between two readings: but not for ever.
    for _ in 0..10 {
        let before = process.maps_text()?;
        let Some(theirs) = read("maps") else { return Ok(false) };
        if String::from_utf8_lossy(&theirs) == before {
            return Ok(true);
        }
        if process.maps_text()? == before {
            return Ok(false);
        }
    }
    Ok(true)
}

fn sharer(process: &Process, pid: i32, certain: bool) -> Sharer {
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
    let uptime = Duration::try_from_secs_f64(uptime).unwrap_or_default();
    // Where one has ended meanwhile it is as if just born.
    let born = [process.start_time().ok(), stat_field(&proc_text(pid, "stat"), 22)];
    let ticks = born.map(|t| t.unwrap_or(u64::MAX)).into_iter().max().unwrap_or(u64::MAX);
    let born = Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND));
    Sharer { pid: Pid(pid), age: uptime.saturating_sub(born), certain }
}

fn proc_text(pid: i32, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The state letter in a `stat`.
fn state(stat: &str) -> char {
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(Pid(child.id().cast_signed())).unwrap();
        while process.status().unwrap().name != "sleep" || process.status().unwrap().state != 'S' {
            std::thread::yield_now();
        }
        (child, process)
    }

    #[test]
    fn strangers_and_one_that_is_the_same() {
        let ((mut a, one), (mut b, other)) = (sleeper(), sleeper());
        let tid = Tid(one.pid().0);
        assert!(can_compare(tid));
        assert_eq!(relation(tid, one.pid().0), Some(true));
        assert_eq!(relation(tid, other.pid().0), Some(false));
        assert_eq!(relation(tid, 1 << 23), None);
        assert!(looks_the_same(&one, one.pid().0).unwrap());
        assert!(!looks_the_same(&one, other.pid().0).unwrap());
        assert!(!looks_the_same(&one, 1 << 23).unwrap());
        let survey = Survey::take(&one).unwrap();
        assert!(survey.strangers.contains(&other.pid().0) && !survey.strangers.contains(&one.pid().0));
        assert!(survey.sharer(&one, tid).unwrap().is_none());
        let age = sharer(&one, other.pid().0, true).age;
        assert!(age < Duration::from_secs(60), "{age:?}");
        for child in [&mut a, &mut b] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(matches!(Survey::take(&one), Err(Error::Gone(_))));
    }
}
