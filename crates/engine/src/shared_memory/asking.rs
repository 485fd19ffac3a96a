//! Asks the kernel through one process, and says why it refuses.

use super::choose::Unit;
use super::moving::{End, Outcome, move_units};
use super::quiet;
use super::report::NotMoved;
use super::room::Watch;
use crate::base::kernel;
use crate::{Error, Interrupt};
use addr::{Addr, AvmaRange, ReadMemory};
use image::Mapping;
use std::io;
use std::time::{Duration, Instant};
use tracee::{Pid, Process};

/// One table of the second level maps so much.
const GIB: u64 = 1 << 30;

/// The process through which the kernel is asked, and the mapping.
pub(super) struct Asking<'a> {
    pub(super) by: &'a Process,
    pub(super) mapping: &'a Mapping,
    pub(super) watch: &'a Watch,
}

impl Asking<'_> {
    /// Moves units. Calls `show` with the number of units in huge pages so far.
    ///
    /// # Errors
    /// [`tracee::Error::NoPermission`]
    pub(super) fn moves(
        &self,
        units: &[Unit],
        interrupt: &Interrupt,
        show: impl FnMut(usize),
    ) -> Result<Outcome, Error> {
        match self.by.can_collapse() {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                let hint = "; it takes the capability CAP_SYS_NICE";
                return Err(denied(self.by.pid(), "move the memory of", hint, e));
            }
            Err(e) => return Ok(Outcome { huge: Vec::new(), end: Some(End::Refused(e)), ends: true }),
            Ok(()) => {}
        }
        self.make_tables(units);
        Ok(move_units(units, interrupt, |range| self.collapse(range), show))
    }

    /// Moves one range; tells how long that took.
    fn collapse(&self, range: AvmaRange) -> (io::Result<()>, Duration) {
        let refused = |errno| (Err(io::Error::from_raw_os_error(errno)), Duration::ZERO);
        // The process may have executed a program, or have something else there now.
        if !quiet::has(self.by, self.mapping) {
            return refused(libc::ESRCH);
        }
        if !self.watch.has_room(range.len()) {
            return refused(libc::EBUSY);
        }
        let began = Instant::now();
        (self.by.collapse(range), began.elapsed())
    }

    /// Before Linux 6.18 the kernel moves memory and then says that it failed, if the process has no page table of the
    /// second level there, because it has touched nothing within that GiB (`collapse_pte_mapped_thp()`). A page that
    /// exists is read, so nothing is filled.
    fn make_tables(&self, units: &[Unit]) {
        if kernel::running() >= (6, 18) {
            return;
        }
        for part in units.chunk_by(|a, b| a.at.align_down(GIB) == b.at.align_down(GIB)) {
            let full = part.iter().find(|unit| unit.holes == 0 && unit.swapped == 0);
            let _ = full.map(|unit| self.by.read(unit.at, &mut [0]));
        }
    }
}

pub(super) fn denied(pid: Pid, what: &'static str, hint: &str, source: io::Error) -> Error {
    tracee::Error::NoPermission { pid, what, hint: hint.to_owned(), source }.into()
}

/// Returns the reason in words; none for an interrupt, which the report shows by itself.
pub(super) fn reason(end: &End) -> Option<NotMoved> {
    let e = match end {
        End::Refused(e) => e,
        End::Slow(unit) => {
            let why = format!("each 2 MiB took {} ms, in which processes wait for them", unit.as_millis());
            return Some(NotMoved::passing("slow", &why));
        }
        End::Interrupted => return None,
    };
    Some(match e.raw_os_error() {
        Some(libc::ENOMEM) => NotMoved::passing("no_huge_page", "the host has no more free huge pages"),
        Some(libc::EBUSY) => {
            let why = "a limit of its control groups leaves no more room, or a program serves its pages (userfaultfd)";
            NotMoved::passing("no_room", why)
        }
        Some(libc::ESRCH) => {
            NotMoved::passing("member_ended", "the process through which it was moved has ended or changed")
        }
        Some(libc::ENOSYS) => NotMoved::lasting("old_kernel", "this kernel cannot move memory"),
        _ => NotMoved::passing("not_moved", &format!("the kernel left some of it in small pages: {e}")),
    })
}
