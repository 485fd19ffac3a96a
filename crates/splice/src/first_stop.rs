//! The first stop of a process, from which on no stop is felt.
//!
//! The state problem: a stop may end a call early. Routines finish it (`tracee::FinishingCode`), which have to be mapped first; but
//! to map memory a thread has to be stopped, and where all threads are in the middle of transfers any of them is in such a call. And no
//! thread may be in a routine before unwinders know the way through.
//!
//! So one stop of all threads does all of it, before any other stop: it maps the anchor and the routines, lists their tables, and leads
//! unwinders to the list. The threads that this very stop has ended a call of go on through the routines.

use crate::toggle::{self, Word};
use crate::{Anchor, Error, FindObject, Hook, Policy, ToggleReport, fault, finishing, install};
use addr::Avma;
use tracee::{Process, Stopped};

/// Where the anchor of a process without one goes, and what leads unwinders to it.
#[derive(Clone, Copy, Debug)]
pub struct FirstStop<'a> {
    /// The anchor's two pages.
    pub anchor_at: Avma,
    /// The pointer by which the unwinder looks code up, where there is one.
    pub lookup: Option<FindObject>,
    /// How unwinders that walk the list of modules are to be answered, where there are any.
    pub hook: Option<&'a Hook>,
}

impl FirstStop<'_> {
    /// Makes that stop. Returns the anchor; `None` where no thread can run system calls in this moment: nothing was changed
    /// then.
    ///
    /// # Errors
    /// As [`crate::install`]; at worst the process holds mappings that nothing refers to.
    pub fn make(
        &self,
        process: &Process,
        policy: &Policy,
        report: &mut ToggleReport,
    ) -> Result<Option<Anchor>, Error> {
        let mut made = None;
        for _ in 0..policy.attempts.max(1) {
            let mut stopped = toggle::stop(process, policy, report)?;
            let outcome = match &made {
                None => self.in_stop(&mut stopped),
                Some(anchor) => lead(process, anchor).map(|()| None),
            };
            let released = stopped.release()?;
            report.stops.push(released.stopped);
            report.cured += released.cured;
            match outcome {
                Err(Error::Tracee(tracee::Error::NoThread(_) | tracee::Error::SyscallDispatch(_))) => {
                    return Ok(None);
                }
                Err(e) => return Err(e),
                Ok(anchor) => made = made.or(anchor),
            }
            // A thread may have been binding a led word when the world stopped.
            let slipped = made.as_ref().map(|a| toggle::slipped(process, a.led())).transpose()?;
            if slipped != Some(true) {
                break;
            }
        }
        Ok(made)
    }

    fn in_stop(&self, stopped: &mut Stopped<'_>) -> Result<Option<Anchor>, Error> {
        let process = stopped.process();
        install::map_anchor(stopped, self.anchor_at)?;
        fault::point();
        stopped.make_finishing_code(stopped.threads().len())?;
        let mut anchor = install::write_anchor(process, self.anchor_at, self.lookup)?;
        install::write_hook(process, &mut anchor, self.hook)?;
        lead(process, &anchor)?;
        finishing::publish(process, &mut anchor)?;
        finishing::open(process, Word::swap(&anchor), anchor.led())?;
        Ok(Some(anchor))
    }
}

/// Leads unwinders to an anchor.
fn lead(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    Word::swap(anchor).iter().try_for_each(|word| word.put(process))?;
    anchor.led().iter().try_for_each(|r| toggle::lead(process, r))
}
