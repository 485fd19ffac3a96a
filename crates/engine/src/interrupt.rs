//! A wish from outside that the work end soon.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Looked at where work can be broken off and the target be put back as it was. Clones share the wish.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Where a signal handler stores the signal's number.
    #[must_use]
    pub fn cell(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }

    /// Whether the wish was uttered.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// # Errors
    /// [`Error::Interrupted`] if the wish was uttered.
    pub fn check(&self) -> Result<(), Error> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::Interrupted { signal }),
        }
    }
}
