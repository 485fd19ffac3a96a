//! A process that puts the target back should the one that compares be killed.
//!
//! It is whet itself, called with [`GUARD_COMMAND`], in a process group of its own so that a signal to the terminal's or
//! the shell's group does not end both. It holds the reading end of a pipe. A word through it says that all is well; its
//! end without a word says that the other one is dead, however it died.

use crate::{Error, GUARD_COMMAND};
use engine::{Pid, Switch, TargetState};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the guard says when it is ready, and what it is told when it is not needed any more.
const WORD: &[u8; 1] = b".";
/// How long it goes on trying to restore a target that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// A running guard. Dropped without [`Guard::dismiss`] it restores the target.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts one for a switch that has not been used yet, and waits until it is ready.
    pub fn start(switch: &Switch) -> Result<Self, Error> {
        let pid = switch.process().pid();
        // Not its path: it may have been replaced by an upgrade since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("whet").arg(GUARD_COMMAND).arg(pid.to_string());
        command.arg(switch.generation().to_string()).arg(switch.found().word());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|source| Error::Guard { pid, source })?;
        let ready = child.stdout.as_mut().map(|out| out.read_exact(&mut [0]));
        match ready {
            Some(Ok(())) => Ok(Self { child }),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                // It ends for want of a target, too.
                if !switch.process().is_alive() {
                    return Err(Error::Engine(tracee::Error::Gone(pid).into()));
                }
                // Nor is there anything to restore where somebody else has changed it.
                if !switch.stands() {
                    return Err(Error::Engine(engine::Error::Changed { pid }));
                }
                let source = other.and_then(Result::err).unwrap_or(std::io::ErrorKind::BrokenPipe.into());
                Err(Error::Guard { pid, source })
            }
        }
    }

    /// Ends it: the target is as it was found, or is somebody else's now.
    pub fn dismiss(mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            let _ = pipe.write_all(WORD);
        }
        let _ = self.child.wait();
    }
}

/// What the guard does: waits for the end of standard input; restores the target unless it is told that there is no need.
/// The words are those after [`GUARD_COMMAND`]. Signals that ask for an orderly end must be ignored by the caller. Whether
/// there was need.
///
/// # Errors
/// [`Error::NotRestored`].
pub fn guard(pid: Pid, generation: u32, found: TargetState) -> Result<bool, Error> {
    let stopped = |source| Error::Guard { pid, source };
    let mut switch = Switch::stand_in(pid, generation, found)?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(WORD).and_then(|()| stdout.flush()).map_err(stopped)?;
    match std::io::stdin().lock().read_exact(&mut [0]) {
        Ok(()) => Ok(false),
        Err(_) => {
            restore(&mut switch)?;
            switch.close();
            Ok(true)
        }
    }
}

/// Brings a target back to the state in which it was found, patiently.
pub(crate) fn restore(switch: &mut Switch) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        let source = match switch.restore() {
            Ok(()) | Err(engine::Error::Changed { .. }) => return Ok(()),
            Err(e) => e,
        };
        // Much passes: a whet that dies holds lock and target for a moment yet, a debugger lets go, a job is continued.
        use engine::ExitCode as X;
        let is_final = matches!(source.exit_code(), X::Gone | X::NotFound | X::Permission | X::Nothing);
        if is_final || Instant::now() > end {
            let (pid, found) = (switch.process().pid(), switch.found().word());
            return Err(Error::NotRestored { pid, found, source });
        }
        std::thread::sleep(PAUSE);
    }
}
