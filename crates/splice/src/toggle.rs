//! Writes and undoes redirects. The target is stopped only for these writes.
//!
//! INVARIANT(one page): each write lies inside one page, and the kernel copies such a write without a check
//! for signals. So the death of whet leaves every redirect either old or new, never torn.
//! INVARIANT(first byte): no redirect that is put in force covers a byte at which an instruction begins, and
//! only the bytes of redirects are written. So no thread can be in the middle of a redirect. Probes and
//! breakpoints of other tools replace the first byte of an instruction, so they can be set and removed at any
//! time without harm.

use crate::journal::{STATE_OFFSET, STOPPED_OFFSET};
use crate::mark::Marks;
use crate::page::{self, Site};
use crate::write::{self, Write};
use crate::{
    Anchor, Cache, CounterArea, Error, Installed, Record, RedirectKind, State, counters, fault, finishing,
    quiet,
};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::collections::BTreeMap;
use std::time::Duration;
use tracee::{Patience, Process, Seized, StopError, Stopped};

/// Limits for the stops of one change.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Longest wait for threads that are stuck in the kernel, after which all threads are released.
    pub deadline: Duration,
    /// Longest wait for threads that only wait for a CPU, at the first attempt; at the n-th attempt n times
    /// as long.
    pub starved: Duration,
    /// How many stops to try in all, if threads do not stop in time or bind a redirected slot meanwhile.
    pub attempts: u32,
    /// Pause between attempts.
    pub pause: Duration,
    /// How many writes are made in one stop. The rest takes further stops, since every prefix of a change is
    /// sound. Code needs one write for each redirect, data one for each page.
    pub writes: usize,
    /// Pause between the stops that make the writes of one change, unless all threads waited in system calls.
    pub breath: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            starved: Duration::from_millis(200),
            attempts: 10,
            pause: Duration::from_millis(20),
            writes: 600,
            breath: Duration::from_millis(3),
        }
    }
}

/// The result of one undo, redo or installation.
#[derive(Clone, Debug, Default)]
pub struct ToggleReport {
    /// Redirects that are now as intended, by kind.
    pub done: BTreeMap<RedirectKind, usize>,
    /// Addresses of redirects that hold neither whet's bytes nor the original's: left alone.
    pub foreign: Vec<Avma>,
    /// How long all threads were stopped, each time.
    pub stops: Vec<Duration>,
    /// Stops that were given up because threads did not stop in time.
    pub busy: u32,
    /// Waiting system calls that were restarted so that the program did not notice the stop.
    pub cured: usize,
}

/// Undoes every redirect of every generation. The lookup of unwinders stays redirected, as they may still
/// meet frames of clones.
///
/// # Errors
/// [`Error::Tracee`] if the target could not be stopped within the policy, [`Error::WriteLost`] if the kernel
/// lost a write. All changes made until then are valid; a second undo continues from there.
pub fn undo(process: &Process, installed: &Installed, policy: &Policy) -> Result<ToggleReport, Error> {
    let report = if installed.may_count() {
        quiet::end_counting(process, installed, policy)?.report
    } else {
        take_away(process, installed, policy)?
    };
    quiet::release(process, installed)?;
    Ok(report)
}

/// As [`undo`], for redirects alone. A cache that counts is marked as undone only if no notes say how to end
/// its counting.
pub(crate) fn take_away(
    process: &Process,
    installed: &Installed,
    policy: &Policy,
) -> Result<ToggleReport, Error> {
    finishing::publish(process, &mut installed.anchor.clone())?;
    let records: Vec<Record> = installed.of_use().flat_map(|c| c.records.iter().copied()).collect();
    let ends = |c: &&Cache| c.header.counting && !installed.counts_for_good();
    let marked = installed.of_use().filter(|c| !ends(c));
    let marks: Vec<_> = marked.map(|c| (c.header.data.start, State::Undone)).collect();
    let none = Change {
        word: None,
        module_list: installed.anchor.module_list_redirects(),
        counters: None,
        arms: &[],
        only_if: None,
        revert: &records,
        apply: &[],
        marks: &marks,
    };
    run(process, &none, policy)
}

/// Announces an operator's undo: from now on no change that began before comes into force, by any whet. A
/// stop of another whet at this moment may still put redirects in force; they are listed in the target, so
/// look again.
///
/// # Errors
/// [`Error::Tracee`] if the target cannot be written.
pub fn overrule(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    let undos = process.u64(anchor.undos_at())?.wrapping_add(1);
    Ok(process.write(anchor.undos_at(), &undos.to_le_bytes())?)
}

/// Puts the newest generation's redirects in force again.
///
/// # Errors
/// As [`undo`].
pub fn redo(process: &Process, installed: &Installed, policy: &Policy) -> Result<ToggleReport, Error> {
    put_in_force(process, installed, installed.generation(), policy)
}

/// Puts one generation's redirects in force, and undoes those of all others. The newest generation stays the
/// newest: [`redo`] puts it in force.
///
/// # Errors
/// As [`undo`].
pub fn put_in_force(
    process: &Process,
    installed: &Installed,
    generation: u32,
    policy: &Policy,
) -> Result<ToggleReport, Error> {
    if installed.may_count() {
        quiet::silence(process, installed, policy, &mut ToggleReport::default())?;
        quiet::release(process, installed)?;
    }
    let wanted: Vec<_> = installed.of(generation).collect();
    let records: Vec<Record> = wanted.iter().flat_map(|c| c.records.iter().copied()).collect();
    let marks: Vec<_> = wanted.iter().map(|c| (c.header.data.start, State::Applied)).collect();
    let (word, module_list) = (Word::swap(&installed.anchor), installed.anchor.module_list_redirects());
    // A comparison, or an installer that died, may have left another generation in force.
    let is_other = |c: &&Cache| c.header.counting || c.header.generation != generation;
    let others: Vec<&Cache> = installed.of_use().filter(is_other).collect();
    let other_records: Vec<Record> = others.iter().flat_map(|c| c.records.iter().copied()).collect();
    let marks: Vec<_> = others.iter().map(|c| (c.header.data.start, State::Undone)).chain(marks).collect();
    let only_if = Some(&installed.anchor);
    let (revert, apply) = (&other_records[..], &records[..]);
    let change =
        Change { word, module_list, counters: None, arms: &[], only_if, revert, apply, marks: &marks };
    finishing::publish(process, &mut installed.anchor.clone())?;
    run(process, &change, policy)
}

/// A pointer-sized word to change at the first stop, before any redirect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub at: Avma,
    pub expected: u64,
    pub new: u64,
}

impl Word {
    /// Returns the redirect of the unwinder's lookup to the anchor. It is in force already unless the
    /// installer died before.
    pub fn swap(a: &Anchor) -> Option<Self> {
        a.slot.map(|at| Self { at, expected: a.original, new: a.routine().0 })
    }

    /// Writes the word, with all threads stopped.
    pub fn put(&self, process: &Process) -> Result<(), Error> {
        let found = process.u64(self.at)?;
        if found == self.new {
            return Ok(());
        }
        if found != self.expected {
            return Err(Error::LookupChanged { slot: self.at, found, expected: self.expected });
        }
        fault::point();
        write_checked(process, self.at, &self.new.to_le_bytes())
    }
}

/// All parts of one change of a target, in the order in which they are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub word: Option<Word>,
    /// Redirects of unwinders' calls of `dl_iterate_phdr`. No other redirect is applied before they are in
    /// force, and they are never undone.
    pub module_list: &'a [Record],
    /// The memory for the counters of the applied clones.
    pub counters: Option<&'a CounterArea>,
    /// Text of clones that count again, written once all threads have their bases.
    pub arms: &'a [Write],
    /// The anchor as it was read. If an operator's undo has begun since, nothing comes into force.
    pub only_if: Option<&'a Anchor>,
    pub revert: &'a [Record],
    pub apply: &'a [Record],
    pub marks: &'a [(Avma, State)],
}

/// Returns the places of a change, by page; places to undo come before places to apply.
fn sites(change: &Change<'_>) -> Result<Vec<Site>, Error> {
    let mut by_place: BTreeMap<(Avma, u8), Site> = BTreeMap::new();
    let reverted = change.revert.iter().map(|r| (*r, false));
    let applied = change.apply.iter().map(|r| (*r, true));
    for (age, (record, apply)) in reverted.chain(applied).enumerate() {
        let before = by_place.remove(&(record.at, record.len)).map(|s| s.redirected).unwrap_or_default();
        let redirected = before.into_iter().chain([record.new]).collect();
        by_place.insert((record.at, record.len), Site { record, redirected, apply, age });
    }
    let mut sites: Vec<Site> = by_place.into_values().collect();
    if let Some(s) = sites.iter().find(|s| !s.record.in_one_page()) {
        return Err(Error::UnsoundRedirect(s.record.at));
    }
    if let Some(s) = sites.iter().find(|s| s.apply && s.record.interior != 0) {
        return Err(Error::CoversInstruction(s.record.at));
    }
    sites.sort_by_key(|s| (s.record.at.align_down(4096), s.apply, s.record.at));
    Ok(sites)
}

pub(crate) fn run(process: &Process, change: &Change<'_>, policy: &Policy) -> Result<ToggleReport, Error> {
    let sites = sites(change)?;
    prefault(process, change.module_list.iter().chain(sites.iter().map(|s| &s.record)))?;
    let mut report = ToggleReport::default();
    let mut todo: Vec<usize> = (0..sites.len()).collect();
    let mut attempt = 1;
    loop {
        let rest = todo.split_off(some_pages(&sites, &todo, policy.writes));
        let mut stopped = stop(process, policy, &mut report)?;
        let waited = stopped.all_waited();
        let outcome = in_stop(&mut stopped, &sites, &todo, change, &mut report);
        let released = stopped.release()?;
        report.stops.push(released.stopped);
        report.cured += released.cured;
        write::check(process, &outcome?)?;
        todo = rest;
        if !todo.is_empty() {
            if !waited {
                std::thread::sleep(policy.breath);
            }
        } else if attempt >= policy.attempts
            || change.apply.is_empty()
            || !slipped(process, change.module_list)?
        {
            break;
        } else {
            attempt += 1;
            std::thread::sleep(policy.pause);
        }
    }
    // If another program changed a redirect, whet's bytes may return when that program restores the bytes it
    // replaced.
    let clean = report.foreign.is_empty();
    let longest = report.stops.iter().max().map_or(0, Duration::as_nanos);
    let longest = u64::try_from(longest).unwrap_or(u64::MAX).to_le_bytes();
    not_overruled(process, change)?;
    for &(journal, state) in change.marks.iter().filter(|(_, s)| clean || *s != State::Undone) {
        // For information: if whet dies here, the value of an earlier stop remains.
        process.write(journal.add(STOPPED_OFFSET), &longest)?;
        fault::point();
        mark(process, journal, state)?;
    }
    Ok(report)
}

/// Writes the state of a journal's generation.
pub(crate) fn mark(process: &Process, journal: Avma, state: State) -> Result<(), Error> {
    Ok(process.write(journal.add(STATE_OFFSET), &state.code().to_le_bytes())?)
}

/// Checks that no operator's undo has begun since the anchor was read.
fn not_overruled(process: &Process, change: &Change<'_>) -> Result<(), Error> {
    match change.only_if {
        Some(anchor) if process.u64(anchor.undos_at())? != anchor.undos => Err(Error::NotAlone),
        _ => Ok(()),
    }
}

/// Returns how many of the places in `todo` lie in its first pages that together need at most `writes`
/// writes. At least one page counts.
fn some_pages(sites: &[Site], todo: &[usize], writes: usize) -> usize {
    let mut sum = 0;
    let fits = |here: &&[usize]| {
        let before = sum;
        sum += if page::is_code(sites, here) { here.len() } else { 1 };
        before == 0 || sum <= writes
    };
    by_page(sites, todo).take_while(fits).map(<[usize]>::len).sum()
}

fn by_page<'a>(sites: &[Site], places: &'a [usize]) -> impl Iterator<Item = &'a [usize]> {
    let page_of = |i: &usize| sites[*i].record.at.align_down(4096);
    places.chunk_by(move |a, b| page_of(a) == page_of(b))
}

/// Stops all threads, with as many attempts as the policy allows.
pub(crate) fn stop<'p>(
    process: &'p Process,
    policy: &Policy,
    report: &mut ToggleReport,
) -> Result<Stopped<'p>, Error> {
    let mut left = policy.attempts;
    loop {
        left = left.saturating_sub(1);
        let attempt = policy.attempts.saturating_sub(left).clamp(1, 10);
        let patience = Patience { blocked: policy.deadline, starved: policy.starved * attempt };
        match Seized::seize(process).map_err(StopError::from).and_then(|s| s.stop(patience)) {
            // Another attempt after one that has ended transfers early would end more of them.
            Err(StopError::Busy { cut: 0, .. }) if left > 0 => {
                report.busy += 1;
                std::thread::sleep(policy.pause);
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Makes the changes of one stop. Returns the writes that are to be checked.
fn in_stop(
    stopped: &mut Stopped<'_>,
    sites: &[Site],
    left: &[usize],
    change: &Change<'_>,
    report: &mut ToggleReport,
) -> Result<Vec<Write>, Error> {
    let process = stopped.process();
    not_overruled(process, change)?;
    change.word.iter().try_for_each(|word| word.put(process))?;
    if let Some(area) = change.counters {
        counters::hand_out(stopped, area)?;
    }
    let mut written = Vec::new();
    // In the first stop of a change.
    if report.stops.is_empty() {
        for arm in change.arms {
            fault::point();
            arm.put(process)?;
            written.push(arm.clone());
        }
    }
    if !change.apply.is_empty() {
        change.module_list.iter().try_for_each(|r| redirect_call(process, r))?;
        finishing::open(process, change.word, change.module_list)?;
    }
    // Nothing is written if another module has replaced the module that was rebuilt.
    let marks = Marks::look(process, left.iter().map(|&i| &sites[i].record))?;
    let left: Vec<usize> = left.iter().copied().filter(|&i| marks.stands(&sites[i].record)).collect();
    let left = &left[..];
    let pages: Vec<&[usize]> = by_page(sites, left).collect();
    // The jump of an older whet at the entry of `dl_iterate_phdr`, which redirects may overlap.
    let hook = change.module_list.first();
    let spans: Vec<AvmaRange> = pages.iter().map(|here| page::span(sites, here, hook)).collect();
    // One system call reads all pages: one call for each would take most of a stop.
    let before = process.read_many(&spans)?;
    // When installing, do not count removed redirects of older generations.
    let undoes = change.marks.iter().all(|(_, state)| *state == State::Undone);
    for ((here, &span), before) in pages.into_iter().zip(&spans).zip(before) {
        let mut bytes = before.clone();
        let outcome = page::change(sites, here, span, &mut bytes, hook);
        for site in outcome.done.into_iter().map(|i| &sites[i]).filter(|s| s.apply || undoes) {
            *report.done.entry(site.record.kind).or_default() += 1;
        }
        report.foreign.extend(outcome.foreign);
        if bytes != before {
            fault::point();
            let writes = page::writes(sites, here, span, &before, &bytes);
            written.extend(put_page(process, sites, here, writes)?);
        }
    }
    Ok(written)
}

/// Makes the writes of one page. Returns the writes to check after the stop.
fn put_page(
    process: &Process,
    sites: &[Site],
    here: &[usize],
    writes: Vec<Write>,
) -> Result<Vec<Write>, Error> {
    // When the threads run again, such a module may be unloaded.
    if here.iter().any(|&i| sites[i].record.mark.is_some()) {
        for write in writes {
            write_checked(process, write.at, &write.now)?;
        }
        return Ok(Vec::new());
    }
    writes.iter().try_for_each(|write| write.put(process))?;
    // A thread that was binding a slot at the stop may bind it again: then the original runs.
    let may_be_rebound = !page::is_code(sites, here) && here.iter().all(|&i| sites[i].apply);
    Ok(if may_be_rebound { Vec::new() } else { writes })
}

/// Returns whether a thread that was binding a redirected slot at the stop has bound it since.
pub(crate) fn slipped(process: &Process, calls: &[Record]) -> Result<bool, Error> {
    for r in calls {
        if process.bytes(r.range())? != r.new_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Redirects one call of `dl_iterate_phdr`. No thread can be inside a word of data or a displacement.
pub(crate) fn redirect_call(process: &Process, record: &Record) -> Result<(), Error> {
    let now = process.bytes(record.range())?;
    if now == record.new_bytes() {
        return Ok(());
    }
    // A slot that is not bound yet holds neither value.
    let as_it_was = record.kind == RedirectKind::Slot || now == record.old_bytes();
    if !as_it_was || record.interior != 0 {
        return Err(Error::WalkChanged(record.at));
    }
    fault::point();
    write_checked(process, record.at, record.new_bytes())
}

/// Reads from each page, so that pages are read from the disk before the target is stopped.
///
/// Nothing is written: the target runs and may change the byte between a read and a write. So private copies
/// of pages are made in the stop, at about a microsecond each.
fn prefault<'a>(process: &Process, records: impl Iterator<Item = &'a Record>) -> Result<(), Error> {
    let mut done = None;
    for record in records {
        let page = record.at.align_down(4096);
        if done == Some(page) {
            continue;
        }
        done = Some(page);
        let read = process.read(record.at, &mut [0]);
        // The module of a marked record may have been unloaded.
        if record.mark.is_none() {
            read?;
        }
    }
    Ok(())
}

/// Writes bytes and reads them back.
pub(crate) fn write_checked(process: &Process, at: Avma, bytes: &[u8]) -> Result<(), Error> {
    process.write(at, bytes)?;
    let range = AvmaRange::with_len(at, bytes.len() as u64);
    if process.bytes(range)? == bytes { Ok(()) } else { Err(Error::WriteLost { range }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64, new: u8) -> Record {
        Record {
            at: Avma(at),
            kind: RedirectKind::Entry,
            len: 5,
            interior: 0,
            old: [0x55; 8],
            new: [new; 8],
            mark: None,
        }
    }

    #[test]
    fn a_new_generation_replaces_the_old_ones_in_one_pass() {
        let old = [record(0x1000, 1), record(0x1000, 2), record(0x1010, 1)];
        let new = [record(0x1000, 3), record(0x1020, 3)];
        let s = sites(&Change {
            word: None,
            module_list: &[],
            counters: None,
            arms: &[],
            only_if: None,
            revert: &old,
            apply: &new,
            marks: &[],
        })
        .unwrap();
        let got: Vec<_> =
            s.iter().map(|s| (s.record.at.0, s.apply, s.record.new[0], s.redirected.len())).collect();
        assert_eq!(got, vec![(0x1010, false, 1, 1), (0x1000, true, 3, 3), (0x1020, true, 3, 1)]);
    }

    #[test]
    fn a_redirect_over_a_page_end_is_refused() {
        let r = [record(0x1ffe, 1)];
        assert!(
            sites(&Change {
                word: None,
                module_list: &[],
                counters: None,
                arms: &[],
                only_if: None,
                revert: &[],
                apply: &r,
                marks: &[],
            })
            .is_err()
        );
    }
}
