//! A request to end the work soon, or the end of its target.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracee::Process;

/// A request to end the work. It is checked where the work can end and the target can be restored. Clones
/// share the request.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// The work ends with this process.
    target: Option<Process>,
}

impl Interrupt {
    /// Returns the same request, for work on one target.
    #[must_use]
    pub fn watching(&self, target: &Process) -> Self {
        Self { target: Some(target.clone()), ..self.clone() }
    }

    /// Returns the cell in which a signal handler stores the signal's number.
    #[must_use]
    pub fn cell(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.signal)
    }

    /// Returns whether the work was requested to end.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// Checks the request and the target.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if the work was requested to end, [`tracee::Error::Gone`] if the target
    /// has ended.
    pub fn check(&self) -> Result<(), Error> {
        match (self.signal.load(Ordering::Relaxed), &self.target) {
            (0, Some(target)) if !target.is_alive() => Err(tracee::Error::Gone(target.pid()).into()),
            (0, _) => Ok(()),
            (signal, _) => Err(Error::Interrupted { signal }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use tracee::Pid;

    #[test]
    fn a_signal_or_the_end_of_the_target() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let target = Process::open(Pid(child.id().cast_signed())).unwrap();
        let general = Interrupt::default();
        let interrupt = general.watching(&target);
        interrupt.check().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(interrupt.check(), Err(Error::Tracee(tracee::Error::Gone(_)))));
        general.check().unwrap();
        general.cell().store(2, Ordering::Relaxed);
        assert!(matches!(interrupt.check(), Err(Error::Interrupted { signal: 2 })));
    }
}
