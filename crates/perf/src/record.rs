//! The kernel's event records, as bytes (`perf_event_open(2)`, "MMAP layout", and
//! `include/uapi/linux/perf_event.h`).
//!
//! Pure: bytes in, records out. Arbitrary bytes are safe to parse.

use addr::Avma;

/// Field bits of a sample (`PERF_SAMPLE_*`) that can be parsed.
pub mod field {
    /// The instruction.
    pub const IP: u64 = 1;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// The time.
    pub const TIME: u64 = 1 << 2;
    /// The event that was opened (not the copy that a new thread inherited).
    pub const ID: u64 = 1 << 6;
    /// Units of the event since the last sample.
    pub const PERIOD: u64 = 1 << 8;
    /// The CPU's record of its last taken branches.
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub(super) const ALL: u64 = IP | TID | TIME | ID | PERIOD | BRANCH_STACK;
}

const HEADER: usize = 8;
const LOST: u32 = 2;
const EXIT: u32 = 4;
const THROTTLE: u32 = 5;
const UNTHROTTLE: u32 = 6;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
/// `PERF_BR_SPEC_WRONG_PATH`.
const WRONG_PATH: u64 = 1;

/// A defect in bytes that should be records of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header, or than the size in the header.
    #[error("a record is cut off: {have} bytes of {want}")]
    CutOff {
        /// Bytes available.
        have: usize,
        /// Bytes expected.
        want: usize,
    },
    /// A record too short for its type.
    #[error("a record of type {kind} has only {size} bytes")]
    TooShort {
        /// `PERF_RECORD_*`.
        kind: u32,
        /// Its size with its header.
        size: usize,
    },
    /// Sample fields that this parser does not support: without their sizes no later field can be found.
    #[error("unknown sample fields {bits:#x}")]
    UnknownFields {
        /// The unsupported bits.
        bits: u64,
    },
}

/// The fields of a sample: must be those with which the event was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields {
    bits: u64,
    hw_index: bool,
}

impl Fields {
    /// Describes samples with these [`field`] bits. `hw_index`: branch stacks begin with the index of the
    /// hardware's newest entry (`PERF_SAMPLE_BRANCH_HW_INDEX`).
    ///
    /// # Errors
    /// [`Malformed::UnknownFields`] for other bits.
    pub fn new(bits: u64, hw_index: bool) -> Result<Self, Malformed> {
        match bits & !field::ALL {
            0 => Ok(Self { bits, hw_index }),
            bits => Err(Malformed::UnknownFields { bits }),
        }
    }

    pub(crate) fn has(self, bit: u64) -> bool {
        self.bits & bit != 0
    }
}

/// A sample. Fields that the event does not have are 0 or empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SampleRecord<'a> {
    /// The instruction that was about to run.
    pub ip: Avma,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// Nanoseconds of the event's clock.
    pub time: u64,
    /// The opened event.
    pub id: u64,
    /// Units since the last sample.
    pub period: u64,
    /// The last taken branches, newest first.
    pub branches: Branches<'a>,
}

/// A branch that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The branch instruction.
    pub from: Avma,
    /// The target of the branch.
    pub to: Avma,
    /// Whether the CPU reports a wrong prediction.
    pub mispredicted: bool,
    /// Whether the CPU reports a right prediction. If it reports neither, both are false.
    pub predicted: bool,
    /// Whether it aborted a transaction: control went from inside the transaction to its abort handler.
    pub aborted: bool,
    /// Whether the CPU reports that it took the branch only on a wrong path, and undid it.
    pub wrong_path: bool,
    /// Cycles since the branch before; 0 if the CPU does not report them.
    pub cycles: u16,
    /// `PERF_BR_*`: the kind of branch; 0 if the CPU does not report it.
    pub kind: u8,
}

/// The entries of a branch stack, newest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Branches<'a>(&'a [u8]);

impl Iterator for Branches<'_> {
    type Item = Branch;

    fn next(&mut self) -> Option<Branch> {
        let (entry, rest) = self.0.split_at_checked(24)?;
        self.0 = rest;
        let mut entry = Cursor(entry);
        let (from, to, flags) = (entry.u64()?, entry.u64()?, entry.u64()?);
        Some(Branch {
            from: Avma(from),
            to: Avma(to),
            mispredicted: flags & 1 != 0,
            predicted: flags & 1 << 1 != 0,
            aborted: flags & 1 << 3 != 0,
            wrong_path: (flags >> 24) & 3 == WRONG_PATH,
            cycles: u16::try_from((flags >> 4) & 0xffff).unwrap_or(0),
            kind: u8::try_from((flags >> 20) & 0xf).unwrap_or(0),
        })
    }
}

/// A thread that began or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// Its process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// Nanoseconds of the event's clock.
    pub time: u64,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A sample.
    Sample(SampleRecord<'a>),
    /// This many records found no room in the buffer.
    Lost(u64),
    /// The hardware's buffer dropped this many samples.
    LostSamples(u64),
    /// The sampling rate was too high for the kernel: no samples until [`Record::Unthrottle`].
    Throttle,
    /// Sampling continues.
    Unthrottle,
    /// A thread or a process started.
    Fork(Task),
    /// A thread ended.
    Exit(Task),
    /// A record of another type (its `PERF_RECORD_*`).
    Other(u32),
}

/// An iterator over the records in a run of bytes. It stops after the first malformed record.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    fields: Fields,
}

impl<'a> Records<'a> {
    /// Iterates over the records in `bytes`, which begin with a header.
    #[must_use]
    pub fn new(bytes: &'a [u8], fields: Fields) -> Self {
        Self { rest: bytes, fields }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = split_record(&mut self.rest)
            .and_then(|(kind, body)| parse(kind, body, self.fields).ok_or(too_short(kind, body)));
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// Splits off the first record. Returns its type and the bytes behind its header.
fn split_record<'a>(rest: &mut &'a [u8]) -> Result<(u32, &'a [u8]), Malformed> {
    let mut header = Cursor(rest);
    let cut = Malformed::CutOff { have: rest.len(), want: HEADER };
    let kind = header.u32().ok_or(cut)?;
    // The upper half is the size. The lower half holds the CPU mode, which is constant by the event's own
    // filter.
    let size = header.u32().map(|x| usize::from((x >> 16) as u16)).ok_or(cut)?;
    if size < HEADER {
        return Err(Malformed::TooShort { kind, size });
    }
    let (record, after) =
        rest.split_at_checked(size).ok_or(Malformed::CutOff { have: rest.len(), want: size })?;
    *rest = after;
    Ok((kind, &record[HEADER..]))
}

fn too_short(kind: u32, body: &[u8]) -> Malformed {
    Malformed::TooShort { kind, size: HEADER + body.len() }
}

fn parse(kind: u32, body: &[u8], fields: Fields) -> Option<Record<'_>> {
    let mut at = Cursor(body);
    Some(match kind {
        SAMPLE => Record::Sample(parse_sample(at, fields)?),
        LOST => {
            let _event = at.u64()?;
            Record::Lost(at.u64()?)
        }
        LOST_SAMPLES => Record::LostSamples(at.u64()?),
        THROTTLE => Record::Throttle,
        UNTHROTTLE => Record::Unthrottle,
        FORK => Record::Fork(parse_task(at)?),
        EXIT => Record::Exit(parse_task(at)?),
        other => Record::Other(other),
    })
}

/// Parses the fields in the kernel's fixed order.
fn parse_sample(mut at: Cursor<'_>, fields: Fields) -> Option<SampleRecord<'_>> {
    let mut sample = SampleRecord::default();
    if fields.has(field::IP) {
        sample.ip = Avma(at.u64()?);
    }
    if fields.has(field::TID) {
        sample.pid = at.i32()?;
        sample.tid = at.i32()?;
    }
    if fields.has(field::TIME) {
        sample.time = at.u64()?;
    }
    if fields.has(field::ID) {
        sample.id = at.u64()?;
    }
    if fields.has(field::PERIOD) {
        sample.period = at.u64()?;
    }
    if fields.has(field::BRANCH_STACK) {
        let entries = at.u64()?;
        if fields.hw_index {
            at.u64()?;
        }
        let bytes = usize::try_from(entries).ok()?.checked_mul(24)?;
        sample.branches = Branches(at.0.get(..bytes)?);
    }
    Some(sample)
}

fn parse_task(mut at: Cursor<'_>) -> Option<Task> {
    let (pid, _parent, tid, _parent_thread) = (at.i32()?, at.i32()?, at.i32()?, at.i32()?);
    Some(Task { pid, tid, time: at.u64()? })
}

/// A reader of little-endian numbers from the front of a slice.
#[derive(Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
