//! Huge pages for clones.
//!
//! The kernel allocates a huge page when one of its bytes is first touched. whet touches it from outside, and
//! only in that way. `MADV_COLLAPSE` would also make a huge page of small pages. But it holds the target's
//! `mmap_lock` while it waits for work on every CPU (`madvise_collapse()` calls `lru_add_drain_all()`, Linux
//! 6.1 to 6.18). On a host with busy CPUs that took half a minute, in which no thread of the target could map
//! memory. The first touch holds the lock only while the kernel finds a page, as a touch by the target itself
//! would.
//!
//! Some servers disable transparent huge pages for themselves (MariaDB from 10.6.17: `PR_SET_THP_DISABLE`),
//! since heaps on huge pages grow. This does not concern a few hundred KB of code. So whet enables them for
//! the moment in which it touches the code cache, and disables them again; the page stays huge. No thread is
//! stopped in that moment.
//!
//! INVARIANT(pending): the setting is recorded in the anchor before it is changed, and the record is cleared
//! after it is restored. If whet dies in between, the next whet that works on the target restores it.

use crate::{Anchor, CachePlan, Error, fault, install::HUGE, toggle};
use addr::{Addr, AvmaRange, ReadMemory};
use std::time::{Duration, Instant};
use tracee::{Process, Remote};

const MADVISE: i64 = 28;
const MADV_HUGEPAGE: u64 = 14;
const MADV_NOHUGEPAGE: u64 = 15;
const PRCTL: i64 = 157;
const PR_SET_THP_DISABLE: u64 = 41;
const PR_GET_THP_DISABLE: u64 = 42;
/// The setting: disabled for everything.
const DISABLED: u64 = 1;
/// A touch takes this long only if no memory was at hand: the kernel clears 2 MiB in a shorter time.
const LONG: Duration = Duration::from_millis(20);

/// Returns the host's setting of huge pages, with its file (`Documentation/admin-guide/mm/transhuge.rst`).
/// From Linux 6.8 on, pages of this size have their own setting, which by default inherits the setting of all
/// sizes. `None` in a kernel without huge pages.
#[must_use]
pub fn setting() -> Option<(&'static str, String)> {
    const OF_ALL: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const OF_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    let read = |file| Some((file, std::fs::read_to_string(file).ok()?.trim().to_owned()));
    read(OF_SIZE).filter(|(_, set)| !set.contains("[inherit]")).or_else(|| read(OF_ALL))
}

/// Returns whether a host's setting gives huge pages on request.
#[must_use]
pub fn offered(setting: &str) -> bool {
    setting.contains("[always]") || setting.contains("[madvise]")
}

/// Requests huge pages at first touch, or none. Kernels without them refuse; the packing alone is then most
/// of the gain.
pub fn advise(remote: &mut Remote<'_>, text: AvmaRange, wanted: bool) {
    let advice = if wanted { MADV_HUGEPAGE } else { MADV_NOHUGEPAGE };
    let _ = remote.syscall(MADVISE, [text.start.0, text.len(), advice, 0, 0, 0]);
}

/// Returns whether the process has disabled huge pages for everything. (Bit 0 disables them; the next bit,
/// from Linux 6.18 on, excepts memory for which they were requested.)
///
/// # Errors
/// Errors of a system call that could not be run.
pub fn disabled(remote: &mut Remote<'_>) -> Result<bool, tracee::Error> {
    Ok(switch(remote)? == DISABLED)
}

/// Returns the present setting. 0 is enabled, as always before Linux 3.15.
fn switch(remote: &mut Remote<'_>) -> Result<u64, tracee::Error> {
    match remote.syscall(PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0]) {
        Err(tracee::Error::Remote { .. }) => Ok(0),
        is => Ok(is?.cast_unsigned()),
    }
}

/// Touches the caches that should be in huge pages, with the process's huge pages enabled meanwhile: the
/// process has disabled them. These caches must be unwritten, as an existing small page stays small. Returns
/// the longest stop of a thread.
///
/// A cache that is mapped from a file is only read: a write would give the process a copy of a small page.
///
/// # Errors
/// [`Error::Tracee`] if the setting could not be restored; the pending recovery stays on record. Other errors
/// are ignored: without huge pages everything works as well, only slower.
pub fn touch(
    process: &Process,
    anchor: &Anchor,
    caches: &[&CachePlan],
    from_files: bool,
) -> Result<Duration, Error> {
    fault::point();
    // Without a record of the setting, it is not changed.
    if record(process, anchor, DISABLED).is_err() {
        return Ok(Duration::ZERO);
    }
    fault::point();
    let turned = tracee::timed_with_one_stopped(process, |remote| {
        // The program may have changed it since.
        let off = disabled(remote)?;
        if off {
            remote.syscall(PRCTL, [PR_SET_THP_DISABLE, 0, 0, 0, 0, 0])?;
        }
        Ok(off)
    });
    if let Ok((false, turning)) = turned {
        record(process, anchor, 0)?;
        return Ok(turning);
    }
    if turned.is_ok() {
        fault::point();
        touch_each(process, caches, from_files);
        fault::point();
    }
    let back = turn_back(process, anchor, DISABLED)?;
    Ok(turned.map_or(back, |(_, turning)| turning.max(back)))
}

/// Touches the first byte of each huge page. If the kernel has to search for a huge page, the others stay
/// small.
fn touch_each(process: &Process, caches: &[&CachePlan], from_files: bool) {
    let pages = caches.iter().flat_map(|c| {
        let text = c.text_range();
        (0..text.len() / HUGE).map(move |i| text.start.add(i * HUGE))
    });
    for page in pages {
        let began = Instant::now();
        let touched = match from_files {
            true => process.read(page, &mut [0]).is_ok(),
            false => process.write(page, &[0]).is_ok(),
        };
        if !touched || began.elapsed() > LONG {
            break;
        }
    }
}

/// Records the setting to restore.
fn record(process: &Process, anchor: &Anchor, pending: u64) -> Result<(), Error> {
    toggle::write_checked(process, anchor.pending_at(), &pending.to_le_bytes())
}

/// Restores the disabled setting: bit 0 disables; from Linux 6.18 on the other bits are flags
/// (`PR_THP_DISABLE_EXCEPT_ADVISED`).
fn switch_off(remote: &mut Remote<'_>, disabled: u64) -> Result<(), tracee::Error> {
    remote.syscall(PRCTL, [PR_SET_THP_DISABLE, disabled & 1, disabled & !1, 0, 0, 0]).map(|_| ())
}

/// Restores the process's setting of huge pages if that is on record: an earlier whet died, or failed to
/// restore it. No other whet may be working on the target.
///
/// # Errors
/// [`Error::Tracee`]; the pending recovery then stays on record.
pub fn recover_pending(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    match process.u64(anchor.pending_at())? {
        0 => Ok(()),
        disabled => turn_back(process, anchor, disabled).map(drop),
    }
}

/// Restores the setting. Returns how long a thread was stopped.
fn turn_back(process: &Process, anchor: &Anchor, disabled: u64) -> Result<Duration, Error> {
    let ((), stopped) = tracee::timed_with_one_stopped(process, |remote| {
        // If the program itself has changed the setting since, it stays as it is.
        if switch(remote)? == 0 {
            fault::point();
            switch_off(remote, disabled)?;
        }
        Ok(())
    })?;
    fault::point();
    record(process, anchor, 0)?;
    Ok(stopped)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_operators_set() {
        for (set, offered) in [
            ("[always] madvise never", true),
            ("always [madvise] never", true),
            ("always madvise [never]", false),
            ("always inherit madvise [never]", false),
            ("", false),
        ] {
            assert_eq!(super::offered(set), offered, "{set}");
        }
    }
}
