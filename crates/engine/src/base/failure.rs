//! Classifies failures of commands by when another attempt on the same process may succeed.

use crate::base::error::{Error, ExitCode};
use serde::{Deserialize, Serialize};

/// The kind of a failure, by which the daemon decides when to try again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The process has ended, or never was.
    Gone,
    /// Threads did not stop, another whet works on the process, or something was mapped at each place tried.
    Busy,
    /// A signal interrupted the command.
    Interrupted,
    /// No hot code ran that can be cloned.
    NothingHot,
    /// A state of the process or of the host prevents the command and may pass: a debugger, job control, a
    /// process that shares the memory, a limit of memory.
    Hindered,
    /// The program, or the room left in it, is a reason to leave the process alone.
    LeftAlone,
    /// Anything else: a missing permission, a defect.
    Other,
}

impl Failure {
    /// Returns whether the same command may succeed in a moment without any change by the user.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Gone | Self::Busy | Self::Interrupted | Self::NothingHot)
    }

    /// Returns whether the cause lasts as long as the process.
    #[must_use]
    pub fn is_final(self) -> bool {
        self == Self::LeftAlone
    }
}

impl Error {
    /// Returns the kind of the failure.
    #[must_use]
    pub fn failure(&self) -> Failure {
        use tracee::Error as T;
        match self {
            Error::NothingHot { .. } => Failure::NothingHot,
            // Another command has changed the process: its outcome is unknown.
            Error::Changed { .. } => Failure::Other,
            Error::MemoryLimit { .. } | Error::Splice(splice::Error::MapDenied { .. }) => Failure::Hindered,
            Error::Tracee(e)
            | Error::Stop(tracee::StopError::Failed(e))
            | Error::Splice(splice::Error::Tracee(e) | splice::Error::Stop(tracee::StopError::Failed(e)))
                if matches!(
                    e,
                    T::AlreadyTraced { .. } | T::JobStopped(_) | T::Ending(_) | T::SharesMemory { .. }
                ) =>
            {
                Failure::Hindered
            }
            _ => match self.exit_code() {
                ExitCode::NotFound | ExitCode::Gone => Failure::Gone,
                ExitCode::Busy => Failure::Busy,
                ExitCode::Interrupted => Failure::Interrupted,
                ExitCode::Refused => Failure::LeftAlone,
                _ => Failure::Other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracee::Pid;

    #[test]
    fn failures_have_kinds() {
        let pid = Pid(1);
        let of = |e: Error| e.failure();
        assert_eq!(of(Error::Tracee(tracee::Error::Gone(pid))), Failure::Gone);
        assert_eq!(of(Error::Locked { pid }), Failure::Busy);
        assert_eq!(of(Error::Changed { pid }), Failure::Other);
        assert_eq!(of(Error::Interrupted { signal: 15 }), Failure::Interrupted);
        assert_eq!(of(Error::NothingHot { pid, why: String::new() }), Failure::NothingHot);
        assert_eq!(of(Error::Tracee(tracee::Error::JobStopped(pid))), Failure::Hindered);
        assert_eq!(of(Error::Splice(tracee::Error::JobStopped(pid).into())), Failure::Hindered);
        // Another whet and a tracer that ends are gone in a moment; a debugger stays.
        let by = Pid(2);
        let stopped = |e| Error::Splice(splice::Error::Stop(tracee::StopError::Failed(e)));
        assert_eq!(of(Error::Tracee(tracee::Error::TracedByWhet { pid, by })), Failure::Busy);
        assert_eq!(of(stopped(tracee::Error::TracedByWhet { pid, by })), Failure::Busy);
        assert_eq!(of(Error::Tracee(tracee::Error::TracerEnding { pid, by })), Failure::Busy);
        let gdb = tracee::Error::AlreadyTraced { pid, by, comm: "gdb".to_owned() };
        assert_eq!(of(stopped(gdb)), Failure::Hindered);
        let place = addr::AvmaRange::with_len(addr::Avma(4096), 4096);
        assert_eq!(of(Error::Splice(splice::Error::PlaceTaken(place))), Failure::Busy);
        assert_eq!(of(Error::MemoryCap { pid, mapped: 1, cap: 1 }), Failure::LeftAlone);
        assert_eq!(of(Error::NotInstalled { pid }), Failure::Other);
        let kinds = [Failure::Gone, Failure::Busy, Failure::Interrupted, Failure::NothingHot];
        let lasting = [Failure::Hindered, Failure::LeftAlone, Failure::Other];
        assert!(kinds.iter().all(|k| k.is_transient()) && !lasting.iter().any(|k| k.is_transient()));
        assert!(Failure::LeftAlone.is_final() && !Failure::Hindered.is_final() && !Failure::Other.is_final());
    }
}
