//! Errors of the work with a live process.

use crate::{Pid, Sig, Tid};
use addr::{Avma, Unreadable};
use std::io;
use std::time::Duration;

/// The reason why an operation on a process failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such process: the id was never used, or belongs to another pid namespace.
    #[error("no process {0}")]
    NoSuchProcess(Pid),
    /// The process ended during the operation.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The thread ended during the operation (its process may live).
    #[error("thread {0} has ended")]
    ThreadGone(Tid),
    /// The process executed another program (exec) during the operation: earlier findings are no longer
    /// valid.
    #[error("process {0} has replaced itself by exec")]
    Exec(Pid),
    /// The process is whet itself.
    #[error("process {0} is this very program")]
    Itself(Pid),
    /// The id is that of a thread other than the first of its process.
    #[error("{0} is a thread of process {1}, not a process")]
    NotAProcess(Pid, Pid),
    /// A kernel thread, which has no user memory.
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
    /// Another whet traces it, which takes moments.
    #[error("process {pid} is stopped by another whet ({by})")]
    TracedByWhet {
        /// The target.
        pid: Pid,
        /// The other whet's tracing thread.
        by: Pid,
    },
    /// Its tracer has ended, or is about to: the kernel is releasing the process.
    #[error("process {pid} is being released by a tracer that ends ({by})")]
    TracerEnding {
        /// The target.
        pid: Pid,
        /// The tracer.
        by: Pid,
    },
    /// Another program traces it: the kernel allows only one tracer.
    #[error("process {pid} is traced by {comm} ({by})")]
    AlreadyTraced {
        /// The target.
        pid: Pid,
        /// The tracer; 0 if it is outside this pid namespace.
        by: Pid,
        /// The tracer's name.
        comm: String,
    },
    /// The target could not take descriptors of files.
    #[error("the process cannot take a file: {source}")]
    NotGiven {
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process runs in the same memory (`clone` with `CLONE_VM` and without `CLONE_THREAD`). A stop
    /// of the target's threads would not stop it.
    #[error("process {pid} shares its memory with process {with} ({name}){doubt}")]
    SharesMemory {
        /// The target.
        pid: Pid,
        /// The other process.
        with: Pid,
        /// Its name.
        name: String,
        /// Whether this is certain, as a clause to append; may be empty.
        doubt: &'static str,
    },
    /// Stopped by job control (SIGSTOP, Ctrl-Z).
    #[error("process {0} is stopped by job control; continue it first (kill -CONT {0})")]
    JobStopped(Pid),
    /// Under strict seccomp: any remote system call kills it.
    #[error("process {0} is under strict seccomp")]
    SeccompStrict(Pid),
    /// Under seccomp filters that whet cannot suspend.
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
        /// Its format.
        what: String,
    },
    /// The kernel denied permission.
    #[error("no permission to {what} process {pid}{hint}")]
    NoPermission {
        /// The target.
        pid: Pid,
        /// The action that was denied.
        what: &'static str,
        /// Advice, as a clause to append; may be empty.
        hint: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Memory could not be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Memory could not be written.
    #[error("cannot write {len} bytes at {at}")]
    Unwritable {
        /// The address.
        at: Avma,
        /// The number of bytes.
        len: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A file of /proc could not be read.
    #[error("cannot read {path}")]
    ProcFile {
        /// The path.
        path: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A file of /proc has unexpected content.
    #[error("cannot make sense of {path}: {what}")]
    ProcFormat {
        /// The path.
        path: String,
        /// The missing content.
        what: &'static str,
    },
    /// A system call of whet on the target failed.
    #[error("{what} failed for {tid}")]
    Os {
        /// The call.
        what: &'static str,
        /// The thread (or process) concerned.
        tid: Tid,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The thread is not one of the stopped threads.
    #[error("thread {0} is not one of the stopped threads")]
    NotStopped(Tid),
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
    /// No thread fit to run system calls came to a stop in time. A fit thread is on its own stack, with room.
    #[error("no thread of process {0} that is fit to run a system call could be stopped")]
    NoThread(Pid),
    /// No code of the target leads to `rt_sigreturn`. If whet died while a thread ran a system call for it,
    /// the thread would be lost.
    #[error("no code of process {0} leads a thread back from a system call")]
    NoReturnPath(Pid),
    /// The threads have their system calls turned into signals (Wine does that), and remote system calls as
    /// well.
    #[error("process {0} dispatches its system calls to itself")]
    SyscallDispatch(Pid),
    /// The tracing thread ended: it panicked, or could not be started.
    #[error("the tracing thread is gone")]
    TracerLost,
    /// A signal could not be returned to the target.
    #[error("signal {sig} could not be given back to thread {tid}")]
    SignalLost {
        /// The thread.
        tid: Tid,
        /// The signal.
        sig: Sig,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// A thread that did not stop in time, or a process that shares the memory and did not leave it in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The thread or process.
    pub tid: Tid,
    /// Its state letter in /proc (`D`: in an uninterruptible wait, such as a vfork parent).
    pub state: char,
    /// The kernel function in which it waits; `0` if that is hidden.
    pub wchan: String,
}

/// The reason why a stop failed. Every thread is resumed by then.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Some threads did not stop within the deadline.
    #[error("{}", busy(stuck, *waited))]
    Busy {
        /// The late threads.
        stuck: Vec<Stuck>,
        /// How long the stop was tried.
        waited: Duration,
        /// How many transfers it has ended early, as the process has no routines yet in which threads finish them.
        cut: usize,
    },
    /// An operation failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl StopError {
    /// Returns whether only CPU time was missing: every thread that did not stop was ready to run.
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
