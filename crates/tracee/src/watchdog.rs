//! Kills a twin that was resumed for one instruction and never stops, so that no wait for it lasts for ever.
//!
//! The stepping thread sleeps in the kernel until the twin stops, because any other wait costs several times
//! as much. A separate thread checks at intervals whether the thread is still in the same wait. If a wait
//! ends just before the kill, the kill does no harm, because a twin is discarded anyway.

use crate::Process;
use rustix::process::{Signal, pidfd_send_signal};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A watcher of one process; it works as long as this value lives.
#[derive(Debug)]
pub(crate) struct Watchdog {
    seen: Arc<Seen>,
    /// Dropping this ends the thread.
    _here: Sender<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// How many times a wait has begun or ended: odd during a wait.
    waits: AtomicU64,
    bitten: AtomicBool,
}

impl Watchdog {
    /// Starts a watchdog. It ends each wait that takes longer than `limit`, after at most twice that time.
    pub(crate) fn over(process: &Process, limit: Duration) -> io::Result<Self> {
        let (here, gone) = channel();
        let seen = Arc::new(Seen::default());
        let (process, watched) = (process.clone(), Arc::clone(&seen));
        let body = move || {
            let mut last = 0;
            while gone.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let now = watched.waits.load(Ordering::Relaxed);
                if now % 2 == 1 && now == last {
                    watched.bitten.store(true, Ordering::Release);
                    kill(&process);
                }
                last = now;
            }
        };
        std::thread::Builder::new().name("whet-watchdog".into()).spawn(body)?;
        Ok(Self { seen, _here: here })
    }

    /// Runs a wait for the process.
    ///
    /// # Errors
    /// Errors of the wait; `TimedOut` if the process was killed because of it.
    pub(crate) fn during<R>(&self, wait: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.seen.waits.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.seen.waits.fetch_add(1, Ordering::Relaxed);
        if self.seen.bitten.load(Ordering::Acquire) { Err(too_long()) } else { waited }
    }
}

/// Returns the error for a tracee that neither stops nor ends.
pub(crate) fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it was let go and neither stops nor ends")
}

fn kill(process: &Process) {
    // For an ended process the call only fails.
    let _ = pidfd_send_signal(process.pidfd(), Signal::KILL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn kills_a_process_after_too_long_a_wait() {
        let limit = Duration::from_millis(100);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(Pid(i32::try_from(child.id()).unwrap())).unwrap();
        let watchdog = Watchdog::over(&process, limit).unwrap();
        // Kills neither a process without a wait nor one with repeated short waits.
        std::thread::sleep(3 * limit);
        watchdog.during(|| Ok(())).unwrap();
        assert!(process.is_alive());
        let mut status = None;
        let waited = watchdog.during(|| child.wait().map(|s| status = Some(s)));
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(status.and_then(|s| s.signal()), Some(libc::SIGKILL));
    }
}
