//! The user's interrupt: SIGINT (Ctrl-C), SIGTERM or SIGHUP. The first signal starts an orderly end. The
//! second ends the lab at once, and the kernel then ends its children.

use crate::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A flag that the first signal sets. All waits check it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Handles the signals from now on.
    pub fn listen() -> Self {
        let wish = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // This order matters: at the first signal the flag is not set yet. If a handler cannot be
            // registered, the signal ends the lab at once.
            let _ = flag::register_conditional_default(signal, Arc::clone(&wish.0));
            let _ = flag::register(signal, Arc::clone(&wish.0));
        }
        wish
    }

    /// Returns an error after an interrupt.
    ///
    /// # Errors
    /// [`Error::Interrupted`] alone.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps for `time`, or until an interrupt.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn sleep(&self, time: Duration) -> Result<(), Error> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}
