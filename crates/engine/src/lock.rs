//! One whet at a time on a target.

use crate::Error;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use tracee::Process;

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
        let name = format!("whet-{}-{}.lock", process.pid().0, process.start_time()?);
        let mut failed = None;
        for folder in folders() {
            let path = folder.join(&name);
            match Self::open(process, path.clone()) {
                Err(Error::LockFile { path, source }) => failed = Some(Error::LockFile { path, source }),
                other => return other,
            }
        }
        Err(failed.unwrap_or(Error::Locked { pid: process.pid() }))
    }

    fn open(process: &Process, path: PathBuf) -> Result<Self, Error> {
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

/// Where lock files may lie, best first. Not where anybody may write: who holds the file's lock keeps whet out, so root's
/// lies in a folder of its own.
fn folders() -> Vec<PathBuf> {
    let own = Path::new("/run/whet");
    let made = DirBuilder::new().mode(0o700).create(own);
    let usable = made.is_ok() || std::fs::metadata(own).is_ok_and(|m| m.is_dir());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    usable.then(|| own.to_owned()).into_iter().chain(runtime).chain([std::env::temp_dir()]).collect()
}
