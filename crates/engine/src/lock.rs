//! One whet at a time on a target.

use crate::Error;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tracee::{Pid, Process};

/// Held while a target is worked on; the kernel lets go of it when its holder dies, however it dies. The file goes with
/// its holder, unless that was killed.
#[derive(Debug)]
pub struct TargetLock {
    _file: File,
    path: PathBuf,
}

impl TargetLock {
    /// Takes the lock of one target.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it, [`Error::LockFile`] where no lock file can be made.
    pub fn take(process: &Process) -> Result<Self, Error> {
        let path = path_of(process.pid(), process.start_time()?);
        let io = |source| Error::LockFile { path: path.clone(), source };
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
            match file.try_lock() {
                // A file that its last holder removed after we opened it keeps nobody out.
                Ok(()) if file.metadata().map_err(io)?.nlink() == 0 => {}
                Ok(()) => return Ok(Self { _file: file, path }),
                Err(TryLockError::WouldBlock) => return Err(Error::Locked { pid: process.pid() }),
                Err(TryLockError::Error(e)) => return Err(io(e)),
            }
        }
    }
}

impl Drop for TargetLock {
    fn drop(&mut self) {
        // Still locked. Should it not work, an empty file is left.
        let _ = std::fs::remove_file(&self.path);
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
