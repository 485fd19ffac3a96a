//! What can go wrong with a live process.

use crate::{Pid, Sig, Tid};
use addr::{Avma, Unreadable};
use std::io;
use std::time::Duration;

/// Why something could not be done to a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such process here: the id was never there, or belongs to another pid namespace.
    #[error("no process {0}")]
    NoSuchProcess(Pid),
    /// The process ended while it was worked on.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The thread ended while it was worked on (its process may live).
    #[error("thread {0} has ended")]
    ThreadGone(Tid),
    /// The process ran another program (exec) while it was worked on: nothing known about it holds any more.
    #[error("process {0} has replaced itself by exec")]
    Exec(Pid),
    /// The process is whet itself.
    #[error("process {0} is this very program")]
    Itself(Pid),
    /// The id is that of a thread that leads no process.
    #[error("{0} is a thread of process {1}, not a process")]
    NotAProcess(Pid, Pid),
    /// A kernel thread: no user memory at all.
    #[error("{name} ({pid}) is a kernel thread")]
    KernelThread {
        /// Its id.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// Ended, or just about to end (state Z or X).
    #[error("process {0} is ending")]
    Ending(Pid),
    /// Somebody traces it: one tracer is all the kernel allows.
    #[error("process {pid} is traced by {comm} ({by})")]
    AlreadyTraced {
        /// The target.
        pid: Pid,
        /// The tracer; 0 where it is outside our pid namespace.
        by: Pid,
        /// The tracer's name.
        comm: String,
    },
    /// Another process runs in the same memory (`clone` with `CLONE_VM` and without `CLONE_THREAD`) and would not be
    /// stopped with the target's threads.
    #[error("process {pid} shares its memory with process {with} ({name}){doubt}")]
    SharesMemory {
        /// The target.
        pid: Pid,
        /// The other process.
        with: Pid,
        /// Its name.
        name: String,
        /// Whether that is sure, as a clause to append; may be empty.
        doubt: &'static str,
    },
    /// Stopped by job control (SIGSTOP, Ctrl-Z).
    #[error("process {0} is stopped by job control; continue it first (kill -CONT {0})")]
    JobStopped(Pid),
    /// Under strict seccomp: any system call run in it kills it.
    #[error("process {0} is under strict seccomp")]
    SeccompStrict(Pid),
    /// Under seccomp filters that cannot be suspended from here.
    #[error("process {pid} is under a seccomp filter and it cannot be suspended: {why}")]
    SeccompFilter {
        /// The target.
        pid: Pid,
        /// What is missing.
        why: String,
    },
    /// Not a 64-bit x86 ELF program.
    #[error("process {pid} is no x86-64 program: {what}")]
    NotX86_64 {
        /// The target.
        pid: Pid,
        /// What it is instead.
        what: String,
    },
    /// The kernel does not let us.
    #[error("no permission to {what} process {pid}{hint}")]
    NoPermission {
        /// The target.
        pid: Pid,
        /// What was tried.
        what: &'static str,
        /// What would help, as a clause to append; may be empty.
        hint: String,
        /// The kernel's word.
        #[source]
        source: io::Error,
    },
    /// Memory could not be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Memory could not be written.
    #[error("cannot write {len} bytes at {at}")]
    Unwritable {
        /// Where.
        at: Avma,
        /// How much.
        len: usize,
        /// The kernel's word.
        #[source]
        source: io::Error,
    },
    /// A file of /proc could not be read.
    #[error("cannot read {path}")]
    ProcFile {
        /// Which.
        path: String,
        /// The kernel's word.
        #[source]
        source: io::Error,
    },
    /// A file of /proc says something unexpected.
    #[error("cannot make sense of {path}: {what}")]
    ProcFormat {
        /// Which.
        path: String,
        /// What was looked for.
        what: &'static str,
    },
    /// A system call of ours on the target failed.
    #[error("{what} failed for {tid}")]
    Os {
        /// The call.
        what: &'static str,
        /// The thread (or process) it was for.
        tid: Tid,
        /// The kernel's word.
        #[source]
        source: io::Error,
    },
    /// A thread that is none of the stopped ones was named.
    #[error("thread {0} is not one of the stopped threads")]
    NotStopped(Tid),
    /// The instruction pointer of a thread inside a system call was to be moved.
    #[error("thread {0} is inside a system call; its instruction pointer is the kernel's")]
    InSyscall(Tid),
    /// No `syscall` instruction was found in the target's code.
    #[error("no syscall instruction in the code of process {0}")]
    NoSyscallInstruction(Pid),
    /// A system call run in the target failed.
    #[error("system call {nr} in the target failed: {}", io::Error::from_raw_os_error(*.errno))]
    Remote {
        /// The call's number.
        nr: i64,
        /// The error number.
        errno: i32,
    },
    /// No thread fit to run system calls came to a stop in time. Fit is one on a stack of its own, with room.
    #[error("no thread of process {0} that is fit to run a system call could be stopped")]
    NoThread(Pid),
    /// Nothing in the target's code calls `rt_sigreturn`, and nothing can be made to: should whet die while a thread runs a
    /// system call for it, the thread would be lost.
    #[error("no code of process {0} leads a thread back from a system call")]
    NoWayHome(Pid),
    /// The threads have their system calls turned into signals (Wine does that): ours would be too.
    #[error("process {0} dispatches its system calls to itself")]
    SyscallDispatch(Pid),
    /// The thread that traces ended: it panicked, or could not be started.
    #[error("the tracing thread is gone")]
    TracerLost,
    /// A signal that could not be given back to the target.
    #[error("signal {sig} could not be given back to thread {tid}")]
    SignalLost {
        /// The thread.
        tid: Tid,
        /// The signal.
        sig: Sig,
        /// The kernel's word.
        #[source]
        source: io::Error,
    },
}

/// A thread that did not stop in time, or a process that shares the memory and has not left it in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Which.
    pub tid: Tid,
    /// Its state letter in /proc (`D`: in an uninterruptible wait, such as a vfork parent).
    pub state: char,
    /// The kernel function it waits in; `0` where that is hidden.
    pub wchan: String,
}

/// Why a stop did not come about. Every thread goes on by then.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Some threads did not stop within the deadline.
    #[error("{}", busy(stuck, *waited))]
    Busy {
        /// Those threads.
        stuck: Vec<Stuck>,
        /// How long was waited.
        waited: Duration,
    },
    /// Something failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl StopError {
    /// Whether all that was missing is CPU time: every thread that did not stop was ready to run.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        matches!(self, Self::Busy { stuck, .. } if !stuck.is_empty() && stuck.iter().all(|s| s.state == 'R'))
    }
}

fn busy(stuck: &[Stuck], waited: Duration) -> String {
    let threads = if stuck.len() == 1 { "thread" } else { "threads" };
    let (n, ms) = (stuck.len(), waited.as_millis());
    if stuck.iter().all(|s| s.state == 'R') {
        return format!("{n} {threads} did not get a CPU to stop on within {ms} ms: the host is overloaded");
    }
    let first = stuck
        .iter()
        .find(|s| s.state != 'R')
        .map(|s| format!("{} (state {}, in {})", s.tid, s.state, s.wchan));
    format!("{n} {threads} did not stop within {ms} ms, among them {}", first.unwrap_or_default())
}
