//! Other processes that run in the target's memory.
//!
//! A task made by `clone(CLONE_VM)` without `CLONE_THREAD` shares the memory and is not a thread of the
//! process. A stop of all threads leaves it running, through whatever is written meanwhile. So a stop is
//! complete only when there is no such task. Three kinds occur:
//! - a `vfork` or `posix_spawn` under way: the parent's thread waits in the kernel, out of reach, and the
//!   stop is busy;
//! - the end of such a call, when the parent's thread runs again and the child has not quite left the memory,
//!   or a spawn that does not make its parent wait. This takes an instant, so the stop waits for it;
//! - a task that stays. It cannot be stopped with the target, so the target is refused.
//!
//! A process shares memory from its start or never. So two processes have shared it since the start of the
//! younger one. Once all threads are at rest and no task shares the memory, no task can begin to share it:
//! only a task that runs in the memory can create such a task.
//!
//! `kcmp` compares the memory of two processes. If the kernel refuses to compare a process with a target that
//! whet may trace, the process has other rights. A sharer has the target's own memory, program and "dumpable"
//! state, and a change of its rights clears that state for both. So such a process counts as a stranger.
//!
//! Without `kcmp` (an old kernel, or a sandbox that forbids it), a process with the same program and exactly
//! the same mappings counts as a sharer. This misses no sharer, but a child by plain `fork` may look the
//! same.

use crate::process::{TICKS_PER_SECOND, is_kernel_worker, start_time_now, stat_field};
use crate::{Error, Pid, Process, Stuck, Tid};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// A process that has shared the target's memory for this long is not a spawn under way.
const LONG: Duration = Duration::from_secs(1);

/// A process that shares the target's memory.
#[derive(Debug)]
pub(crate) struct Sharer {
    pid: Pid,
    age: Duration,
    /// Whether `kcmp` confirmed it.
    certain: bool,
}

impl Sharer {
    /// Returns the refusal, if the process stays in the memory.
    pub(crate) fn refusal(&self, target: Pid) -> Option<Error> {
        (self.age >= LONG).then(|| Error::SharesMemory {
            pid: target,
            with: self.pid,
            name: proc_text(self.pid.0, "comm").trim_end().to_owned(),
            doubt: if self.certain { "" } else { ", as far as whet can see without kcmp" },
        })
    }

    /// Returns what delays the stop, for a process that does not stay.
    pub(crate) fn stuck(&self) -> Stuck {
        Stuck {
            tid: Tid(self.pid.0),
            state: state(&proc_text(self.pid.0, "stat")),
            wchan: proc_text(self.pid.0, "wchan"),
        }
    }
}

/// The strangers, found before the stop so that little is left to do in it.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    strangers: BTreeSet<i32>,
    /// Whether a process shared the memory.
    shared: bool,
}

impl Survey {
    /// Compares every process.
    ///
    /// # Errors
    /// [`Error::SharesMemory`] for a process that shares the memory and stays; the stop handles other
    /// sharers.
    pub(crate) fn take(process: &Process) -> Result<Self, Error> {
        let (mut strangers, mut shared) = (BTreeSet::new(), false);
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
                    shared = true;
                    // The parent of a vfork is out of reach for as long as it lasts: the stop reports that.
                    if let Some(refusal) = sharer(process, pid, true).refusal(process.pid())
                        && !has_thread_out_of_reach(process)
                    {
                        return Err(refusal);
                    }
                }
                None => {}
            }
        }
        // If the thread ended meanwhile, it had no memory to compare with.
        if process.thread_status(tid).map_or(true, |s| s.is_ending()) {
            strangers.clear();
        }
        Ok(Self { strangers, shared })
    }

    /// Returns whether it found a process that shares the memory, such as a child of vfork.
    pub(crate) fn found_sharers(&self) -> bool {
        self.shared
    }

    /// Returns a process that shares the memory of a process whose threads are all at rest; `tid` is one of
    /// the threads. An id is assumed to mean the same process as at the survey. The survey was milliseconds
    /// ago, and the kernel reuses ids as late as possible.
    pub(crate) fn sharer(&self, process: &Process, tid: Tid) -> Result<Option<Sharer>, Error> {
        let certain = can_compare(tid);
        let mut seen = BTreeSet::new();
        // A sharer can create another and end before it is looked at: the last list must contain no new
        // process.
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

/// Returns a thread that has not ended.
fn living(process: &Process) -> Result<Option<Tid>, Error> {
    let mut tids = process.threads()?.into_iter();
    Ok(tids.find(|&tid| process.thread_status(tid).is_ok_and(|s| !s.is_ending())))
}

fn has_thread_out_of_reach(process: &Process) -> bool {
    let tids = process.threads().unwrap_or_default();
    tids.into_iter().any(|tid| process.thread_status(tid).is_ok_and(|s| s.state == 'D'))
}

/// Returns the ids of all other processes.
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

/// Returns whether a process shares the memory of a thread; `None` if the process has ended.
fn relation(tid: Tid, pid: i32) -> Option<bool> {
    match same_memory(tid, Tid(pid)) {
        // Threads of the kernel use a process's memory at times, but run none of its code.
        Ok(true) => Some(!is_kernel_worker(&proc_text(pid, "stat"))),
        Ok(false) => Some(lives_on_in_another(tid, pid)),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Some(false),
        Err(_) => None,
    }
}

/// Returns whether a process whose first thread has ended shares the memory in its other threads.
fn lives_on_in_another(tid: Tid, pid: i32) -> bool {
    // All processes are compared for each stop, so the cheapest look comes first. The folder has two links and one
    // for each thread (`proc_task_getattr()` in the kernel). A process of one thread was compared already.
    if fs::metadata(format!("/proc/{pid}/task")).is_ok_and(|task| task.nlink() <= 3) {
        return false;
    }
    // A first thread with a program has memory, and had it when it was compared.
    if fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
        return false;
    }
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

/// Returns whether a process has the same program and mappings.
fn looks_the_same(process: &Process, pid: i32) -> Result<bool, Error> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok().filter(|text| !text.is_empty());
    let exe = process.exe()?;
    if fs::read_link(format!("/proc/{pid}/exe")).ok() != Some(exe) {
        return Ok(false);
    }
    // A sharer may change the mappings between two readings; the number of attempts is limited.
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
    // An ended process counts as just started.
    let born = [process.start_time().ok(), stat_field(&proc_text(pid, "stat"), 22)];
    let ticks = born.map(|t| t.unwrap_or(u64::MAX)).into_iter().max().unwrap_or(u64::MAX);
    let age = start_time_now().saturating_sub(ticks);
    Sharer { pid: Pid(pid), age: Duration::from_millis(age * (1000 / TICKS_PER_SECOND)), certain }
}

fn proc_text(pid: i32, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the state letter in a `stat`.
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
    fn strangers_and_sharers_are_distinguished() {
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
