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

/// Whether this host gives huge pages to who asks, by what its operator has set (`Documentation/admin-guide/mm/transhuge.rst`).
#[must_use]
pub fn offered() -> bool {
    const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
    let set = |file: &str| std::fs::read_to_string(format!("{FOLDER}/{file}")).unwrap_or_default();
    // Sizes of their own, from Linux 6.8 on, inherit unless told otherwise.
    let of_all = set("enabled");
    let of_size = set("hugepages-2048kB/enabled");
    is_offered(if of_size.is_empty() || of_size.contains("[inherit]") { &of_all } else { &of_size })
}

fn is_offered(setting: &str) -> bool {
    setting.contains("[always]") || setting.contains("[madvise]")
}

/// Asks for huge pages at first touch, or for none. Refused by kernels without them; packing alone is most of the gain then.
pub fn advise(remote: &mut Remote<'_>, text: AvmaRange, wanted: bool) {
    let advice = if wanted { MADV_HUGEPAGE } else { MADV_NOHUGEPAGE };
    let _ = remote.syscall(MADVISE, [text.start.0, text.len(), advice, 0, 0, 0]);
}

/// Whether the process has huge pages switched off, even where they are asked for. (Bit 0 is the switch; the next one, from Linux
/// 6.18 on, excepts what is asked for.)
///
/// # Errors
/// Those of a system call that could not be run.
pub fn disabled(remote: &mut Remote<'_>) -> Result<bool, tracee::Error> {
    match remote.syscall(PRCTL, [PR_GET_THP_DISABLE, 0, 0, 0, 0, 0]) {
        Ok(is) => Ok(is.cast_unsigned() == DISABLED),
        // Before Linux 3.15.
        Err(tracee::Error::Remote { .. }) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Touches what is to be in huge pages, with the process's switch turned on, as it is off. Nothing was written to these caches: a
/// small page that is there stays one. Returns for how long at most a thread was stopped.
///
/// # Errors
/// [`Error::Tracee`] where the switch could not be turned back; that it is owed stays on record. Without huge pages everything
/// works as well, only slower: no other error here is worth giving up for.
pub fn touch(process: &Process, anchor: &Anchor, caches: &[&CachePlan]) -> Result<Duration, Error> {
    if !on_record(process, anchor) {
        return Ok(Duration::ZERO);
    }
    fault::point();
    let began = Instant::now();
    let turned = tracee::with_one_stopped(process, |remote| {
        // It may have been turned since, by the program.
        let off = disabled(remote)?;
        if off {
            remote.syscall(PRCTL, [PR_SET_THP_DISABLE, 0, 0, 0, 0, 0])?;
        }
        Ok(off)
    });
    let turning = began.elapsed();
    if let Ok(false) = turned {
        toggle::write_checked(process, anchor.owed_at(), &0u64.to_le_bytes())?;
        return Ok(turning);
    }
    if turned.is_ok() {
        fault::point();
        touch_each(process, caches);
        fault::point();
    }
    let began = Instant::now();
    turn_back(process, anchor, DISABLED)?;
    Ok(turning.max(began.elapsed()))
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

/// Puts the debt on record. One that is not is not run up.
fn on_record(process: &Process, anchor: &Anchor) -> bool {
    fault::point();
    process.write(anchor.owed_at(), &DISABLED.to_le_bytes()).is_ok()
        && process.u64(anchor.owed_at()).is_ok_and(|owed| owed == DISABLED)
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
pub fn settle(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    match process.u64(anchor.owed_at())? {
        0 => Ok(()),
        disabled => turn_back(process, anchor, disabled),
    }
}

fn turn_back(process: &Process, anchor: &Anchor, disabled: u64) -> Result<(), Error> {
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

#[cfg(test)]
mod tests {
    use super::is_offered;

    #[test]
    fn what_operators_set() {
        for (set, offered) in [
            ("[always] madvise never", true),
            ("always [madvise] never", true),
            ("always madvise [never]", false),
            ("always inherit madvise [never]", false),
            ("", false),
        ] {
            assert_eq!(is_offered(set), offered, "{set}");
        }
    }
}
