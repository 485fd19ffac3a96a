//! The first stop of a process. It prepares the routines in which threads finish calls that a stop ends
//! early.
//!
//! The routines (`tracee::FinishingCode`) must be mapped, and mapping memory needs a stopped thread. If all
//! threads are in the middle of transfers, that stop itself ends a transfer early. Also, no thread may be in
//! a routine before unwinders can pass the routine.
//!
//! So one stop of all threads does everything, before any other stop. It maps the anchor and the routines,
//! lists their tables, and redirects unwinders to the list. Threads whose calls this stop has ended finish
//! them in the routines.

use crate::toggle::{self, Word};
use crate::{Anchor, Error, FindObject, Hook, Policy, ToggleReport, fault, finishing, install, mapping};
use addr::Avma;
use tracee::{Process, Stopped};

/// The address of the anchor for a process without one, and the redirects that lead unwinders to it.
#[derive(Clone, Copy, Debug)]
pub struct FirstStop<'a> {
    /// The address of the anchor's two pages.
    pub anchor_at: Avma,
    /// The pointer by which the unwinder looks code up, if there is one.
    pub lookup: Option<FindObject>,
    /// The redirects for unwinders that iterate over modules, if there are any.
    pub hook: Option<&'a Hook>,
}

impl FirstStop<'_> {
    /// Makes the first stop. Returns the anchor, or `None` if no thread can run system calls at this moment:
    /// then nothing was changed.
    ///
    /// # Errors
    /// As [`crate::install()`]; at worst the process holds mappings that nothing refers to.
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
                Some(anchor) => redirect_module_list(process, anchor).map(|()| None),
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
            // At the stop, a thread may have been about to write a redirected word (lazy binding).
            let slipped =
                made.as_ref().map(|a| toggle::slipped(process, a.module_list_redirects())).transpose()?;
            if slipped != Some(true) {
                break;
            }
        }
        Ok(made)
    }

    fn in_stop(&self, stopped: &mut Stopped<'_>) -> Result<Option<Anchor>, Error> {
        let process = stopped.process();
        mapping::map_anchor(stopped, self.anchor_at)?;
        fault::point();
        stopped.make_finishing_code(stopped.threads().len())?;
        let mut anchor = install::write_anchor(process, self.anchor_at, self.lookup)?;
        install::write_hook(process, &mut anchor, self.hook)?;
        redirect_module_list(process, &anchor)?;
        finishing::publish(process, &mut anchor)?;
        finishing::open(process, Word::swap(&anchor), anchor.module_list_redirects())?;
        Ok(Some(anchor))
    }
}

/// Redirects unwinders to an anchor.
fn redirect_module_list(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    Word::swap(anchor).iter().try_for_each(|word| word.put(process))?;
    anchor.module_list_redirects().iter().try_for_each(|r| toggle::redirect_call(process, r))
}
