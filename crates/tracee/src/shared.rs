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
//! younger one, and a stranger stays a stranger: each process is compared once, however often the target is
//! stopped. Once all threads are at rest and no task shares the memory, no task can begin to share it:
//! only a task that runs in the memory can create such a task.
//!
//! `kcmp` compares the memory of two processes. If the kernel refuses to compare a process with a target that
//! whet may trace, the process has other rights. A sharer has the target's own memory, program and "dumpable"
//! state, and a change of its rights clears that state for both. So such a process counts as a stranger.
//!
//! Without `kcmp` (an old kernel, or a sandbox that forbids it), a process with the same program and exactly
//! the same mappings counts as a sharer. This misses no sharer, but a child by plain `fork` may look the
//! same.

use crate::process::{
    TICKS_PER_SECOND, has_memory, is_kernel_worker, proc_text, start_time_now, stat_field, state,
};
use crate::{Error, Pid, Process, Stuck, Tid};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
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

/// An entry of `/proc`: a process id, with the inode number of its folder.
///
/// The kernel gives each folder a number that it has not used, and drops the folder when the process is
/// reaped (`proc_flush_pid()`). So an entry never means two processes, even if the id is used again. If the
/// kernel drops a folder to save memory, its process has a new entry, and is compared once more.
type Entry = (i32, u64);

/// Processes that do not share the target's memory.
#[derive(Debug, Default)]
pub(crate) struct Strangers(BTreeSet<Entry>);

/// Compares every process that is not known as a stranger, before the stop, so that little is left to do in
/// it. Returns whether a process shares the memory, such as a child of vfork.
///
/// # Errors
/// [`Error::SharesMemory`] for a process that shares the memory and stays; the stop handles other sharers.
pub(crate) fn survey(process: &Process) -> Result<bool, Error> {
    let Some(tid) = living(process)? else { return Err(Error::Gone(process.pid())) };
    if !can_compare(tid) {
        return Ok(false);
    }
    let listed = others(process)?;
    let (known, unknown): (Vec<Entry>, Vec<Entry>) = {
        let strangers = process.strangers();
        listed.into_iter().partition(|entry| strangers.0.contains(entry))
    };
    let (mut new, mut shared) = (Vec::new(), false);
    for entry in unknown {
        match relation(tid, entry.0) {
            Some(false) => new.push(entry),
            // `kcmp` calls two tasks equal that both have no memory left.
            Some(true) if !lives(tid) => {}
            Some(true) => {
                shared = true;
                // The parent of a vfork is out of reach for as long as it lasts: the stop reports that.
                if let Some(refusal) = sharer(process, entry.0, true).refusal(process.pid())
                    && !has_thread_out_of_reach(process)
                {
                    return Err(refusal);
                }
            }
            None => {}
        }
    }
    // If the thread ended meanwhile, it had no memory to compare with.
    if !lives(tid) {
        new.clear();
    }
    // Processes that have ended are left out.
    process.strangers().0 = known.into_iter().chain(new).collect();
    Ok(shared)
}

/// Returns a process that shares the memory of a process whose threads are all at rest; `tid` is one of the
/// threads.
pub(crate) fn find_sharer(process: &Process, tid: Tid) -> Result<Option<Sharer>, Error> {
    let certain = can_compare(tid);
    let mut seen = BTreeSet::new();
    // A sharer can create another and end before it is looked at: the last list must contain no new process.
    loop {
        let mut new = others(process)?;
        {
            let strangers = process.strangers();
            new.retain(|entry| !strangers.0.contains(entry) && seen.insert(*entry));
        }
        if new.is_empty() {
            return Ok(None);
        }
        for (pid, _) in new {
            let shares =
                if certain { relation(tid, pid) == Some(true) } else { looks_the_same(process, pid)? };
            if shares {
                return Ok(Some(sharer(process, pid, certain)));
            }
        }
    }
}

/// Returns a thread that has its memory. The kernel takes the memory (`exit_mm()`) some time before the
/// thread's state shows its end.
fn living(process: &Process) -> Result<Option<Tid>, Error> {
    Ok(process.threads()?.into_iter().find(|&tid| lives(tid)))
}

fn lives(tid: Tid) -> bool {
    has_memory(&proc_text(tid.0, "stat"))
}

fn has_thread_out_of_reach(process: &Process) -> bool {
    let tids = process.threads().unwrap_or_default();
    tids.into_iter().any(|tid| process.thread_status(tid).is_ok_and(|s| s.state == 'D'))
}

/// Returns all other processes.
fn others(process: &Process) -> Result<Vec<Entry>, Error> {
    let fail = |source| Error::ProcFile { path: "/proc".into(), source };
    let mut entries = Vec::new();
    for entry in fs::read_dir("/proc").map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let pid = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok());
        entries.extend(pid.filter(|&pid| pid != process.pid().0).map(|pid| (pid, entry.ino())));
    }
    Ok(entries)
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
    // All processes of the machine are compared, so the cheapest look comes first. The folder has two links
    // and one for each thread (`proc_task_getattr()` in the kernel). A process of one thread was compared
    // already.
    if fs::metadata(format!("/proc/{pid}/task")).is_ok_and(|task| task.nlink() <= 3) {
        return false;
    }
    // A first thread with a program has memory, and had it when it was compared.
    if fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
        return false;
    }
    let stat = proc_text(pid, "stat");
    if has_memory(&stat) || stat_field(&stat, 20).is_none_or(|threads| threads < 2) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
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
        let is_stranger = |of: &Process| one.strangers().0.iter().any(|&(pid, _)| pid == of.pid().0);
        assert!(!survey(&one).unwrap());
        assert!(is_stranger(&other) && !is_stranger(&one));
        assert!(find_sharer(&one, tid).unwrap().is_none());
        let age = sharer(&one, other.pid().0, true).age;
        assert!(age < Duration::from_secs(60), "{age:?}");
        for child in [&mut a, &mut b] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(matches!(survey(&one), Err(Error::Gone(_))));
    }

    #[test]
    fn tasks_without_memory_are_not_sharers() {
        let ((mut a, one), (mut b, other)) = (sleeper(), sleeper());
        for child in [&mut a, &mut b] {
            child.kill().unwrap();
        }
        let (tid, pid) = (Tid(one.pid().0), other.pid().0);
        while [tid, Tid(pid)].into_iter().any(|t| state(&proc_text(t.0, "stat")) != 'Z') {
            std::thread::yield_now();
        }
        assert!(same_memory(tid, Tid(pid)).unwrap(), "the kernel calls them equal");
        assert!(!lives(tid) && matches!(survey(&one), Err(Error::Gone(_))));
        for child in [&mut a, &mut b] {
            child.wait().unwrap();
        }
    }

    /// Starts a process that has this id and only sleeps.
    fn start_with_id(pid: i32) -> io::Result<Pid> {
        let id = [pid];
        let exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
        // The fields of `struct clone_args` up to `set_tid_size`.
        let args = [0, 0, 0, 0, exit_signal, 0, 0, 0, id.as_ptr() as u64, 1];
        // SAFETY: as `fork`. The child makes only calls that are safe after a fork of a process with threads.
        let child = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
        if child == 0 {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        if child < 0 { Err(io::Error::last_os_error()) } else { Ok(Pid(pid)) }
    }

    #[test]
    fn a_process_with_the_id_of_an_ended_one_has_an_entry_of_its_own() {
        let (mut a, one) = sleeper();
        let mut ended = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = ended.id().cast_signed();
        let entry = || others(&one).unwrap().into_iter().find(|e| e.0 == pid).unwrap();
        let before = entry();
        assert_eq!(entry(), before, "the kernel has dropped the folder of a living process");
        ended.kill().unwrap();
        ended.wait().unwrap();
        match start_with_id(pid) {
            Ok(pid) => {
                let after = entry();
                let raw = pid.raw().unwrap();
                kill_process(raw, Signal::KILL).unwrap();
                waitpid(Some(raw), WaitOptions::empty()).unwrap();
                assert_ne!(after, before);
            }
            Err(e) => eprintln!("skipped: no process with the id {pid}: {e}"),
        }
        a.kill().unwrap();
        a.wait().unwrap();
    }
}
