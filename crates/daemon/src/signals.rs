//! Signals, as flags and as a stream to wait for.

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The requests that came as signals.
#[derive(Debug)]
pub(crate) struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Catches signals from now on. They set flags and make the returned stream readable.
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
            // The flag is first: it must be set when the stream becomes readable.
            if let Some(to) = to {
                flag::register(signal, Arc::clone(to))?;
            }
            pipe::register(signal, write.try_clone()?)?;
        }
        Ok((read, signals))
    }

    /// Returns whether the configuration is to be read again; true once for each request.
    pub fn take_reload_request(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the daemon is to end.
    pub fn is_stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
