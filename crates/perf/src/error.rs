//! Errors of sampling and counting, with advice.

use crate::record::Malformed;
use std::io;
use std::path::PathBuf;

/// The reason why sampling is not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel forbids this user to observe the process.
    #[error(
        "not allowed to sample the process (kernel.perf_event_paranoid is {}): that takes CAP_PERFMON and \
         CAP_SYS_PTRACE, which root has; in a container the seccomp profile must allow perf_event_open",
        paranoid.map_or_else(|| "unknown".to_owned(), |p| p.to_string())
    )]
    Denied {
        /// The value of `kernel.perf_event_paranoid`, if it could be read.
        paranoid: Option<i32>,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel has no such system call, or no clock event.
    #[error("this kernel offers no sampling events: it must be built with CONFIG_PERF_EVENTS")]
    Unavailable(#[source] io::Error),
    /// The process has no threads (any more).
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// One event per thread and CPU needs more file descriptors than allowed.
    #[error(
        "sampling needs {needed} file descriptors (one for each thread and CPU), the hard limit is {limit}: raise it \
         (ulimit -Hn, LimitNOFILE= in the unit)"
    )]
    TooManyFiles {
        /// How many events were needed.
        needed: usize,
        /// The hard limit of this process.
        limit: u64,
    },
    /// The kernel refused an event for another reason.
    #[error("cannot open a sampling event for thread {tid} on CPU {cpu}")]
    Open {
        /// The thread.
        tid: i32,
        /// The CPU.
        cpu: i32,
        /// The kernel's error.
        source: io::Error,
    },
    /// An event exists but cannot be used as needed.
    #[error("cannot {action} a sampling event")]
    Control {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// No buffer could be mapped, not even of one page.
    #[error("cannot map a sample buffer: raise kernel.perf_event_mlock_kb or give whet CAP_IPC_LOCK")]
    Map(#[source] io::Error),
    /// A file that lists what can be sampled cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A rate outside of 1 to 100,000 samples per second.
    #[error("{hz} samples per second are out of range: choose 1 to 100000")]
    BadRate {
        /// The requested rate.
        hz: u32,
    },
    /// The kernel wrote records that cannot be read. A bug on either side.
    #[error("the kernel's sample buffer cannot be read")]
    BadRecord(#[from] Malformed),
}
