//! Why there is no answer.

use engine::{ExitCode, Pid};

/// What stopped a comparison. The target is as it was found, unless the error itself says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target could not be looked at or switched.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The target's work could not be read.
    #[error("cannot read {what}")]
    Work {
        /// What was to be read.
        what: String,
        /// Why.
        source: WorkError,
    },
    /// A file of the kernel's could not be read or understood.
    #[error("cannot read {path}")]
    Kernel {
        /// The file.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The process that would restore the target could not be started: nothing was begun.
    #[error("cannot start the process that restores {pid} should this one be killed")]
    Guard {
        /// The target.
        pid: Pid,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The target could not be brought back to the state in which it was found.
    #[error("process {pid} was found {found} and could not be brought back to that")]
    NotRestored {
        /// The target.
        pid: Pid,
        /// The word of the state.
        found: &'static str,
        /// Why not.
        source: engine::Error,
    },
}

/// Why a count of work could not be read, as the kind of work has it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct WorkError {
    /// The cause, for people.
    pub message: String,
    /// What can be done about it.
    pub next: String,
    /// How a command should end.
    pub exit: ExitCode,
}

impl Error {
    /// The process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Error::Engine(e) => e.exit_code(),
            Error::Work { source, .. } => source.exit,
            Error::Kernel { .. } => ExitCode::Permission,
            Error::Guard { .. } => ExitCode::Bug,
            Error::NotRestored { source: engine::Error::Tracee(tracee::Error::Gone(_)), .. } => {
                ExitCode::Gone
            }
            Error::NotRestored { .. } => ExitCode::UndoFailed,
        }
    }

    /// A stable name of the cause, for JSON.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Engine(e) => e.code(),
            Error::Work { .. } => "work",
            Error::Kernel { .. } => "kernel_file",
            Error::Guard { .. } => "no_guard",
            Error::NotRestored { .. } => "not_restored",
        }
    }

    /// What the operator can do next.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Error::Engine(e) => e.next_step(),
            Error::Work { source, .. } => source.next.clone(),
            Error::Kernel { .. } => engine::rights("run as root, or see `whet doctor`").to_owned(),
            Error::Guard { .. } => {
                "nothing was changed; free memory or process slots, then try again".to_owned()
            }
            Error::NotRestored { pid, found, .. } => {
                let word = if *found == "undone" { "undo" } else { "redo" };
                format!("either state is sound; run `whet {word} {pid}`")
            }
        }
    }
}
