//! One whet at a time on a target.

use crate::Error;
use std::fs::File;
use tracee::Process;

/// Held while a target is worked on, whoever works on it: its owner and root see the same one.
#[derive(Debug)]
pub struct TargetLock {
    _file: File,
}

impl TargetLock {
    /// Takes the lock of one target.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it; as [`Process::lock`] where there is none to be had.
    pub fn take(process: &Process) -> Result<Self, Error> {
        let file = process.lock()?.ok_or(Error::Locked { pid: process.pid() })?;
        Ok(Self { _file: file })
    }
}
