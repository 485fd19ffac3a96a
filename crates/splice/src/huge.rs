//! Huge pages for clones.
//!
//! Some servers switch transparent huge pages off for themselves (MariaDB from 10.6.17: `PR_SET_THP_DISABLE`), since
//! heaps on huge pages bloat. That says nothing about a few hundred KB of code. So the switch is turned for the
//! moment in which the code cache is collapsed, and turned back; the page stays huge.
//!
//! INVARIANT(debt): what the switch was is written into the anchor before it is turned, and wiped out after it was turned
//! back. Should whet die in between, the next one that works on the target turns it back.

use crate::{Anchor, CachePlan, Error, fault, huge_wanted, toggle};
use addr::{AvmaRange, ReadMemory};
use tracee::{Process, Remote};

const MADVISE: i64 = 28;
const MADV_HUGEPAGE: u64 = 14;
const MADV_NOHUGEPAGE: u64 = 15;
const PRCTL: i64 = 157;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_GET_THP_DISABLE: u64 = 42;

/// Asks for huge pages at first touch, or for none. Refused by kernels without them; packing alone is most of the gain then.
pub fn advise(remote: &mut Remote<'_>, text: AvmaRange, wanted: bool) {
    let advice = if wanted { MADV_HUGEPAGE } else { MADV_NOHUGEPAGE };
    let _ = remote.syscall(MADVISE, [text.start.0, text.len(), advice, 0, 0, 0]);
}

/// Collapses what is filled and not huge yet; returns how many bytes of all caches the kernel backs with huge pages.
pub fn collapse(process: &Process, anchor: &Anchor, caches: &[CachePlan]) -> u64 {
    let wanted: Vec<AvmaRange> =
        caches.iter().filter(|c| huge_wanted(c.text.len() as u64)).map(CachePlan::text_range).collect();
    let have = || -> u64 { wanted.iter().map(|r| process.anon_huge_bytes(*r).unwrap_or(0)).sum() };
    let all: u64 = wanted.iter().map(AvmaRange::len).sum();
    if have() < all && !wanted.iter().all(|r| process.collapse_huge(*r).is_ok()) {
        // Without huge pages everything works as well, only slower: no error here is worth giving up for.
        let _ = tracee::with_one_stopped(process, |remote| switched_on(remote, process, anchor, &wanted));
        let _ = settle(process, anchor);
    }
    have()
}

/// Collapses with the process's own switch turned, where it is turned off.
fn switched_on(
    remote: &mut Remote<'_>,
    process: &Process,
    anchor: &Anchor,
    wanted: &[AvmaRange],
) -> Result<(), tracee::Error> {
    let disabled = remote.syscall(PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0])?.cast_unsigned();
    if disabled == 0 {
        return Ok(());
    }
    fault::point();
    // A debt that is not on record is not run up.
    process.write(anchor.owed_at(), &disabled.to_le_bytes())?;
    if process.u64(anchor.owed_at())? != disabled {
        return Ok(());
    }
    fault::point();
    let turned = remote.syscall(PRCTL, [PR_SET_THP_DISABLE, 0, 0, 0, 0, 0]);
    fault::point();
    let collapsed: Result<Vec<()>, _> = match turned {
        Ok(_) => wanted.iter().map(|r| process.collapse_huge(*r)).collect(),
        Err(e) => Err(e),
    };
    switch_off(remote, disabled)?;
    fault::point();
    process.write(anchor.owed_at(), &0u64.to_le_bytes())?;
    collapsed.map(|_| ())
}

/// Turns the switch off, as it was: bit 0 is the switch; from Linux 6.18 on the others are its flags
/// (`PR_THP_DISABLE_EXCEPT_ADVISED`).
fn switch_off(remote: &mut Remote<'_>, disabled: u64) -> Result<(), tracee::Error> {
    remote.syscall(PRCTL, [PR_SET_THP_DISABLE, disabled & 1, disabled & !1, 0, 0, 0]).map(|_| ())
}

/// Turns the process's switch of huge pages back, where an earlier whet could not. Nobody else may be at
/// work on the target.
///
/// # Errors
/// [`Error::Tracee`]; what is owed stays on record then.
pub fn settle(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    let disabled = process.u64(anchor.owed_at())?;
    if disabled == 0 {
        return Ok(());
    }
    tracee::with_one_stopped(process, |remote| {
        // A program that has turned it itself since wants it as it is.
        if remote.syscall(PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0])? == 0 {
            fault::point();
            switch_off(remote, disabled)?;
        }
        Ok(())
    })?;
    fault::point();
    toggle::write_checked(process, anchor.owed_at(), &0u64.to_le_bytes())
}
