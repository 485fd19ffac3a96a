//! One whet at a time on a target.

use crate::Error;
use crate::optimize::Progress;
use crate::sign::Sign;
use std::fs::File;
use std::time::{Duration, Instant};
use tracee::{Pid, Process};

/// A comparison or an `undo` is done with a target in milliseconds: nobody is sent away for those.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is asked again.
const PAUSE: Duration = Duration::from_millis(5);

/// Held while a target is worked on, whoever works on it: its owner and root see the same one. The kernel lets go of it when
/// its holder dies, however it dies.
#[derive(Debug)]
pub struct TargetLock {
    _memory: File,
    /// What tells others of the work; where no such file can be made they are not told.
    sign: Option<Sign>,
}

impl TargetLock {
    /// Opens a process that can be worked on, and takes its lock.
    ///
    /// # Errors
    /// As [`TargetLock::take`].
    pub fn open(pid: Pid) -> Result<(Process, Self), Error> {
        // What is wrong with it is told before that it cannot be opened.
        is_traced(pid)?;
        let process = Process::open(pid)?;
        let lock = Self::take(&process)?;
        Ok((process, lock))
    }

    /// Takes the lock of a process, if that can be worked on.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it and keeps it; as [`tracee::preflight`]; as [`Process::lock`] where there is
    /// none to be had.
    pub fn take(process: &Process) -> Result<Self, Error> {
        let pid = process.pid();
        let traced = is_traced(pid)?;
        let begun = Instant::now();
        let memory = loop {
            match process.lock()? {
                Some(memory) => break memory,
                None if begun.elapsed() > PATIENCE => return Err(Error::Locked { pid }),
                None => std::thread::sleep(PAUSE),
            }
        };
        if traced {
            // It was no whet that had the lock, or it is done.
            tracee::preflight(pid)?;
        }
        Ok(Self { _memory: memory, sign: Sign::put(process, "lock").ok() })
    }

    /// Says what is being done, for `status`.
    pub fn tell(&mut self, progress: &Progress) {
        if let Some(sign) = &mut self.sign {
            sign.tell(progress);
        }
    }
}

/// Whether somebody traces a process that can be worked on otherwise: it may be a whet that has stopped it for a moment.
fn is_traced(pid: Pid) -> Result<bool, Error> {
    match tracee::preflight(pid) {
        Ok(_) => Ok(false),
        Err(tracee::Error::AlreadyTraced { .. }) => Ok(true),
        Err(e) => Err(e.into()),
    }
}
