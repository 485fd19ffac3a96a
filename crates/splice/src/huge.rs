//! Huge pages for clones.
//!
//! The kernel gives one when a byte of it is first touched, which whet does from outside, and only there. It would also make one of
//! small pages on demand (`MADV_COLLAPSE`), but then it holds the target's `mmap_lock` while it waits for work on every CPU
//! (`madvise_collapse()` calls `lru_add_drain_all()`, Linux 6.1 to 6.18): on a host whose CPUs are busy that took half a minute, in
//! which nobody in the target could map memory. The first touch holds the lock while the kernel finds a page, as one by the target
//! itself would.
//!
//! Some servers switch transparent huge pages off for themselves (MariaDB from 10.6.17: `PR_SET_THP_DISABLE`), since
//! heaps on huge pages bloat. That says nothing about a few hundred KB of code. So the switch is turned for the
//! moment in which the code cache is touched, and turned back; the page stays huge. No thread is stopped in that moment.
//!
//! INVARIANT(debt): what the switch was is written into the anchor before it is turned, and wiped out after it was turned
//! back. Should whet die in between, the next one that works on the target turns it back.

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
/// The switch, turned off for everything.
const DISABLED: u64 = 1;
/// So long takes no touch for which memory was at hand: 2 MiB are cleared in less than one.
const LONG: Duration = Duration::from_millis(20);

/// What this host's operator has set about huge pages, and in which file (`Documentation/admin-guide/mm/transhuge.rst`). Pages of
/// this size have a setting of their own from Linux 6.8 on, which inherits the one of all unless told otherwise. `None` in a
/// kernel without them.
#[must_use]
pub fn setting() -> Option<(&'static str, String)> {
    const OF_ALL: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const OF_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    let read = |file| Some((file, std::fs::read_to_string(file).ok()?.trim().to_owned()));
    read(OF_SIZE).filter(|(_, set)| !set.contains("[inherit]")).or_else(|| read(OF_ALL))
}

/// Whether huge pages are given to who asks, by such a setting.
#[must_use]
pub fn offered(setting: &str) -> bool {
    setting.contains("[always]") || setting.contains("[madvise]")
}

/// Asks for huge pages at first touch, or for none. Refused by kernels without them; packing alone is most of the gain then.
pub fn advise(remote: &mut Remote<'_>, text: AvmaRange, wanted: bool) {
    let advice = if wanted { MADV_HUGEPAGE } else { MADV_NOHUGEPAGE };
    let _ = remote.syscall(MADVISE, [text.start.0, text.len(), advice, 0, 0, 0]);
}

/// Whether the process's own switch is turned off for everything. (Bit 0 is the switch; the next one, from Linux 6.18 on, excepts
/// what is asked for.)
///
/// # Errors
/// Those of a system call that could not be run.
pub fn disabled(remote: &mut Remote<'_>) -> Result<bool, tracee::Error> {
    Ok(switch(remote)? == DISABLED)
}

/// The switch as it is. 0 is on, as it always is before Linux 3.15.
fn switch(remote: &mut Remote<'_>) -> Result<u64, tracee::Error> {
    match remote.syscall(PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0]) {
        Err(tracee::Error::Remote { .. }) => Ok(0),
        is => Ok(is?.cast_unsigned()),
    }
}

/// Touches what is to be in huge pages, with the process's switch turned on, as it is off. Nothing was written to these caches: a
/// small page that is there stays one. Returns for how long at most a thread was stopped.
///
/// # Errors
/// [`Error::Tracee`] where the switch could not be turned back; that it is owed stays on record. Without huge pages everything
/// works as well, only slower: no other error here is worth giving up for.
pub fn touch(process: &Process, anchor: &Anchor, caches: &[&CachePlan]) -> Result<Duration, Error> {
    fault::point();
    // A debt that is not on record is not run up.
    if record(process, anchor, DISABLED).is_err() {
        return Ok(Duration::ZERO);
    }
    fault::point();
    let turned = tracee::timed_with_one_stopped(process, |remote| {
        // It may have been turned since, by the program.
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
        touch_each(process, caches);
        fault::point();
    }
    let back = turn_back(process, anchor, DISABLED)?;
    Ok(turned.map_or(back, |(_, turning)| turning.max(back)))
}

/// The first byte of each huge page. Where the kernel has to look for one the others stay small.
fn touch_each(process: &Process, caches: &[&CachePlan]) {
    let pages = caches.iter().flat_map(|c| {
        let text = c.text_range();
        (0..text.len() / HUGE).map(move |i| text.start.add(i * HUGE))
    });
    for page in pages {
        let began = Instant::now();
        if process.write(page, &[0]).is_err() || began.elapsed() > LONG {
            break;
        }
    }
}

/// Puts on record what is owed.
fn record(process: &Process, anchor: &Anchor, owed: u64) -> Result<(), Error> {
    toggle::write_checked(process, anchor.owed_at(), &owed.to_le_bytes())
}

/// Turns the switch off, as it was: bit 0 is the switch; from Linux 6.18 on the others are its flags
/// (`PR_THP_DISABLE_EXCEPT_ADVISED`).
fn switch_off(remote: &mut Remote<'_>, disabled: u64) -> Result<(), tracee::Error> {
    remote.syscall(PRCTL, [PR_SET_THP_DISABLE, disabled & 1, disabled & !1, 0, 0, 0]).map(|_| ())
}

/// Turns the process's switch of huge pages back, where that is on record: a whet died, or could not. Nobody else may be at
/// work on the target.
///
/// # Errors
/// [`Error::Tracee`]; what is owed stays on record then.
pub fn recover_pending(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    match process.u64(anchor.owed_at())? {
        0 => Ok(()),
        disabled => turn_back(process, anchor, disabled).map(drop),
    }
}

/// Returns for how long a thread was stopped.
fn turn_back(process: &Process, anchor: &Anchor, disabled: u64) -> Result<Duration, Error> {
    let ((), stopped) = tracee::timed_with_one_stopped(process, |remote| {
        // A program that has turned it itself since wants it as it is.
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
