//! Errors of commands, with the exit code and the next step.

use std::path::PathBuf;
use tracee::Pid;

pub use tracee::is_root;

/// The cause that ended a command. The target is unchanged, or holds only whole redirects that the journal
/// lists.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on the process failed.
    #[error(transparent)]
    Tracee(#[from] tracee::Error),
    /// The threads of the target could not be stopped.
    #[error(transparent)]
    Stop(#[from] tracee::StopError),
    /// The modules of the target could not be read.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// Sampling failed.
    #[error(transparent)]
    Perf(#[from] perf::Error),
    /// Installation or undo failed.
    #[error(transparent)]
    Splice(#[from] splice::Error),
    /// Clones could not be built.
    #[error("cannot build the clones: {0}")]
    Build(String),
    /// A signal interrupted the command; its changes were undone.
    #[error("interrupted by signal {signal}")]
    Interrupted {
        /// The signal's number.
        signal: usize,
    },
    /// Another whet works on the target.
    #[error("another whet is working on process {pid}")]
    Locked {
        /// The target.
        pid: Pid,
    },
    /// The lock file of a comparison could not be created.
    #[error("cannot use the lock file {}", path.display())]
    LockFile {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A kind of program that whet leaves alone.
    #[error("process {pid} is left alone: {why}")]
    Unsupported {
        /// The target.
        pid: Pid,
        /// A stable name of the reason.
        code: &'static str,
        /// The reason.
        why: String,
    },
    /// The target shares no memory that would be worth huge pages.
    #[error("process {pid} has mapped no shared memory of {least} bytes or more")]
    NoSharedMemory {
        /// The target.
        pid: Pid,
        /// The least size.
        least: u64,
    },
    /// None of the shared memory was moved.
    #[error("no memory of process {pid} was moved: {why}")]
    NotMoved {
        /// The target.
        pid: Pid,
        /// A stable name of the reason.
        code: &'static str,
        /// The reason.
        why: String,
        /// Whether the same command may move it later.
        passes: bool,
    },
    /// No code ran, or nothing hot could be cloned.
    #[error("nothing to optimize in process {pid}: {why}")]
    NothingHot {
        /// The target.
        pid: Pid,
        /// What was observed.
        why: String,
    },
    /// The cap on clone memory is reached.
    #[error("process {pid} holds {mapped} bytes of clones already; the cap is {cap}")]
    MemoryCap {
        /// The target.
        pid: Pid,
        /// Bytes mapped by earlier generations.
        mapped: u64,
        /// The cap in bytes.
        cap: u64,
    },
    /// The target's control groups have no room for clones, or for huge pages.
    #[error("process {pid} has {free} bytes left of the memory limit of {}, and {need} may be needed", group.display())]
    MemoryLimit {
        /// The target.
        pid: Pid,
        /// The control group's folder.
        group: PathBuf,
        /// Bytes that the group may still use.
        free: u64,
        /// Bytes that may be needed.
        need: u64,
    },
    /// The target holds no clones.
    #[error("process {pid} holds no clones")]
    NotInstalled {
        /// The target.
        pid: Pid,
    },
    /// The target holds no such generation, or not all of it.
    #[error("process {pid} holds no generation {generation}; its generations: {}", known.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    NoSuchGeneration {
        /// The target.
        pid: Pid,
        /// The given generation.
        generation: u32,
        /// The generations that it holds.
        known: Vec<u32>,
    },
    /// Another command undid, redid or rebuilt meanwhile.
    #[error("another command has changed process {pid} meanwhile; the process stays as that command left it")]
    Changed {
        /// The target.
        pid: Pid,
    },
    /// Some redirects could not be removed.
    #[error("{left} redirect{} of process {pid} could not be removed", if *left == 1 { "" } else { "s" })]
    UndoIncomplete {
        /// The target.
        pid: Pid,
        /// How many remain.
        left: usize,
    },
    /// A file could not be read or written.
    #[error("cannot use the file {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A page could not be created.
    #[error("cannot create the page: {0}")]
    Page(String),
    /// A file is not a profile.
    #[error("{}: {source}", path.display())]
    ProfileText {
        /// Its path.
        path: PathBuf,
        /// The place and kind of the error.
        source: profile::ProfileError,
    },
    /// A file is not a core, or not a complete core.
    #[error("{}: {what}", path.display())]
    Core {
        /// Its path.
        path: PathBuf,
        /// What is wrong with the file.
        what: &'static str,
    },
    /// A file is not a capture, or not a complete one.
    #[error("{} {what}", path.display())]
    CaptureFile {
        /// Its path.
        path: PathBuf,
        /// What is wrong with the file.
        what: &'static str,
    },
    /// The core is of a process that whet had not touched.
    #[error("the process of {} held no clones", path.display())]
    NotInCore {
        /// The core's path.
        path: PathBuf,
    },
    /// The last optimization had no counts.
    #[error("process {pid} holds no profile: its clones are laid out at random, or by an older whet")]
    NoProfile {
        /// The target.
        pid: Pid,
    },
    /// The profile is of another program.
    #[error("the profile does not fit process {pid}: {why}")]
    ProfileUnfit {
        /// The target.
        pid: Pid,
        /// What does not fit.
        why: String,
    },
    /// A profile lacks the module, or has more than one module of this name.
    #[error(
        "the profile has {} module {}; its modules: {}",
        if *several { "more than one" } else { "no" },
        name.as_deref().map_or_else(|| "of the program".to_owned(), |n| format!("{n:?}")),
        known.join(", ")
    )]
    NoSuchModule {
        /// The name that was given; `None` stands for the program.
        name: Option<String>,
        /// True if more than one module fits.
        several: bool,
        /// The modules of the profile.
        known: Vec<String>,
    },
    /// A command could not be started.
    #[error("cannot run {program}")]
    Spawn {
        /// The program.
        program: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// More than one function has the given name.
    #[error("{found} functions of process {pid} match {name:?}:\n  {}{}", some.join("\n  "), if some.len() < *found { "\n  ..." } else { "" })]
    SeveralFunctions {
        /// The target.
        pid: Pid,
        /// The given name.
        name: String,
        /// How many functions have the name.
        found: usize,
        /// Some of these functions: address and name.
        some: Vec<String>,
    },
    /// No function has the given name.
    #[error("no function {name:?} in process {pid}")]
    NoSuchFunction {
        /// The target.
        pid: Pid,
        /// The given name.
        name: String,
    },
}

/// Exit codes: part of the command line's stable interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitCode {
    /// Success.
    Ok = 0,
    /// A defect of whet.
    Bug = 1,
    /// The command line could not be understood.
    Usage = 2,
    /// No such process (or function).
    NotFound = 3,
    /// Not permitted.
    Permission = 4,
    /// whet leaves the target alone.
    Refused = 5,
    /// Try again: threads did not stop, another whet is working on the target, or something was mapped at each
    /// place tried.
    Busy = 6,
    /// Nothing is hot, or nothing can be undone.
    Nothing = 7,
    /// Code differs from the file and the journal.
    VerifyFailed = 8,
    /// Redirects remain that should be gone.
    UndoFailed = 9,
    /// The target ended during the command.
    Gone = 10,
    /// A signal interrupted the command.
    Interrupted = 11,
    /// No daemon runs.
    NoDaemon = 12,
}

/// Returns an error and its causes, one after the other. Leaves out causes that the text before already
/// contains.
#[must_use]
pub fn with_causes(e: &dyn std::error::Error) -> String {
    let mut message = e.to_string();
    let mut cause = e.source();
    while let Some(c) = cause {
        let text = c.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = c.source();
    }
    message
}

impl Error {
    /// Returns the process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        use ExitCode as X;
        match self {
            Error::Tracee(e)
            | Error::Stop(tracee::StopError::Failed(e))
            | Error::Splice(splice::Error::Tracee(e) | splice::Error::Stop(tracee::StopError::Failed(e))) => {
                tracee_code(e).1
            }
            Error::Stop(_)
            | Error::NotMoved { passes: true, .. }
            | Error::Locked { .. }
            | Error::Changed { .. }
            | Error::Splice(
                splice::Error::Stop(_) | splice::Error::NotAlone | splice::Error::PlaceTaken(_),
            ) => X::Busy,
            Error::Image(_)
            | Error::Unsupported { .. }
            | Error::NotMoved { passes: false, .. }
            | Error::MemoryCap { .. }
            | Error::MemoryLimit { .. } => X::Refused,
            Error::Perf(perf::Error::Gone { .. }) => X::Gone,
            Error::Interrupted { .. } => X::Interrupted,
            Error::Perf(_) => X::Permission,
            Error::Splice(
                splice::Error::NoRoom(_)
                | splice::Error::Journal { .. }
                | splice::Error::NewerJournal(_)
                | splice::Error::TooManyCaches(_)
                | splice::Error::MapDenied { .. },
            ) => X::Refused,
            Error::Splice(_) | Error::Build(_) | Error::Page(_) | Error::LockFile { .. } => X::Bug,
            Error::NothingHot { .. }
            | Error::NoSharedMemory { .. }
            | Error::NotInstalled { .. }
            | Error::NotInCore { .. }
            | Error::NoProfile { .. }
            | Error::ProfileUnfit { .. } => X::Nothing,
            Error::ProfileText { .. }
            | Error::NoSuchModule { .. }
            | Error::Core { .. }
            | Error::CaptureFile { .. }
            | Error::SeveralFunctions { .. } => X::Usage,
            Error::File { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => X::NotFound,
                std::io::ErrorKind::PermissionDenied => X::Permission,
                _ => X::Usage,
            },
            Error::UndoIncomplete { .. } => X::UndoFailed,
            Error::NoSuchFunction { .. } | Error::NoSuchGeneration { .. } | Error::Spawn { .. } => {
                X::NotFound
            }
        }
    }

    /// Returns a stable name of the cause, for JSON.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Tracee(e)
            | Error::Stop(tracee::StopError::Failed(e))
            | Error::Splice(splice::Error::Tracee(e) | splice::Error::Stop(tracee::StopError::Failed(e))) => {
                tracee_code(e).0
            }
            Error::Stop(_)
            | Error::Splice(
                splice::Error::Stop(_) | splice::Error::NotAlone | splice::Error::PlaceTaken(_),
            ) => "busy",
            Error::Image(_) => "unsupported_image",
            Error::Perf(perf::Error::Gone { .. }) => "gone",
            Error::Interrupted { .. } => "interrupted",
            Error::Perf(_) => "no_sampling",
            Error::Splice(splice::Error::NoRoom(_)) => "no_room",
            Error::Splice(splice::Error::Journal { .. }) => "unknown_journal",
            Error::Splice(splice::Error::NewerJournal(_)) => "newer_journal",
            Error::Splice(splice::Error::TooManyCaches(_)) => "too_many_caches",
            Error::Splice(splice::Error::MapDenied { .. }) => "map_denied",
            Error::Splice(_) => "install_failed",
            Error::Build(_) => "build_failed",
            Error::Page(_) => "page",
            Error::Locked { .. } => "locked",
            Error::Changed { .. } => "changed",
            Error::LockFile { .. } => "lock_file",
            Error::Unsupported { code, .. } | Error::NotMoved { code, .. } => code,
            Error::NothingHot { .. } => "nothing_hot",
            Error::NoSharedMemory { .. } => "no_shared_memory",
            Error::MemoryCap { .. } => "memory_cap",
            Error::MemoryLimit { .. } => "memory_limit",
            Error::NotInstalled { .. } => "not_installed",
            Error::UndoIncomplete { .. } => "undo_incomplete",
            Error::NoSuchFunction { .. } => "no_such_function",
            Error::NoSuchGeneration { .. } => "no_such_generation",
            Error::SeveralFunctions { .. } => "several_functions",
            Error::Spawn { .. } => "cannot_run",
            Error::File { .. } => "file",
            Error::ProfileText { .. } => "no_profile_file",
            Error::NoProfile { .. } => "no_profile",
            Error::ProfileUnfit { .. } => "profile_unfit",
            Error::NoSuchModule { .. } => "no_such_module",
            Error::Core { .. } => "no_core_file",
            Error::CaptureFile { .. } => "no_capture_file",
            Error::NotInCore { .. } => "not_installed",
        }
    }

    /// Returns what the operator can do next.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Error::Tracee(e)
            | Error::Stop(tracee::StopError::Failed(e))
            | Error::Splice(splice::Error::Tracee(e) | splice::Error::Stop(tracee::StopError::Failed(e))) => {
                tracee_code(e).2.to_owned()
            }
            Error::Stop(e) | Error::Splice(splice::Error::Stop(e)) if e.is_starved() => {
                "try again when the host has less to do; with CAP_SYS_NICE, which root has, whet lends such threads its real-time priority"
                    .to_owned()
            }
            Error::Stop(_) | Error::Splice(splice::Error::Stop(_)) => {
                "try again in a moment; a thread in an uninterruptible wait (state D) delays the stop"
                    .to_owned()
            }
            Error::Locked { .. } => "wait until the other whet is done".to_owned(),
            Error::Changed { .. } => "see `whet status`; try again when no other command works on it".to_owned(),
            Error::Interrupted { .. } => "the target runs as it did before".to_owned(),
            Error::MemoryCap { .. } | Error::Splice(splice::Error::TooManyCaches(_)) => {
                "rebuild without --shuffle, --profile and --only: an earlier generation is used again; or restart the target"
                    .to_owned()
            }
            Error::MemoryLimit { .. } => {
                "raise that limit (systemd: MemoryMax=, MemoryHigh=), or reduce the memory that the process uses".to_owned()
            }
            Error::Splice(splice::Error::PlaceTaken(_)) => {
                "no clones were put in force, as something was mapped at each place tried: try again".to_owned()
            }
            Error::Splice(splice::Error::MapDenied { .. }) => {
                "nothing was changed; its limits (RLIMIT_AS, RLIMIT_MEMLOCK) or a security module (execmem) forbid it"
                    .to_owned()
            }
            Error::NothingHot { .. } => "put the target under its usual load and try again".to_owned(),
            Error::NoSharedMemory { .. } => {
                "only memory that processes share is moved, such as PostgreSQL's shared buffers".to_owned()
            }
            Error::NotMoved { .. } => "see RUNBOOK.md, \"Shared memory in huge pages\"".to_owned(),
            Error::NotInstalled { .. } => "run `whet optimize PID` first".to_owned(),
            Error::UndoIncomplete { pid, .. } => {
                format!("run `whet undo {pid}` again, then `whet verify {pid}`")
            }
            Error::Perf(perf::Error::Gone { .. }) => GONE.2.to_owned(),
            Error::Perf(_) => rights("run as root, or see `whet doctor`").to_owned(),
            Error::NoSuchGeneration { .. } => {
                "each `whet optimize` of a process makes a generation and prints its number".to_owned()
            }
            Error::NoSuchFunction { .. } => "names and addresses are listed by `whet explain PID`".to_owned(),
            Error::SeveralFunctions { .. } => "give more of the name, or one of these addresses".to_owned(),
            Error::Spawn { .. } => "check the command's name and its permissions".to_owned(),
            Error::File { .. } => "check its path and its permissions".to_owned(),
            Error::ProfileText { .. } => {
                "give a file that `whet profile export` or `whet profile import` has written".to_owned()
            }
            Error::Core { .. } => {
                "give a whole core file, unpacked; see coredump_filter in core(5) for what is in it".to_owned()
            }
            Error::CaptureFile { .. } => "give a whole file that `whet capture` of this version has written".to_owned(),
            Error::NotInCore { .. } => {
                "open it with gdb as it is; if the process was optimized, its anonymous memory is missing (coredump_filter)"
                    .to_owned()
            }
            Error::Splice(splice::Error::NewerJournal(_)) => {
                "use the newer whet, or only undo: `whet undo PID`".to_owned()
            }
            Error::NoProfile { pid } => format!("run `whet optimize {pid}` without --shuffle first"),
            Error::ProfileUnfit { .. } => {
                "optimize without --profile, then `whet profile export` of this build".to_owned()
            }
            Error::NoSuchModule { .. } => {
                "choose one by --module; `whet profile show FILE` lists them".to_owned()
            }
            Error::Unsupported { .. }
            | Error::Image(_)
            | Error::Splice(splice::Error::NoRoom(_) | splice::Error::Journal { .. }) => {
                "nothing was changed; see RUNBOOK.md, \"What whet leaves alone\"".to_owned()
            }
            Error::Page(_) => "nothing was written; please report this".to_owned(),
            Error::LockFile { .. } => "the target was not touched; free space there, then try again".to_owned(),
            Error::Splice(_) | Error::Build(_) => {
                "no redirect is half written: `whet verify PID` lists what is in place; please report this"
                    .to_owned()
            }
        }
    }
}

const GONE: (&str, ExitCode, &str) =
    ("gone", ExitCode::Gone, "the process has ended or become another program");

/// Returns the next step where a permission is missing. For root, the text is about capabilities, since
/// becoming root cannot help.
#[must_use]
pub fn rights(for_others: &'static str) -> &'static str {
    match is_root() {
        true => "give whet the capabilities of root (see `whet doctor`), or run it outside of the container",
        false => for_others,
    }
}

/// Returns code, exit code and next step of an error of `tracee`.
fn tracee_code(e: &tracee::Error) -> (&'static str, ExitCode, &'static str) {
    use ExitCode as X;
    use tracee::Error as E;
    match e {
        E::NoSuchProcess(_) => ("no_such_process", X::NotFound, "check the pid; see `pgrep -a NAME`"),
        E::NotAProcess(..) => ("not_a_process", X::NotFound, "give the process's own pid"),
        E::Gone(_) | E::Exec(_) => GONE,
        E::Ending(_) => ("exiting", X::Refused, "the process is ending by itself"),
        E::ThreadGone(_) => ("busy", X::Busy, "try again"),
        E::NoThread(_) => ("busy", X::Busy, "try again in a moment"),
        E::NoReturnPath(_) | E::NoSyscallInstruction(_) => {
            ("no_return_path", X::Refused, "nothing was changed; see RUNBOOK.md, \"What whet leaves alone\"")
        }
        E::Itself(_) => ("itself", X::Refused, "give another process's pid"),
        E::KernelThread { .. } => ("kernel_thread", X::Refused, "kernel threads have no user code"),
        E::TracedByWhet { .. } => ("traced_by_whet", X::Busy, "try again in a moment"),
        E::TracerEnding { .. } => ("tracer_ending", X::Busy, "try again in a moment"),
        E::AlreadyTraced { .. } => {
            ("already_traced", X::Refused, "detach the debugger or tracer, then try again")
        }
        E::SharesMemory { .. } => ("shares_memory", X::Refused, "end the process that shares its memory"),
        E::JobStopped(_) => ("stopped", X::Refused, "continue it (kill -CONT PID), then try again"),
        E::SeccompStrict(_) => ("seccomp_strict", X::Refused, "nothing can be done for such a process"),
        E::SeccompFilter { .. } => {
            let next = match is_root() {
                true => "run whet outside of containers and of any sandbox with system call filters",
                false => "run whet as root, outside any sandbox with system call filters",
            };
            ("seccomp_filter", X::Refused, next)
        }
        E::NotX86_64 { .. } => ("not_x86_64", X::Refused, "only 64-bit x86 programs are supported"),
        E::NoPermission { .. } => {
            ("not_permitted", X::Permission, rights("run as root, or see `whet doctor`"))
        }
        _ => ("tracee", X::Bug, "`whet verify PID` lists what is in place"),
    }
}
