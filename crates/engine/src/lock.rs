//! One whet at a time on a target.

use crate::Error;
use crate::optimize::Progress;
use crate::sign::Sign;
use std::fs::File;
use tracee::Process;

/// Held while a target is worked on, whoever works on it: its owner and root see the same one. The kernel lets go of it when
/// its holder dies, however it dies.
#[derive(Debug)]
pub struct TargetLock {
    _memory: File,
    /// What tells others of the work; where no such file can be made they are not told.
    sign: Option<Sign>,
}

impl TargetLock {
    /// Takes the lock of one target.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it; as [`Process::lock`] where there is none to be had.
    pub fn take(process: &Process) -> Result<Self, Error> {
        let memory = process.lock()?.ok_or(Error::Locked { pid: process.pid() })?;
        Ok(Self { _memory: memory, sign: Sign::put(process, "lock").ok() })
    }

    /// Says what is being done, for `status`.
    pub fn tell(&mut self, progress: &Progress) {
        if let Some(sign) = &mut self.sign {
            sign.tell(progress);
        }
    }
}
