//! One whet at a time on a target.

use crate::Error;
use crate::base::progress::Progress;
use crate::session::sign::Sign;
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
    /// What tells others of the work; where no such file can be made they are not told. Gone before others may begin.
    sign: Option<Sign>,
    /// None where somebody kept it from an undo, which goes on without.
    lock: Option<tracee::Lock>,
}

impl TargetLock {
    /// Opens a process that can be worked on, and takes its lock.
    ///
    /// # Errors
    /// As [`TargetLock::take`].
    pub fn open(pid: Pid) -> Result<(Process, Self), Error> {
        Self::open_by(pid, false)
    }

    /// The same for an operator's undo, which nobody keeps away for long: it goes on without the lock then.
    ///
    /// # Errors
    /// As [`TargetLock::open`], but for [`Error::Locked`].
    pub fn force(pid: Pid) -> Result<(Process, Self), Error> {
        Self::open_by(pid, true)
    }

    fn open_by(pid: Pid, by_force: bool) -> Result<(Process, Self), Error> {
        // What is wrong with it is told before that it cannot be opened.
        let sound = is_sound(pid)?;
        let process = match Process::open(pid) {
            Ok(process) => process,
            Err(e) => return Err(tracee::preflight(pid).err().unwrap_or(e).into()),
        };
        let lock = Self::hold(&process, sound, by_force)?;
        Ok((process, lock))
    }

    /// Takes the lock of a process, if that can be worked on.
    ///
    /// # Errors
    /// [`Error::Locked`] where another whet has it and keeps it; as [`tracee::preflight`]; as [`Process::lock`] where there is
    /// none to be had.
    pub fn take(process: &Process) -> Result<Self, Error> {
        Self::hold(process, is_sound(process.pid())?, false)
    }

    /// Whether it is held; not so where an undo had to go on without.
    pub fn is_held(&self) -> bool {
        self.lock.is_some()
    }

    fn hold(process: &Process, mut sound: bool, by_force: bool) -> Result<Self, Error> {
        let pid = process.pid();
        let begun = Instant::now();
        let lock = loop {
            match process.lock()? {
                Some(lock) => break Some(lock),
                None if begun.elapsed() <= PATIENCE => std::thread::sleep(PAUSE),
                None if by_force => return Ok(Self { sign: None, lock: None }),
                None => return Err(Error::Locked { pid }),
            }
            sound = false;
        };
        // Whoever had it may have left a tracer that makes way in a moment.
        while !sound {
            match is_sound(pid)? {
                true => sound = true,
                false if begun.elapsed() > PATIENCE => return Err(Error::Locked { pid }),
                false => std::thread::sleep(PAUSE),
            }
        }
        Ok(Self { sign: Sign::put(process, "lock").ok(), lock })
    }

    /// Says what is being done, for `status`.
    pub fn tell(&mut self, progress: &Progress) {
        if let Some(sign) = &mut self.sign {
            sign.tell(progress);
        }
    }
}

/// Whether a process can be worked on; not so while another whet traces it, which is a matter of moments.
fn is_sound(pid: Pid) -> Result<bool, Error> {
    match tracee::preflight(pid) {
        Ok(_) => Ok(true),
        Err(tracee::Error::AlreadyTraced { comm, .. }) if comm == tracee::TRACER_NAME => Ok(false),
        Err(e) => Err(e.into()),
    }
}
