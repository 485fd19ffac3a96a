//! System calls: work that can be counted without the program's help.
//!
//! As long as the kind of load does not change, their number is in proportion to a program's work: a server
//! reads a request, answers it, and waits. Counting costs every system call of the host some tens of
//! nanoseconds, on both sides alike.

use super::Work;
use crate::WorkError;
use engine::{ExitCode, Pid};
use perf::{Counted, Counter};
use std::fs;

/// A counter of the system calls of all threads of a process, later threads included. It counts until it is
/// dropped.
#[derive(Debug)]
pub struct SystemCalls {
    pid: Pid,
    /// `None` if only reads and writes can be counted.
    counter: Option<Counter>,
}

impl SystemCalls {
    /// Starts counting. If the kernel's tracepoint is not available, the kernel's counts of reads and writes
    /// of files and pipes are used instead. [`Work::kind`] names which is used. These counts do not include
    /// sockets that are read by `recv`.
    ///
    /// # Errors
    /// [`WorkError`] if neither is available, or if the process has ended.
    pub fn open(pid: Pid) -> Result<Self, WorkError> {
        let mut this = match Counter::open(pid.0, Counted::SystemCalls) {
            Ok(counter) => Self { pid, counter: Some(counter) },
            Err(perf::Error::Gone { .. }) => return Err(gone(pid)),
            Err(_) => Self { pid, counter: None },
        };
        this.read().map(|_| this)
    }
}

impl Work for SystemCalls {
    fn what(&self) -> String {
        match self.counter {
            Some(_) => "system calls",
            None => "reads and writes of files and pipes",
        }
        .to_owned()
    }

    fn kind(&self) -> &'static str {
        if self.counter.is_some() { "system_calls" } else { "reads_and_writes" }
    }

    fn read(&mut self) -> Result<f64, WorkError> {
        match &mut self.counter {
            Some(counter) => counter.read().map(|c| c.counted as f64).map_err(|e| WorkError {
                message: e.to_string(),
                next: "try again".to_owned(),
                exit: ExitCode::Bug,
            }),
            None => reads_and_writes(self.pid),
        }
    }
}

/// Returns the number of reads and writes so far, from /proc/PID/io (see proc_pid_io(5)).
fn reads_and_writes(pid: Pid) -> Result<f64, WorkError> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => gone(pid),
        _ => WorkError {
            message: format!("neither the tracepoint of system calls nor /proc/{pid}/io can be read: {e}"),
            next: engine::rights("run as root, or count work by --mysql or --command").to_owned(),
            exit: ExitCode::Permission,
        },
    })?;
    Ok(sum_of_calls(&text))
}

fn sum_of_calls(io: &str) -> f64 {
    let calls = io.lines().filter_map(|l| l.strip_prefix("syscr:").or_else(|| l.strip_prefix("syscw:")));
    calls.filter_map(|n| n.trim().parse::<f64>().ok()).sum()
}

fn gone(pid: Pid) -> WorkError {
    WorkError {
        message: format!("process {pid} has ended"),
        next: "measure it while it runs".to_owned(),
        exit: ExitCode::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_counted_by_the_kernel() {
        let io = "rchar: 99\nwchar: 7\nsyscr: 10\nsyscw: 3\nread_bytes: 5\n";
        assert_eq!(sum_of_calls(io), 13.0);
        assert_eq!(sum_of_calls(""), 0.0);
        let me = Pid(std::process::id().cast_signed());
        let before = reads_and_writes(me).unwrap();
        let after = (0..3).map(|_| reads_and_writes(me).unwrap()).next_back().unwrap();
        assert!(after > before && before > 0.0, "{before} {after}");
        assert_eq!(reads_and_writes(Pid(i32::MAX)).unwrap_err().exit, ExitCode::Gone);
    }
}
