//! One whet at a time on a target.

use crate::base::progress::Progress;
use crate::session::sign::Sign;
use crate::session::target;
use crate::{Error, Target};
use std::time::{Duration, Instant};
use tracee::{Pid, Process};

/// A switch of a comparison, or an `undo`, takes milliseconds: other commands wait for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The lock of a target, held during work on it. The owner of the target and root use the same lock. The
/// kernel releases it when its holder dies, for whatever reason.
#[derive(Debug)]
pub struct TargetLock {
    /// The file that informs others of the work, if one can be created. Dropped before the lock is released.
    sign: Option<Sign>,
    /// `None` if another whet held the lock and an undo went on without it.
    lock: Option<tracee::Lock>,
    /// How many undos by an operator had begun when the lock was acquired. An undo by force does not count them.
    undos: u64,
}

impl TargetLock {
    /// Opens a process that can be worked on, and acquires its lock.
    ///
    /// # Errors
    /// Same as [`TargetLock::take`].
    pub fn open(pid: Pid) -> Result<(Process, Self), Error> {
        Self::open_by(pid, false)
    }

    /// Same as [`TargetLock::open`] for an operator's undo: if another whet keeps the lock, continues without
    /// it.
    ///
    /// # Errors
    /// Same as [`TargetLock::open`], except [`Error::Locked`].
    pub fn force(pid: Pid) -> Result<(Process, Self), Error> {
        Self::open_by(pid, true)
    }

    fn open_by(pid: Pid, by_force: bool) -> Result<(Process, Self), Error> {
        // Errors of the preflight check come before the error that the process cannot be opened.
        let sound = is_sound(pid)?;
        let process = match Process::open(pid) {
            Ok(process) => process,
            Err(e) => return Err(tracee::preflight(pid).err().unwrap_or(e).into()),
        };
        let lock = Self::hold(&process, sound, by_force)?;
        Ok((process, lock))
    }

    /// Acquires the lock of a process, if the process can be worked on.
    ///
    /// # Errors
    /// Returns [`Error::Locked`] if another whet keeps the lock, the errors of [`tracee::preflight`], and the
    /// errors of [`Process::lock`] if no lock is available.
    pub fn take(process: &Process) -> Result<Self, Error> {
        Self::hold(process, is_sound(process.pid())?, false)
    }

    /// Returns whether the lock is held; false if an undo had to go on without it.
    pub fn is_held(&self) -> bool {
        self.lock.is_some()
    }

    /// Opens the target for a change. From the moment in which the lock was acquired, only an operator's undo can
    /// have changed it.
    ///
    /// # Errors
    /// Same as [`Target::open_since`].
    pub(crate) fn target(&self, pid: Pid) -> Result<Target, Error> {
        Target::open_since(pid, self.undos)
    }

    fn hold(process: &Process, mut sound: bool, by_force: bool) -> Result<Self, Error> {
        let pid = process.pid();
        let begun = Instant::now();
        let count = || if by_force { 0 } else { target::undos(process) };
        // Read before the lock is acquired: from then on an undo waits for the lock only for a while.
        let mut undos = count();
        let lock = loop {
            match process.lock()? {
                Some(lock) => {
                    let before = std::mem::replace(&mut undos, count());
                    // Otherwise the last holder has undone the target.
                    if before == undos {
                        break Some(lock);
                    }
                }
                None if begun.elapsed() <= PATIENCE => std::thread::sleep(PAUSE),
                None if by_force => return Ok(Self { sign: None, lock: None, undos }),
                None => return Err(Error::Locked { pid }),
            }
            sound = false;
        };
        // The former holder may have left a tracer that detaches in a moment.
        while !sound {
            match is_sound(pid)? {
                true => sound = true,
                false if begun.elapsed() > PATIENCE => return Err(Error::Locked { pid }),
                false => std::thread::sleep(PAUSE),
            }
        }
        Ok(Self { sign: Sign::put(process, "lock").ok(), lock, undos })
    }

    /// Writes the current work into the file, for `status`.
    pub fn show(&mut self, progress: &Progress) {
        if let Some(sign) = &mut self.sign {
            sign.show(progress);
        }
    }
}

/// Acquires the lock of a process that is only read. The process need not be in a state in which it can be
/// worked on, and `status` does not list the reader.
///
/// # Errors
/// Returns [`Error::Locked`] if another whet keeps the lock, and the errors of [`Process::lock`] if no lock
/// is available.
pub(crate) fn keep_others_out(process: &Process) -> Result<tracee::Lock, Error> {
    let begun = Instant::now();
    loop {
        match process.lock()? {
            Some(lock) => return Ok(lock),
            None if begun.elapsed() <= PATIENCE => std::thread::sleep(PAUSE),
            None => return Err(Error::Locked { pid: process.pid() }),
        }
    }
}

/// Returns whether a process can be worked on. Returns false while another whet, or a tracer that is ending,
/// traces it, which takes moments.
fn is_sound(pid: Pid) -> Result<bool, Error> {
    match tracee::preflight(pid) {
        Ok(_) => Ok(true),
        Err(tracee::Error::TracedByWhet { .. } | tracee::Error::TracerEnding { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
