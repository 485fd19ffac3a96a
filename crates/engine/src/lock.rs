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
    file: File,
    path: PathBuf,
}

impl TargetLock {
    /// Takes the lock of one target.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it, [`Error::LockFile`] where no lock file can be made.
    pub fn take(process: &Process) -> Result<Self, Error> {
        Self::named(process, &file_name(process, "lock")?)
    }

    fn named(process: &Process, name: &str) -> Result<Self, Error> {
        let mut failed = None;
        for folder in folders() {
            let path = folder.join(name);
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
                Ok(()) => return Ok(Self { file, path }),
                Err(TryLockError::WouldBlock) => return Err(Error::Locked { pid: process.pid() }),
                Err(TryLockError::Error(e)) => return Err(io(e)),
            }
        }
    }
}

impl Drop for TargetLock {
    fn drop(&mut self) {
        // Still locked. Should it not work, an empty file is left. One that was taken away may have another in its place.
        if self.file.metadata().is_ok_and(|m| m.nlink() > 0) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a comparison, which goes back and forth for a minute, holds instead of the lock: it keeps other comparisons out, but
/// whoever undoes, redoes or optimizes takes it away, and the comparison ends. The file is the claim: it stands while that
/// exists.
#[derive(Debug)]
pub struct Claim {
    file: File,
    path: PathBuf,
    /// Locked against other comparisons; its drop removes the file.
    held: Option<TargetLock>,
}

impl Claim {
    /// Stakes it.
    ///
    /// # Errors
    /// As [`TargetLock::take`]: another comparison is being made.
    pub fn stake(process: &Process) -> Result<Self, Error> {
        let held = TargetLock::named(process, &file_name(process, "claim")?)?;
        let path = held.path.clone();
        let file = held.file.try_clone().map_err(|source| Error::LockFile { path: path.clone(), source })?;
        Ok(Self { file, path, held: Some(held) })
    }

    /// The claim that another process has staked on behalf of this one, to give it up after that process's death.
    ///
    /// # Errors
    /// [`Error::Changed`] where none stands.
    pub fn witness(process: &Process) -> Result<Self, Error> {
        let name = file_name(process, "claim")?;
        let found =
            folders().into_iter().map(|f| f.join(&name)).find_map(|p| Some((File::open(&p).ok()?, p)));
        let (file, path) = found.ok_or(Error::Changed { pid: process.pid() })?;
        Ok(Self { file, path, held: None })
    }

    /// Whether nobody has taken it away.
    pub fn stands(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.nlink() > 0)
    }

    /// Ends it, whoever staked it.
    pub fn give_up(mut self) {
        if self.held.take().is_none() && self.stands() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Takes away whatever claim there is on a target whose lock is held.
    pub fn overrule(process: &Process) {
        let Ok(name) = file_name(process, "claim") else { return };
        for folder in folders() {
            let _ = std::fs::remove_file(folder.join(&name));
        }
    }
}

fn file_name(process: &Process, kind: &str) -> Result<String, Error> {
    Ok(format!("whet-{}-{}.{kind}", process.pid().0, process.start_time()?))
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
