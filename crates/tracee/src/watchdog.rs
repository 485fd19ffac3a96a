//! Ends a twin that was let go for one instruction and never stops, so that nobody waits for it for ever.
//!
//! Who steps a twin sleeps in the kernel until it stops, as anything else would cost a multiple; a thread of its own looks
//! now and then whether that is still the same wait. The state problem: a wait may end just as it is found to be too long.
//! That is harmless, as a twin is there to be thrown away.

use crate::Process;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Looks at one process for as long as it lives itself.
#[derive(Debug)]
pub(crate) struct Watchdog {
    seen: Arc<Seen>,
    /// Its end is the thread's.
    _here: Sender<()>,
}

#[derive(Debug, Default)]
struct Seen {
    /// How many waits have begun and ended: odd during one.
    waits: AtomicU64,
    bitten: AtomicBool,
}

impl Watchdog {
    /// A wait may take `limit`; beyond twice that it never does.
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

    /// Waits for the process.
    ///
    /// # Errors
    /// That of the wait; `TimedOut` where the process was ended for it.
    pub(crate) fn during<R>(&self, wait: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        self.seen.waits.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.seen.waits.fetch_add(1, Ordering::Relaxed);
        if self.seen.bitten.load(Ordering::Acquire) { Err(too_long()) } else { waited }
    }
}

/// What is said of a tracee that neither stops nor ends.
pub(crate) fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it was let go and neither stops nor ends")
}

fn kill(process: &Process) {
    let (fd, no_info) = (process.pidfd().as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: takes integers and a null pointer. A process that has ended is none to be ended.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, no_info, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn bites_who_is_waited_for_too_long() {
        let limit = Duration::from_millis(100);
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(Pid(i32::try_from(child.id()).unwrap())).unwrap();
        let watchdog = Watchdog::over(&process, limit).unwrap();
        // Neither one that nobody waits for nor one that is waited for again and again.
        std::thread::sleep(3 * limit);
        watchdog.during(|| Ok(())).unwrap();
        assert!(process.is_alive());
        let mut status = None;
        let waited = watchdog.during(|| child.wait().map(|s| status = Some(s)));
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(status.and_then(|s| s.signal()), Some(libc::SIGKILL));
    }
}
