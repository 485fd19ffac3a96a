//! The live process: its state, its memory, and its threads stopped, looked at and let go.
//!
//! You give a process id; it gives a [`Process`] to read and write, a [`Preflight`] that says beforehand whether
//! and why not it can be traced, [`Seized`] → [`Stopped`] for a stop of all threads, and [`with_one_stopped`] for
//! raw system calls run by the target itself.
//!
//! All tracing is done by a thread of its own that lives as long as the [`Seized`] or [`Stopped`] value: the kernel
//! lets every tracee of a thread go on when that thread ends, even those that cannot be detached because they are
//! not stopped. So nothing that happens here (an error, a panic, a SIGKILL) leaves the target standing. Where threads
//! were asked to stop and cannot yet, that thread stays in the background until they are let go in order (not for a
//! child of ours, which somebody may wait for).
//!
//! While a target is seized nobody else in this process may `wait` for it (not even `std::process::Child::try_wait`
//! of a child of ours): the kernel reports trace stops to any thread of the tracer that waits. Watch a pidfd instead.

mod clib;
mod error;
mod finish;
mod group;
mod home;
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
mod regs;
mod remote;
mod rest;
mod restart;
mod seccomp;
mod shared;
mod shelter;
mod slots;
mod status;
mod step;
mod stop;
mod tracer;
mod twin;
mod watchdog;
mod watched;

pub use error::{Error, StopError, Stuck};
pub use ids::{Pid, Sig, Tid};
pub use lock::{Lock, lock_holders};
pub use mapped_file::MappedFile;
pub use patience::Patience;
pub use preflight::{Preflight, Seccomp, is_root, preflight};
pub use priority::Raised;
pub use process::{Process, stat_field};
pub use ptrace::kill_self;
pub use regs::Regs;
pub use remote::{Remote, timed_with_one_stopped, with_one_stopped};
pub use slots::{FinishingCode, MOST_AREAS};
pub use status::Status;
pub use stop::{Seized, StopReport, Stopped};
pub use tracer::TRACER_NAME;
pub use twin::{Stepped, Twin, bury, own_cpu};
pub use watched::{MAX_WATCHED, Run, Watched};
