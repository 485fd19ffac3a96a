//! Ends counting. Afterwards counting clones behave as their originals, and no thread has a GS base set by
//! whet.
//!
//! In a clone that counts, only counters access memory behind the GS base. Such an instruction has 9 bytes,
//! and the first byte is the GS prefix. A short jump over the other bytes replaces the first two bytes. If a
//! page ends between these two, the bytes behind the prefix become a nop instead, so that one page changes.
//!
//! INVARIANT(boundaries): an instruction begins only where one began before, so a thread may be anywhere. A
//! counter of three instructions may be cut short: no later instruction reads its register.
//! INVARIANT(order): bases are reset only when nothing counts. So if whet dies in between, clones that still
//! count have their own memory.

use crate::counter_sites::{CounterSite, CounterSites, HEAD};
use crate::counters::{release_counters, reset_bases};
use crate::write::{self, Write};
use crate::{Cache, Error, Installed, Policy, State, ToggleReport, fault, toggle};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use tracee::Process;

/// The size of an instruction that accesses counters' memory. Bytes.
const LEN: u64 = 9;
/// Its first byte.
const GS: u8 = 0x65;
/// `jmp` over the rest of the instruction.
const JUMP: [u8; 2] = [0xeb, 7];
/// Behind the first byte: `nop` with an operand of a SIB and a disp32, as in the instruction that it
/// replaces.
const NOP: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];
/// The SIB byte of an operand that is only a disp32: the last byte that may be replaced.
const ABSOLUTE: u8 = 0x25;
const PAGE: u64 = 4096;

/// The result of the end of counting.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The redirects written, and all stops.
    pub report: ToggleReport,
    /// The first thread that was found to use its GS base itself, and the base.
    pub own_base: Option<(i32, u64)>,
}

/// Ends counting: redirects are undone, then clones count no more and all bases are reset. The counters'
/// memory stays until [`release_counters`].
///
/// # Errors
/// As [`crate::undo`].
pub fn end_counting(process: &Process, installed: &Installed, policy: &Policy) -> Result<Ended, Error> {
    let mut report = toggle::take_away(process, installed, policy)?;
    let own_base = silence(process, installed, policy, &mut report)?;
    if report.foreign.is_empty() {
        for cache in counting(installed) {
            fault::point();
            toggle::mark(process, cache.header.data.start, State::Undone)?;
        }
    }
    Ok(Ended { report, own_base })
}

/// Returns the caches that count according to their journals. If no journal says so, returns all caches that
/// ever counted, since each may still count.
fn counting(installed: &Installed) -> impl Iterator<Item = &Cache> {
    let all = !installed.is_counting();
    installed.caches.iter().filter(move |c| c.header.counting && (all || c.header.state != State::Undone))
}

/// Makes all counting clones stop counting, and resets all bases, whether or not redirects lead to the
/// clones.
pub(crate) fn silence(
    process: &Process,
    installed: &Installed,
    policy: &Policy,
    report: &mut ToggleReport,
) -> Result<Option<(i32, u64)>, Error> {
    let mut changes = Vec::new();
    for cache in counting(installed) {
        let notes = cache.notes(process)?;
        let sites = CounterSites::read(&notes).ok_or(Error::CountsForGood)?;
        let silent = |_: &_, own: &mut [u8], at| pass_over(own, at);
        changes.extend(change(process, cache.header.text, &sites.sites, &silent)?);
    }
    let area = installed.anchor.recorded_counters(process)?;
    if changes.is_empty() && area.is_none() {
        return Ok(None);
    }
    let mut stopped = toggle::stop(process, policy, report)?;
    let mut quiet = || {
        for change in &changes {
            fault::point();
            change.put(process)?;
        }
        fault::point();
        area.map_or(Ok(None), |area| reset_bases(&mut stopped, &area))
    };
    let outcome = quiet();
    let released = stopped.release()?;
    report.stops.push(released.stopped);
    report.cured += released.cured;
    let own_base = outcome?;
    write::check(process, &changes)?;
    Ok(own_base)
}

/// Returns a write that changes the instructions of counters at `sites`. It covers whole pages, which the
/// kernel writes one by one. `edit` gets a site, its bytes and its address, and changes the bytes. It
/// returns `false` if the bytes are not as expected.
pub(crate) fn change(
    process: &Process,
    text: AvmaRange,
    sites: &[CounterSite],
    edit: &dyn Fn(&CounterSite, &mut [u8], Avma) -> bool,
) -> Result<Option<Write>, Error> {
    let (Some(&first), Some(&last)) = (sites.first(), sites.last()) else { return Ok(None) };
    let start = text.start.add(first.place.into()).align_down(PAGE);
    let end = Avma(text.start.add(u64::from(last.place) + LEN).0.next_multiple_of(PAGE)).min(text.end);
    let range = AvmaRange::new(start, end);
    let before = process.bytes(range)?;
    let mut now = before.clone();
    let offset = |at: Avma| at.since(start).and_then(|o| usize::try_from(o).ok());
    for site in sites {
        let at = text.start.add(site.place.into());
        let own = offset(at).and_then(|o| now.get_mut(o..o + usize::try_from(LEN).unwrap_or(0)));
        if !own.is_some_and(|own| edit(site, own, at)) {
            return Err(Error::Journal { at, what: "no counter where one should be" });
        }
    }
    Ok(Some(Write { at: start, before, now }))
}

/// Returns whether a page ends between the first two bytes of an instruction.
fn splits(at: Avma) -> bool {
    let second = at.add(1);
    second == second.align_down(PAGE)
}

/// Restores the counter's instruction at `at`, which begins with `head`. Returns `false` if the bytes are
/// neither that instruction nor the replacement by [`pass_over`].
pub(crate) fn count_again(bytes: &mut [u8], at: Avma, head: [u8; HEAD]) -> bool {
    let is_counter = head[0] == GS && matches!(head[1], 0x48 | 0x4c) && head[4] == ABSOLUTE;
    let done = if splits(at) { bytes.get(1..5) == Some(&NOP) } else { bytes.starts_with(&JUMP) };
    match bytes.get_mut(..HEAD) {
        Some(own) if is_counter && (done || *own == head) => {
            own.copy_from_slice(&head);
            true
        }
        _ => false,
    }
}

/// Replaces a counter's instruction at `at` by one without effect. Returns `false` if the bytes are not a
/// counter's instruction.
fn pass_over(bytes: &mut [u8], at: Avma) -> bool {
    let splits = splits(at);
    let done = if splits { bytes.get(1..5) == Some(&NOP) } else { bytes.starts_with(&JUMP) };
    if done {
        return true;
    }
    let is_counter = bytes.first() == Some(&GS) && bytes.get(1).is_some_and(|rex| matches!(rex, 0x48 | 0x4c));
    match if splits { bytes.get_mut(1..5) } else { bytes.get_mut(..2) } {
        Some(changed) if is_counter => {
            changed.copy_from_slice(if splits { &NOP[..] } else { &JUMP[..] });
            true
        }
        _ => false,
    }
}

/// Unmaps the counters' memory if nothing can count in it any more.
pub(crate) fn release(process: &Process, installed: &Installed) -> Result<(), Error> {
    if installed.counts_for_good() { Ok(()) } else { release_counters(process, &installed.anchor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silenced_counters_count_again() {
        for inc in [[0x65, 0x48, 0xff, 0x04, 0x25, 1, 2, 3, 4], [0x65, 0x4c, 0x89, 0x0c, 0x25, 1, 2, 3, 4]] {
            let head = [inc[0], inc[1], inc[2], inc[3], inc[4]];
            for at in [0x1000u64, 0x1ffd, 0x1fff].map(Avma) {
                let mut bytes = inc;
                assert!(pass_over(&mut bytes, at) && bytes != inc);
                assert!(count_again(&mut bytes, at, head));
                assert_eq!(bytes, inc);
                // A second call changes nothing.
                assert!(count_again(&mut bytes, at, head));
                // Fails for other bytes at the place, and for notes that do not fit.
                assert!(!count_again(&mut [0x90; 9], at, head));
                assert!(pass_over(&mut bytes, at));
                assert!(!count_again(&mut bytes, at, [0xe9, 0, 0, 0, 0]));
            }
        }
    }

    #[test]
    fn a_counter_is_silenced_by_a_write_in_one_page() {
        let inc = [0x65, 0x48, 0xff, 0x04, 0x25, 1, 2, 3, 4];
        for (at, changed, wanted) in [
            (0x1000u64, 0..2, [0xeb, 7, 0xff, 0x04, 0x25, 1, 2, 3, 4]),
            (0x1ffd, 0..2, [0xeb, 7, 0xff, 0x04, 0x25, 1, 2, 3, 4]),
            (0x1fff, 1..5, [0x65, 0x0f, 0x1f, 0x84, 0x00, 1, 2, 3, 4]),
        ] {
            let mut bytes = inc;
            assert!(pass_over(&mut bytes, Avma(at)));
            assert_eq!(bytes, wanted);
            let pages = [at + changed.start, at + changed.end - 1].map(|a| a / PAGE);
            assert_eq!(pages[0], pages[1]);
            // A second call changes nothing.
            assert!(pass_over(&mut bytes, Avma(at)));
            assert_eq!(bytes, wanted);
        }
        assert!(!pass_over(&mut [0x64, 0x48, 0xff, 0x04, 0x25, 1, 2, 3, 4], Avma(0x1000)));
        assert!(!pass_over(&mut [0x65], Avma(0x1000)));
    }
}
