//! A request to end the work soon, or the end of a process that it needs.

use crate::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracee::Process;

/// A request to end the work. It is checked where the work can end and the target can be restored. Clones
/// share the request.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
    /// The work ends with any of these processes.
    targets: Vec<Process>,
}

impl Interrupt {
    /// Returns the same request, for work that also ends with one more target.
    #[must_use]
    pub fn watching(&self, target: &Process) -> Self {
        let targets = self.targets.iter().chain([target]).cloned().collect();
        Self { targets, ..self.clone() }
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

    /// Checks the request and the targets.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if the work was requested to end, [`tracee::Error::Gone`] if a target has
    /// ended.
    pub fn check(&self) -> Result<(), Error> {
        let gone = self.targets.iter().find(|target| !target.is_alive());
        // Read last: a signal interrupts the look at a process, which then seems to have ended.
        match (self.signal.load(Ordering::Relaxed), gone) {
            (0, Some(gone)) => Err(tracee::Error::Gone(gone.pid()).into()),
            (0, None) => Ok(()),
            (signal, _) => Err(Error::Interrupted { signal }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};
    use tracee::Pid;

    fn sleeping() -> (Child, Process) {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(Pid(child.id().cast_signed())).unwrap();
        (child, process)
    }

    #[test]
    fn a_signal_or_the_end_of_a_target() {
        let general = Interrupt::default();
        let mut interrupt = general.clone();
        for first_ends in [true, false] {
            let ((mut first, a), (mut second, b)) = (sleeping(), sleeping());
            interrupt = general.watching(&a).watching(&b);
            interrupt.check().unwrap();
            for child in if first_ends { [&mut first, &mut second] } else { [&mut second, &mut first] } {
                child.kill().unwrap();
                child.wait().unwrap();
                assert!(matches!(interrupt.check(), Err(Error::Tracee(tracee::Error::Gone(_)))));
            }
        }
        general.check().unwrap();
        general.cell().store(2, Ordering::Relaxed);
        assert!(matches!(interrupt.check(), Err(Error::Interrupted { signal: 2 })));
    }
}
