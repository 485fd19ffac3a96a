//! Checks whether a process may be traced, before anything in it is changed.

use crate::linger::is_lingering;
use crate::process::{is_exiting, is_kernel_thread, proc_text};
use crate::shared::survey;
use crate::tracer::TRACER_NAME;
use crate::{Error, Pid, Process, Status, Tid};
use std::fs;
use std::time::Duration;

/// The seccomp state of a process that whet can work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seccomp {
    /// No seccomp.
    None,
    /// Filters, which whet suspends during each of its system calls (and only then).
    Filter,
}

/// The findings for a process that whet can work with.
#[derive(Debug, Clone)]
pub struct Preflight {
    /// Its id.
    pub pid: Pid,
    /// Its command name.
    pub name: String,
    /// How many threads it has.
    pub threads: u32,
    /// Its seccomp state.
    pub seccomp: Seccomp,
    /// Its id in each pid namespace from this one inwards: more than one for a process in a container.
    pub ns_pid: Vec<i32>,
    /// Whether exec can give it no rights (`no_new_privs`).
    pub no_new_privs: bool,
}

/// Checks whether a process can be traced, without changing it.
///
/// # Errors
/// The reason against it.
pub fn preflight(pid: Pid) -> Result<Preflight, Error> {
    if u32::try_from(pid.0).is_ok_and(|p| p == std::process::id()) {
        return Err(Error::Itself(pid));
    }
    // Properties of the process are checked before permissions: a reason that no permission would remove is
    // the better one.
    let text = fs::read(format!("/proc/{pid}/status")).map_err(|_| Error::NoSuchProcess(pid))?;
    let status = Status::parse(&String::from_utf8_lossy(&text))?;
    check(pid, &status)?;
    let process = Process::open(pid).map_err(|e| with_hint(e, &status))?;
    is_x86_64(&process).map_err(|e| process.cause(e))?;
    // A thread other than the first can be the only one that is traced, or that has filters.
    let mut seccomp = Seccomp::None;
    for tid in process.threads()? {
        let status = match process.thread_status(tid) {
            Err(Error::ThreadGone(_)) => continue,
            status => status?,
        };
        if is_foreign(status.tracer_pid) {
            return Err(held_by(pid, Tid(pid.0), status.tracer_pid));
        }
        match status.seccomp {
            0 => {}
            1 => return Err(Error::SeccompStrict(pid)),
            _ => seccomp = Seccomp::Filter,
        }
    }
    if seccomp == Seccomp::Filter {
        can_suspend_filters(pid)?;
    }
    survey(&process).map_err(|e| process.cause(e))?;
    Ok(Preflight {
        pid,
        name: status.name,
        threads: status.threads,
        seccomp,
        ns_pid: status.ns_pid,
        no_new_privs: status.no_new_privs,
    })
}

fn check(pid: Pid, status: &Status) -> Result<(), Error> {
    if status.tgid != pid.0 {
        return Err(Error::NotAProcess(pid, status.process()));
    }
    if matches!(status.state, 'X' | 'x') {
        return Err(Error::Ending(pid));
    }
    // A first thread that has ended looks like a zombie without memory, but its process may have other
    // threads.
    if status.state == 'Z' {
        if fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) < 2 {
            return Err(Error::Ending(pid));
        }
    } else if !status.has_memory {
        return Err(if is_kernel_thread(&proc_text(pid.0, "stat")) {
            Error::KernelThread { pid, name: status.name.clone() }
        } else {
            Error::Ending(pid)
        });
    }
    if is_foreign(status.tracer_pid) {
        return Err(held_by(pid, Tid(pid.0), status.tracer_pid));
    }
    if status.state == 'T' {
        return Err(Error::JobStopped(pid));
    }
    Ok(())
}

/// A lingering tracer of this program makes way, and one that ends is no obstacle for long.
fn is_foreign(tracer: i32) -> bool {
    tracer != 0 && !is_lingering(tracer) && !is_tracer_ending(tracer)
}

/// Far longer than a tracer takes to let go of a thread.
const INSTANT: Duration = Duration::from_millis(1);

/// Returns the error for a process of which a thread is shown as traced. While a tracer lets go of a process, the
/// kernel shows the process's parent as its tracer for an instant (`__ptrace_unlink`).
pub(crate) fn held_by(pid: Pid, tid: Tid, tracer: i32) -> Error {
    std::thread::sleep(INSTANT);
    match Status::parse(&proc_text(tid.0, "status")) {
        Ok(now) if now.tracer_pid != tracer => Error::TracerEnding { pid, by: Pid(tracer) },
        _ => traced(pid, tracer),
    }
}

/// Returns the error for a process with this tracer, by what the tracer is.
fn traced(pid: Pid, tracer: i32) -> Error {
    let by = Pid(tracer);
    let comm = proc_text(tracer, "comm");
    // Checked after the name was read: of a tracer that ended meanwhile, the name is empty.
    if is_tracer_ending(tracer) {
        return Error::TracerEnding { pid, by };
    }
    let comm = comm.trim_end().to_owned();
    match comm == TRACER_NAME {
        true => Error::TracedByWhet { pid, by },
        false => Error::AlreadyTraced { pid, by, comm },
    }
}

/// Returns whether a tracer has ended, or nothing can keep it from ending.
pub(crate) fn is_tracer_ending(tracer: i32) -> bool {
    let read = |file: &str| fs::read(format!("/proc/{tracer}/{file}"));
    match (read("stat"), read("status")) {
        (Ok(stat), Ok(status)) => ends(&String::from_utf8_lossy(&stat), &String::from_utf8_lossy(&status)),
        _ => true,
    }
}

/// Returns whether a thread with these files ends: it is in the kernel's exit code, or SIGKILL is pending for
/// it. A killed thread that gets no CPU is ready to run for long.
fn ends(stat: &str, status: &str) -> bool {
    const KILLED: u64 = 1 << 8;
    is_exiting(stat)
        || Status::parse(status).is_ok_and(|s| s.is_ending() || (s.sig_pnd | s.shd_pnd) & KILLED != 0)
}

/// `CAP_SYS_PTRACE` and `CAP_SYS_ADMIN` as bits of [`Status::cap_eff`].
const CAP_SYS_PTRACE: u64 = 1 << 19;
const CAP_SYS_ADMIN: u64 = 1 << 21;

fn own_status() -> Status {
    fs::read_to_string("/proc/self/status").ok().and_then(|t| Status::parse(&t).ok()).unwrap_or_default()
}

/// Returns whether this program runs as root, by its effective user id. Then a permission is missing for
/// another reason.
#[must_use]
pub fn is_root() -> bool {
    own_status().uid[1] == 0
}

fn can_suspend_filters(pid: Pid) -> Result<(), Error> {
    let own = own_status();
    let no = |why: &str| Err(Error::SeccompFilter { pid, why: why.into() });
    if own.cap_eff & CAP_SYS_ADMIN == 0 {
        let who = if own.uid[1] == 0 { "which this root has not" } else { "which root has" };
        return no(&format!("that takes the capability CAP_SYS_ADMIN, {who}"));
    }
    if own.seccomp != 0 {
        return no("this program is under seccomp itself");
    }
    Ok(())
}

/// Adds advice to the error.
fn with_hint(e: Error, target: &Status) -> Error {
    let Error::NoPermission { pid, what, source, .. } = e else { return e };
    let own = own_status();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let hint = match scope.as_deref().map(str::trim) {
        // Root may lack the capability, in a container or a service.
        Some("0" | "1" | "2") | None if own.uid[1] == 0 && own.cap_eff & CAP_SYS_PTRACE == 0 => {
            "; this root has not the capability CAP_SYS_PTRACE"
        }
        Some("3") => "; kernel.yama.ptrace_scope is 3: no tracing until the next boot",
        Some("2") if own.cap_eff & CAP_SYS_PTRACE == 0 => "; kernel.yama.ptrace_scope is 2: run as root",
        Some("1") if own.cap_eff & CAP_SYS_PTRACE == 0 => {
            "; kernel.yama.ptrace_scope is 1: run as root, or start the program by `whet run`"
        }
        _ if own.uid[1] != target.uid[1] => "; it belongs to another user: run as that user or as root",
        _ if own.cap_eff & CAP_SYS_PTRACE == 0 => {
            "; it is not dumpable or has more rights than we: run as root"
        }
        _ => "; a security module or a user namespace forbids it",
    };
    Error::NoPermission { pid, what, hint: hint.into(), source }
}

/// Checks that the program is a 64-bit x86 ELF file (x32 and 32-bit files are not).
fn is_x86_64(process: &Process) -> Result<(), Error> {
    use std::io::Read;
    let pid = process.pid();
    let no = |what: &str| Err(Error::NotX86_64 { pid, what: what.into() });
    let mut head = [0; 20];
    let read = fs::File::open(process.memory_file("exe")).and_then(|mut f| f.read_exact(&mut head));
    read.map_err(|source| Error::ProcFile { path: format!("/proc/{pid}/exe"), source })?;
    match (head[..4] == *b"\x7fELF", head[4], u16::from_le_bytes([head[18], head[19]])) {
        (false, ..) => no("not ELF"),
        (true, 2, 62) => Ok(()),
        (true, 1, 62) => no("x32"),
        (true, 1, 3) => no("32-bit x86"),
        (true, _, machine) => no(&format!("ELF machine {machine}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracers_that_end_are_recognized() {
        // The flags are those of proc(5): 0x40_0100 is a usual process, 0x4 is PF_EXITING.
        let stat = |flags: u32| format!("7 (a) b)) R 1 7 7 0 -1 {flags} 0 0");
        let status = |state: char, pending: &str| {
            format!("Name:\tgdb\nState:\t{state} (x)\nTgid:\t7\nSigPnd:\t{pending}\nShdPnd:\t{pending}\n")
        };
        let (none, killed, others) = ("0000000000000000", "0000000000000100", "fffffffffffffeff");
        assert!(!ends(&stat(0x40_0100), &status('R', none)));
        assert!(!ends(&stat(0x40_0100), &status('T', others)));
        assert!(ends(&stat(0x40_0104), &status('R', none)));
        assert!(ends(&stat(0x40_0100), &status('R', killed)));
        assert!(ends(&stat(0x40_0100), &status('Z', none)));
        assert!(!ends("", ""));
        assert!(is_tracer_ending(1 << 23), "there is no such process");
        assert!(!is_tracer_ending(std::process::id().cast_signed()));
    }

    #[test]
    fn tracers_are_told_apart() {
        let pid = Pid(5);
        assert!(matches!(traced(pid, 1 << 23), Error::TracerEnding { by: Pid(0x80_0000), .. }));
        let by = std::process::id().cast_signed();
        assert!(matches!(traced(pid, by), Error::AlreadyTraced { comm, .. } if !comm.is_empty()));
        let named = std::thread::Builder::new().name(TRACER_NAME.to_owned());
        let of_whet = move || traced(pid, crate::ptrace::own_tid().0);
        let e = named.spawn(of_whet).unwrap().join().unwrap();
        assert!(matches!(e, Error::TracedByWhet { pid: Pid(5), .. }), "{e}");
    }
}
