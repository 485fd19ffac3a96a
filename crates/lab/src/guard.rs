//! The hidden subcommand that every child is started through: it binds itself to the lab's life and to its CPUs, then becomes the child.
//!
//! Both are set by the child itself, before it becomes the program that is wanted: what other languages do between fork and exec
//! would be unsafe code here.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes `command`; comes back only with the reason why not.
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
    // KILL, since what is left behind is a server that nobody would end, on data that nobody needs.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The lab may have ended before that was in force.
    if getppid().map(Pid::as_raw_nonzero).is_none_or(|p| p.get() != parent) {
        return Err(io::Error::other("the lab has ended"));
    }
    if !cpus.is_empty() {
        sched_setaffinity(None, &set_of(cpus))?;
    }
    Ok(())
}

/// As the kernel takes it.
pub fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|c| **c < CpuSet::MAX_CPU) {
        set.set(*cpu);
    }
    set
}
