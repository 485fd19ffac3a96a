//! The hidden subcommand that starts every child. It binds itself to the lab's life and to its CPUs, then
//! becomes the child.
//!
//! The process sets both itself, before it executes the program. To set them between fork and exec would need
//! unsafe code here.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process with `command`. Returns only the reason of a failure.
pub fn become_child(parent: i32, cpus: &[usize], command: &[OsString]) -> io::Error {
    if let Err(e) = prepare(parent, cpus) {
        return e;
    }
    let Some((program, arguments)) = command.split_first() else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    Command::new(program).args(arguments).exec()
}

fn prepare(parent: i32, cpus: &[usize]) -> io::Result<()> {
    // SIGKILL, since neither a server that is left behind nor its data has a use.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The lab may have ended before that was in force, so its pid is compared.
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|p| p.get() != parent) {
        return Err(io::Error::other("the lab has ended"));
    }
    if !cpus.is_empty() {
        sched_setaffinity(None, &set_of(cpus))?;
    }
    Ok(())
}

/// Returns the set of CPUs in the kernel's form.
pub fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|c| **c < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    set
}
