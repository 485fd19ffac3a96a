//! Memory in which clones count, and how each thread gets a part of its own.
//!
//! A counter is at an offset from the GS base of the thread that counts. User space on x86-64 Linux leaves that base 0
//! (psABI 3.4.2 gives threads FS alone), so it can be lent to us: while the world stands still every thread is given the
//! start of a part of the area. A thread that is born later has the part of the one that bore it; counts that
//! two of them write at once may be lost.
//!
//! INVARIANT(kept): the area stays mapped and the bases stay as they were given, also after the clones were taken
//! out: a thread may come back into one at any time, from a call that waited. What the area holds is given back. A
//! later area has no smaller parts, as clones of before count at their offsets wherever the base points; and later clones
//! count at offsets behind theirs ([`free_offset`]), so that what comes back late counts for nobody.

use crate::{Anchor, Error, Installed, fault, toggle};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::ops::Range;
use tracee::{Process, Stopped};

/// The area of a target: parts of equal size, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterArea {
    /// All of it.
    pub range: AvmaRange,
    /// Bytes of a part.
    pub part: u64,
    /// The offset behind those at which the last clones were told to count.
    pub used: u64,
}

/// Parts at least, and for each thread there is: more will be born.
const LEAST_PARTS: u64 = 16;
const PARTS_PER_THREAD: u64 = 2;
/// How often a part has the room that is asked for, where that is to be had: the next round will ask for more. It is memory only
/// once it is counted in.
const ROOM: u64 = 2;
/// Address space that an area may take. Threads share parts where it is not enough. Bytes.
const MOST: u64 = 256 << 20;

/// Clones that count at the same time as those of before share no cache line with them. Bytes.
const LINE: u64 = 64;
const PAGE: u64 = 4096;

const MMAP: i64 = 9;
const MADVISE: i64 = 28;
const MADV_DONTNEED: u64 = 4;
const MADV_NOHUGEPAGE: u64 = 15;
const READ_WRITE: u64 = 1 | 2;
/// `MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE`
const MAP_FLAGS: u64 = 0x02 | 0x20 | 0x4000;

impl CounterArea {
    fn parts(&self) -> u64 {
        self.range.len() / self.part
    }

    fn base(&self, part: u64) -> Avma {
        self.range.start.add(part * self.part)
    }

    fn free_offset(&self, bytes: u32, threads: u64) -> u32 {
        let free = self.used.checked_next_multiple_of(LINE).unwrap_or(u64::MAX);
        let part = free.saturating_add(bytes.into()).max(self.part).saturating_add(PAGE);
        let is_room = part.saturating_mul(threads) <= MOST;
        u32::try_from(free).ok().filter(|_| is_room).unwrap_or(0)
    }

    /// The part that a GS base points to.
    fn part_of(&self, base: u64) -> Option<u64> {
        let offset = Avma(base).since(self.range.start).filter(|_| self.range.contains(Avma(base)))?;
        offset.is_multiple_of(self.part).then(|| offset / self.part)
    }
}

/// The offset from which on so many bytes are free: no clone of before counts there. Where an area of such parts, one for each
/// thread, were larger than areas may be, offsets begin again, and a thread that comes back late may count for another
/// clone.
///
/// # Errors
/// [`Error::Tracee`].
pub fn free_offset(process: &Process, installed: Option<&Installed>, bytes: u32) -> Result<u32, Error> {
    let Some(area) = installed.and_then(|i| i.anchor.counters) else { return Ok(0) };
    Ok(area.free_offset(bytes, process.threads()?.len() as u64))
}

/// Sees to an area with room for these offsets in each part, all zeros: the one there is, or a new one.
/// It is on record only once it is handed out.
///
/// # Errors
/// [`Error::NoCounterMemory`]; [`Error::Tracee`].
pub(crate) fn provide(
    process: &Process,
    anchor: &Anchor,
    offsets: &Range<u32>,
) -> Result<CounterArea, Error> {
    let threads = process.threads()?.len() as u64;
    let used = u64::from(offsets.end);
    let wanted = used.next_multiple_of(PAGE).max(PAGE);
    let enough = |a: &CounterArea| a.part >= wanted && a.parts() >= threads.min(most_parts(a.part));
    if let Some(area) = anchor.counters.filter(enough) {
        forget_counters(process, &area)?;
        return Ok(CounterArea { used, ..area });
    }
    let parts = (threads * PARTS_PER_THREAD).max(LEAST_PARTS);
    let least = wanted.max(anchor.counters.map_or(0, |a| a.part));
    let roomy = (wanted * ROOM).min(MOST / parts / PAGE * PAGE).max(least);
    let area = |part| map(process, part, parts.min(most_parts(part)));
    let range = area(roomy).map(|range| (range, roomy));
    // A limit of address space may have room for less.
    let (range, part) = match range {
        Err(Error::NoCounterMemory { .. }) if roomy > least => (area(least)?, least),
        other => other?,
    };
    Ok(CounterArea { range, part, used })
}

/// Maps so many parts.
fn map(process: &Process, part: u64, parts: u64) -> Result<AvmaRange, Error> {
    let len = part * parts;
    fault::point();
    let mapped = tracee::with_one_stopped(process, |remote| {
        let at = remote.syscall(MMAP, [0, len, READ_WRITE, MAP_FLAGS, u64::MAX, 0])?;
        // Of each part some pages are counted in: no huge page, wherever the system gives those unasked. A kernel that has none
        // says so.
        let _ = remote.syscall(MADVISE, [at.cast_unsigned(), len, MADV_NOHUGEPAGE, 0, 0, 0]);
        Ok(at)
    });
    let at = mapped.map_err(|e| match e {
        tracee::Error::Remote { errno, .. } => Error::NoCounterMemory { len, errno },
        e => e.into(),
    })?;
    Ok(AvmaRange::with_len(Avma(at.cast_unsigned()), len))
}

fn most_parts(part: u64) -> u64 {
    (MOST / part).max(1)
}

/// Gives every thread a part, each its own as far as there are enough, and puts the area on record. `anchor` is that
/// of before.
///
/// # Errors
/// [`Error::GsBaseInUse`] where a thread uses its GS base itself; then no base was changed.
pub(crate) fn hand_out(stopped: &mut Stopped<'_>, area: &CounterArea, anchor: &Anchor) -> Result<(), Error> {
    let earlier = anchor.counters;
    let mut taken = vec![false; usize::try_from(area.parts()).unwrap_or(0)];
    let mut without = Vec::new();
    for tid in stopped.threads() {
        let base = stopped.regs(tid)?.0.gs_base;
        let own = area.part_of(base).and_then(|p| taken.get_mut(usize::try_from(p).ok()?));
        match own {
            Some(taken) if !*taken => *taken = true,
            Some(_) => without.push(tid),
            None if base == 0 || earlier.is_some_and(|e| e.part_of(base).is_some()) => without.push(tid),
            None => return Err(Error::GsBaseInUse { tid: tid.0, base }),
        }
    }
    let mut free = (0u64..).zip(taken).filter(|(_, t)| !t).map(|(part, _)| part);
    let mut shared = (0..area.parts()).cycle();
    for tid in without {
        let Some(part) = free.next().or_else(|| shared.next()) else { break };
        let mut regs = stopped.regs(tid)?;
        regs.0.gs_base = area.base(part).0;
        stopped.set_regs(tid, regs)?;
    }
    if earlier != Some(*area) {
        let (at, words) = anchor.counter_words(area);
        fault::point();
        toggle::write_checked(stopped.process(), at, &words)?;
    }
    Ok(())
}

/// The values of the counters at these offsets, each the sum over all threads.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn counters(process: &Process, area: &CounterArea, offsets: Range<u32>) -> Result<Vec<u64>, Error> {
    let mut sums = vec![0u64; offsets.len() / 8];
    for values in counter_words(process, area, offsets)? {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    Ok(sums)
}

/// What each part holds at a range of offsets, in words of 8 bytes: with threads running, what was there at some instant.
///
/// # Errors
/// [`Error::Unreadable`], also where a part has no such offsets.
pub fn counter_words(
    process: &Process,
    area: &CounterArea,
    offsets: Range<u32>,
) -> Result<Vec<Vec<u64>>, Error> {
    let Range { start, end } = offsets;
    (0..area.parts())
        .map(|part| {
            let from = area.base(part).add(u64::from(start));
            let len = u64::from(end.saturating_sub(start));
            let bytes = process.bytes(AvmaRange::with_len(from, len))?;
            Ok(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
        })
        .collect()
}

/// Gives the memory behind the area back to the system; it reads as zeros from then on.
///
/// # Errors
/// [`Error::Tracee`].
pub fn forget_counters(process: &Process, area: &CounterArea) -> Result<(), Error> {
    let args = [area.range.start.0, area.range.len(), MADV_DONTNEED, 0, 0, 0];
    Ok(tracee::with_one_stopped(process, |remote| remote.syscall(MADVISE, args)).map(|_| ())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_clones_count_behind_those_of_before() {
        let area =
            |used| CounterArea { range: AvmaRange::with_len(Avma(4096), 1 << 20), part: 1 << 16, used };
        assert_eq!(area(0).free_offset(8, 1000), 0);
        assert_eq!(area(1).free_offset(8, 1000), 64);
        assert_eq!(area(128).free_offset(100_000, 1000), 128);
        // Too much for so many threads: these begin again.
        assert_eq!(area(128).free_offset(300_000, 1000), 0);
        let most = (MOST / 10 - PAGE).next_multiple_of(LINE) - LINE;
        assert_eq!(area(most).free_offset(0, 10), u32::try_from(most).unwrap());
        assert_eq!(area(most).free_offset(128, 10), 0);
        assert_eq!(area(u64::MAX).free_offset(8, 1), 0);
    }
}
