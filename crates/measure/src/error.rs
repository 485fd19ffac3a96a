//! The errors of a comparison.

use engine::{ExitCode, Pid};

/// The reason why a comparison ended early. The target is as it was found, unless the error itself says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target could not be read or switched.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Both sides of a comparison of generations are the same one.
    #[error("generation {0} cannot be compared with itself")]
    SameGeneration(u32),
    /// The target's work could not be read.
    #[error("cannot read {what}")]
    Work {
        /// A description of the work.
        what: String,
        /// The cause.
        source: WorkError,
    },
    /// A file of the kernel could not be read or parsed.
    #[error("cannot read {path}")]
    Kernel {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The process that would restore the target could not be started. Nothing was changed.
    #[error("cannot start the process that restores {pid} should this one be killed")]
    Guard {
        /// The target.
        pid: Pid,
        /// The system's error.
        source: std::io::Error,
    },
    /// The target could not be brought back to the state in which it was found.
    #[error("process {pid} was found {found} and could not be brought back to that")]
    NotRestored {
        /// The target.
        pid: Pid,
        /// The name of the state in which it was found.
        found: &'static str,
        /// The cause.
        source: engine::Error,
    },
}

/// An error from reading a count of work, described by the kind of work.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct WorkError {
    /// The cause, for display.
    pub message: String,
    /// The operator's next step.
    pub next: String,
    /// The exit code of the command.
    pub exit: ExitCode,
}

impl Error {
    /// Returns the process's exit code.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Error::Engine(e) => e.exit_code(),
            Error::SameGeneration(_) => ExitCode::Usage,
            Error::Work { source, .. } => source.exit,
            Error::Kernel { .. } => ExitCode::Permission,
            Error::Guard { .. } => ExitCode::Bug,
            Error::NotRestored { source: engine::Error::Tracee(tracee::Error::Gone(_)), .. } => {
                ExitCode::Gone
            }
            Error::NotRestored { .. } => ExitCode::UndoFailed,
        }
    }

    /// Returns a stable name of the cause, for JSON.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Engine(e) => e.code(),
            Error::SameGeneration(_) => "same_generation",
            Error::Work { .. } => "work",
            Error::Kernel { .. } => "kernel_file",
            Error::Guard { .. } => "no_guard",
            Error::NotRestored { .. } => "not_restored",
        }
    }

    /// Returns the operator's next step.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Error::Engine(e) => e.next_step(),
            Error::SameGeneration(_) => {
                "give two different generations; each `whet optimize` of the process makes one".to_owned()
            }
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
