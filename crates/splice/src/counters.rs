//! The memory in which clones count, and its division among the threads.
//!
//! A counter is at an offset from the GS base of its thread. User space on x86-64 Linux leaves that base 0
//! (psABI 3.4.2 assigns only FS to threads), so whet can use it. In a stop, every thread's base is set to the
//! start of a part of the area. A thread created later uses the part of its creator. Two threads that write
//! one count at once may lose a count.
//!
//! INVARIANT(lent): the area is mapped and on record before a base points into it. It is unmapped only after
//! no clone counts and no base points into it any more ([`crate::quiet`]).

use crate::{Anchor, Error, fault, toggle};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::ops::Range;
use tracee::{Process, Stopped};

/// The counter area of a target: parts of equal size, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterArea {
    /// The whole area.
    pub range: AvmaRange,
    /// The size of a part. Bytes.
    pub part: u64,
}

/// The minimum number of parts, and the parts for each thread, as more threads will be created.
const LEAST_PARTS: u64 = 16;
const PARTS_PER_THREAD: u64 = 2;
/// The maximum size of an area. If it is too small, threads share parts. Bytes.
const MOST: u64 = 256 << 20;

/// No counter reaches this value in a round: that would take an hour. A larger value is a register of a
/// thread that was inside a counter of three instructions when this counter began to count again.
const IMPOSSIBLE: u64 = 1 << 44;

const PAGE: u64 = 4096;

const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const MUNMAP: i64 = 11;
const MADVISE: i64 = 28;
const MUNLOCK: i64 = 150;
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

    /// Returns the part that a GS base points to.
    fn part_of(&self, base: u64) -> Option<u64> {
        let offset = Avma(base).since(self.range.start).filter(|_| self.range.contains(Avma(base)))?;
        offset.is_multiple_of(self.part).then(|| offset / self.part)
    }
}

/// Maps an area with room for `offsets` in each part, all zeros, and puts it on record.
///
/// # Errors
/// [`Error::NoCounterMemory`]; [`Error::Tracee`].
pub(crate) fn provide(
    process: &Process,
    anchor: &Anchor,
    offsets: &Range<u32>,
) -> Result<CounterArea, Error> {
    release_counters(process, anchor)?;
    let threads = process.threads()?.len() as u64;
    let part = u64::from(offsets.end).next_multiple_of(PAGE).max(PAGE);
    let parts = (threads * PARTS_PER_THREAD).max(LEAST_PARTS).min(most_parts(part));
    let area = CounterArea { range: map(process, part * parts)?, part };
    let (at, words) = anchor.counter_words(Some(&area));
    fault::point();
    toggle::write_checked(process, at, &words)?;
    Ok(area)
}

/// Maps `len` bytes. Even if the target locks all new memory (`mlockall(MCL_FUTURE)`), this mapping is not
/// locked: all of it would be allocated at once.
fn map(process: &Process, len: u64) -> Result<AvmaRange, Error> {
    fault::point();
    let mapped = tracee::with_one_stopped(process, |remote| {
        // The kernel cannot allocate pages for an inaccessible mapping.
        let at = remote.syscall(MMAP, [0, len, 0, MAP_FLAGS, u64::MAX, 0])?;
        let range = [at.cast_unsigned(), len];
        let _ = remote.syscall(MUNLOCK, [range[0], range[1], 0, 0, 0, 0]);
        // Only some pages of each part are used. So no huge pages, even if the system gives them without a
        // request. A kernel without huge pages returns an error.
        let _ = remote.syscall(MADVISE, [range[0], range[1], MADV_NOHUGEPAGE, 0, 0, 0]);
        match remote.syscall(MPROTECT, [range[0], range[1], READ_WRITE, 0, 0, 0]) {
            Ok(_) => Ok(at),
            Err(e) => {
                remote.syscall(MUNMAP, [range[0], range[1], 0, 0, 0, 0])?;
                Err(e)
            }
        }
    });
    let at = mapped.map_err(|e| match e {
        tracee::Error::Remote { errno, .. } => Error::NoCounterMemory { len, errno },
        e => e.into(),
    })?;
    Ok(AvmaRange::with_len(Avma(at.cast_unsigned()), len))
}

/// Removes the area from the record and unmaps it. No clone may count, and no base may point into it, any
/// more.
///
/// # Errors
/// [`Error::Tracee`], [`Error::WriteLost`].
pub fn release_counters(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    let (at, none) = anchor.counter_words(None);
    let Some(area) = anchor.recorded_counters(process)? else { return Ok(()) };
    // The record is removed first: if whet dies in between, a mapping remains that nothing refers to.
    fault::point();
    toggle::write_checked(process, at, &none)?;
    fault::point();
    let args = [area.range.start.0, area.range.len(), 0, 0, 0, 0];
    Ok(tracee::with_one_stopped(process, |remote| remote.syscall(MUNMAP, args)).map(|_| ())?)
}

fn most_parts(part: u64) -> u64 {
    (MOST / part).max(1)
}

/// Assigns a part to every thread, each thread its own part as long as there are enough.
///
/// # Errors
/// [`Error::GsBaseInUse`] if a thread uses its GS base itself; then no base was changed.
pub(crate) fn hand_out(stopped: &mut Stopped<'_>, area: &CounterArea) -> Result<(), Error> {
    let mut taken = vec![false; usize::try_from(area.parts()).unwrap_or(0)];
    let mut without = Vec::new();
    for tid in stopped.threads() {
        let regs = stopped.regs(tid)?.0;
        let own = area.part_of(regs.gs_base).and_then(|p| taken.get_mut(usize::try_from(p).ok()?));
        match own {
            // An earlier stop assigned it.
            Some(taken) if !*taken => *taken = true,
            Some(_) => without.push(tid),
            None if regs.gs_base == 0 && regs.gs == 0 => without.push(tid),
            None => return Err(Error::GsBaseInUse { tid: tid.0, base: regs.gs_base }),
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
    Ok(())
}

/// Resets the bases: a base that points into the area becomes 0 again. Returns the first thread with its own
/// base.
///
/// # Errors
/// [`Error::Tracee`].
pub(crate) fn reset_bases(
    stopped: &mut Stopped<'_>,
    area: &CounterArea,
) -> Result<Option<(i32, u64)>, Error> {
    let mut own = None;
    for tid in stopped.threads() {
        let mut regs = stopped.regs(tid)?;
        let base = regs.0.gs_base;
        if area.range.contains(Avma(base)) {
            regs.0.gs_base = 0;
            stopped.set_regs(tid, regs)?;
        } else if base != 0 || regs.0.gs != 0 {
            own = own.or(Some((tid.0, base)));
        }
    }
    Ok(own)
}

/// Returns the values of the counters at these offsets, each the sum over all threads.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn counters(process: &Process, area: &CounterArea, offsets: Range<u32>) -> Result<Vec<u64>, Error> {
    let mut sums = vec![0u64; offsets.len() / 8];
    for values in counter_words(process, area, offsets)? {
        let counted = values.into_iter().map(|v| if v < IMPOSSIBLE { v } else { 0 });
        sums.iter_mut().zip(counted).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
    Ok(sums)
}

/// Returns the 8-byte words of each part at a range of offsets. If threads run, each word is from some
/// instant of the read.
///
/// # Errors
/// [`Error::Unreadable`], also if a part does not have these offsets.
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
