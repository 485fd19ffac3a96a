//! Starts a process that restores the target if the comparing process is killed.
//!
//! This guard is whet itself, called with [`GUARD_COMMAND`]. It has a process group of its own. So a signal
//! to the terminal's or the shell's group does not end both processes. It holds the reading end of a pipe. A
//! byte in the pipe means that nothing remains to be restored. The end of the pipe without a byte means that
//! the comparing process is dead, whatever its cause of death.

use crate::{Error, GUARD_COMMAND};
use engine::{Pid, Switch, TargetState};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The byte that the guard writes when it is ready, and reads when it is no longer needed.
const WORD: &[u8; 1] = b".";
/// The longest time for attempts to restore a target that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// A running guard. If dropped without [`Guard::dismiss`], it restores the target.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts a guard for a target that is in the code that was found, and waits until the guard is ready.
    pub fn start(switch: &Switch) -> Result<Self, Error> {
        let pid = switch.process().pid();
        // The path of the program is not used, as an upgrade may have replaced the file.
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
                // The guard also ends if the target has ended.
                if !switch.process().is_alive() {
                    return Err(Error::Engine(tracee::Error::Gone(pid).into()));
                }
                // If another command has changed the target, there is nothing to restore.
                if !switch.stands() {
                    return Err(Error::Engine(engine::Error::Changed { pid }));
                }
                let source = other.and_then(Result::err).unwrap_or(std::io::ErrorKind::BrokenPipe.into());
                Err(Error::Guard { pid, source })
            }
        }
    }

    /// Ends the guard. The target is as it was found, or another command has changed it.
    pub fn dismiss(mut self) {
        if let Some(mut pipe) = self.child.stdin.take() {
            let _ = pipe.write_all(WORD);
        }
        let _ = self.child.wait();
    }
}

/// Runs the guard: waits for the end of standard input, and restores the target unless a byte comes first.
/// The parameters are the words after [`GUARD_COMMAND`]. The caller must ignore signals that request an
/// orderly end. Returns whether the comparing process had died.
///
/// # Errors
/// [`Error::NotRestored`]; [`Error::Engine`] if there is no comparison; [`Error::Guard`] if standard output
/// fails.
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

/// Restores a target to the state in which it was found. Repeats failed attempts for a minute. Does nothing
/// if another command has changed the target.
pub(crate) fn restore(switch: &mut Switch) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        let source = match switch.restore() {
            Ok(()) | Err(engine::Error::Changed { .. }) => return Ok(()),
            Err(e) => e,
        };
        // Many errors pass: a dying whet holds the lock and the target for another moment, a debugger
        // detaches, a stopped job is continued.
        use engine::ExitCode as X;
        let is_final = matches!(source.exit_code(), X::Gone | X::NotFound | X::Permission | X::Nothing);
        if is_final || Instant::now() > end {
            let (pid, found) = (switch.process().pid(), switch.found().word());
            return Err(Error::NotRestored { pid, found, source });
        }
        std::thread::sleep(PAUSE);
    }
}
