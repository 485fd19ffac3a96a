//! Access to a live process: its state, its memory, and stops of its threads.
//!
//! [`Process`] reads and writes a process that is named by its id. [`Preflight`] reports beforehand whether
//! the process can be traced, and if not, why. [`Seized`] → [`Stopped`] stops all threads.
//! [`with_one_stopped`] makes raw system calls in the target itself.
//!
//! A separate thread does all tracing. It lives as long as the [`Seized`] or [`Stopped`] value. When that
//! thread ends, the kernel resumes all its tracees, even tracees that cannot be detached because they are not
//! stopped. So no failure here (an error, a panic, a SIGKILL) leaves the target stopped. If a thread was
//! interrupted and cannot stop yet, the tracing thread stays in the background until all threads are detached
//! in order. It does not stay for a child of this process, because another part of this process may wait for
//! the child.
//!
//! System calls are those of `rustix`. Own `unsafe` calls remain for ptrace, and where `rustix` has no call:
//! `tgkill`, `kcmp`, `process_vm_readv`, `process_madvise`, `cachestat`, `PAGEMAP_SCAN`, scheduling policies, the
//! CPU clock of a process.
//!
//! While a target is seized, no other code in this process may `wait` for it. This includes
//! `std::process::Child::try_wait` of a child of this process: the kernel reports trace stops to any thread
//! of the tracer that waits. Watch a pidfd instead.

mod capacity;
mod clib;
mod collapse;
mod error;
mod finish;
mod give;
mod group;
mod huge_pages;
mod ids;
mod lend;
mod linger;
mod lock;
mod mapped_file;
mod open_file;
mod patience;
mod pieces;
mod preflight;
mod priority;
mod process;
mod ptrace;
mod reaper;
mod regs;
mod remote;
mod rest;
mod restart;
mod return_frame;
mod sealed;
mod seccomp;
mod shared;
mod shared_memory;
mod shelter;
mod slots;
mod status;
mod step;
mod stop;
mod tally;
mod tracer;
mod twin;
mod vfork;
mod watchdog;
mod watched;

pub use capacity::{capacity, host_cpus};
pub use error::{Error, StopError, Stuck};
pub use ids::{Pid, Sig, Tid};
pub use lock::{Lock, lock_holders};
pub use mapped_file::MappedFile;
pub use patience::Patience;
pub use preflight::{Preflight, Seccomp, is_root, preflight};
pub use priority::Raised;
pub use process::{Process, cpu_time_ns, start_time_now, stat_field};
pub use ptrace::kill_self;
pub use regs::Regs;
pub use remote::{Remote, prepare_syscalls, timed_with_one_stopped, with_one_stopped};
pub use sealed::{Content, SealedFile};
pub use shared_memory::{InUse, MemoryFile, SharedMemory};
pub use slots::{FinishingCode, MOST_AREAS};
pub use status::Status;
pub use stop::{Seized, StopReport, Stopped};
pub use tally::{Tally, tally};
pub use twin::{Stepped, Twin, bury, own_cpu};
pub use watched::{MAX_WATCHED, Run, Watched};
