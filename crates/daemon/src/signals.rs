//! Signals, as flags and as something to wait for.

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What was asked by signals.
#[derive(Debug)]
pub(crate) struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// From now on signals are flags, and make a stream readable.
    pub fn catch() -> io::Result<(UnixStream, Self)> {
        let signals = Self { stop: Arc::default(), reload: Arc::default() };
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        for (signal, to) in [
            (SIGTERM, Some(&signals.stop)),
            (SIGINT, Some(&signals.stop)),
            (SIGHUP, Some(&signals.reload)),
            (SIGCHLD, None),
        ] {
            // The flag first: who is woken must find it set.
            if let Some(to) = to {
                flag::register(signal, Arc::clone(to))?;
            }
            pipe::register(signal, write.try_clone()?)?;
        }
        Ok((read, signals))
    }

    /// Whether the configuration is to be read anew; asked once for each time.
    pub fn wants_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Whether the daemon is to end.
    pub fn wants_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
