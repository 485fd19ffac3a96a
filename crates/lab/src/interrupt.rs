//! Ctrl-C and its kin: the first asks for an orderly end, the second ends the lab at once (the kernel ends its children then).

use crate::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A wish to end, seen by all who wait.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on signals are wishes.
    pub fn listen() -> Self {
        let wish = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first time the flag is not set yet. Where they cannot be had, they end the lab as always.
            let _ = flag::register_conditional_default(signal, Arc::clone(&wish.0));
            let _ = flag::register(signal, Arc::clone(&wish.0));
        }
        wish
    }

    /// An error where somebody wants an end.
    ///
    /// # Errors
    /// That one alone.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Sleeps, at most until somebody wants an end.
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
