//! A lock on a process: one whet at a time works on it, also across users and containers.
//!
//! Two files are locked, because neither alone is enough. `/proc/PID/mem` exists on every kernel, and only
//! programs that may trace the process can open it. But each mount of `/proc` (a container's, its host's) has
//! its own inode for it. The file behind a pidfd has one inode for a process everywhere (pidfs, Linux 6.9).
//!
//! The process itself may lock both files. Such a lock is ignored, so no process can keep whet out. Then one
//! protection is left, a rule of the kernel: a thread has one tracer at a time.

use crate::{Error, Pid, Process};
use rustix::fs::fstatfs;
use rustix::process::{PidfdFlags, pidfd_open};
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;

/// The lock, held until it is dropped. The kernel releases it when its holder dies in any way.
#[derive(Debug)]
pub struct Lock {
    /// The files that could be locked.
    _held: Vec<File>,
}

/// The result of locking one file.
enum Tried {
    Held(File),
    /// The process itself holds the lock, or the file does not exist.
    PassedOver,
    /// Another program holds the lock.
    Taken,
}

impl Process {
    /// Locks out other callers of this function for as long as the lock is held. Returns `None` if another
    /// program, not the process itself, holds the lock.
    ///
    /// # Errors
    /// As [`Process::maps_text`].
    pub fn lock(&self) -> Result<Option<Lock>, Error> {
        let memory = File::open(self.memory_file("mem")).map_err(|e| self.file_error("mem", e))?;
        let mut held = Vec::new();
        for file in [Some(memory), self.own_file()].into_iter().flatten() {
            match self.try_lock(file)? {
                Tried::Held(file) => held.push(file),
                Tried::PassedOver => {}
                Tried::Taken => return Ok(None),
            }
        }
        Ok(Some(Lock { _held: held }))
    }

    fn try_lock(&self, file: File) -> Result<Tried, Error> {
        match file.try_lock() {
            Ok(()) => Ok(Tried::Held(file)),
            Err(TryLockError::WouldBlock) => {
                let inode = file.metadata().map_err(|e| self.file_error("mem", e))?.ino();
                let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
                let is_its_own = lock_holders(&locks).any(|held| held == (inode, self.pid()));
                Ok(if is_its_own { Tried::PassedOver } else { Tried::Taken })
            }
            Err(TryLockError::Error(e)) => Err(self.file_error("mem", e)),
        }
    }

    /// Returns the file behind the process's pidfd, which is the same in every namespace. Returns `None` on a
    /// kernel that has one file for all pidfds.
    fn own_file(&self) -> Option<File> {
        const PIDFS: i64 = 0x5049_4446;
        let pidfd = pidfd_open(self.pid().raw()?, PidfdFlags::empty()).ok()?;
        let is_file_of_its_own = fstatfs(&pidfd).is_ok_and(|about| about.f_type == PIDFS);
        // The kernel may have given the id to another process. Its lock would be useless, but harmless.
        (is_file_of_its_own && self.is_alive()).then(|| File::from(pidfd))
    }
}

/// Returns inode and process of each whole-file lock that the text of `/proc/locks` shows as held (proc(5)).
/// Waiters for a lock (`->`) are left out. Files of two file systems may share an inode's number.
pub fn lock_holders(text: &str) -> impl Iterator<Item = (u64, Pid)> + '_ {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let (pid, place) = (words.nth(2)?.parse().ok()?, words.next()?);
        Some((place.rsplit(':').next()?.parse().ok()?, Pid(pid)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn lock_holders_are_parsed() {
        let text = "1: FLOCK  ADVISORY  WRITE 41 00:19:1234 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 42 00:19:1234 0 EOF\n\
                    2: POSIX  ADVISORY  READ 43 fe:01:99 128 128\n3: FLOCK\njunk\n\n";
        assert_eq!(lock_holders(text).collect::<Vec<_>>(), [(1234, Pid(41))]);
    }

    #[test]
    fn one_lock_at_a_time_on_each_file() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(Pid(i32::try_from(child.id()).unwrap())).unwrap();
        let lock = process.lock().unwrap().unwrap();
        assert!(process.lock().unwrap().is_none());
        drop(lock);
        for file in [File::open(process.memory_file("mem")).ok(), process.own_file()].into_iter().flatten() {
            file.lock().unwrap();
            assert!(process.lock().unwrap().is_none());
            drop(file);
            assert!(process.lock().unwrap().is_some());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
