//! One whet at a time on a target.

use crate::Error;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use tracee::{Pid, Process};

/// Held while a target is worked on; the kernel lets go of it when its holder dies, however it dies.
#[derive(Debug)]
pub struct TargetLock {
    _file: File,
}

impl TargetLock {
    /// Takes the lock of one target.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it, [`Error::LockFile`] where no lock file can be made.
    pub fn take(process: &Process) -> Result<Self, Error> {
        let path = path_of(process.pid(), process.start_time()?);
        let io = |source| Error::LockFile { path: path.clone(), source };
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { pid: process.pid() }),
            Err(TryLockError::Error(e)) => Err(io(e)),
        }
    }
}

/// A name that no later process with the same pid shares.
fn path_of(pid: Pid, start_time: u64) -> PathBuf {
    let dir = ["/run/lock", "/run", "/tmp"].map(Path::new).into_iter().find(|d| writable(d));
    dir.unwrap_or(Path::new("/tmp")).join(format!("whet-{}-{start_time}.lock", pid.0))
}

fn writable(dir: &Path) -> bool {
    std::fs::metadata(dir).is_ok_and(|m| m.is_dir() && !m.permissions().readonly())
}
