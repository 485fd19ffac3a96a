//! The journal, kept in the target: it describes one code cache, and the bytes outside that lead into it.
//!
//! It lies at the start of the cache's data mapping (`r--`; only a debugger's write changes it). All numbers
//! are little-endian. First comes a header of [`HEADER_LEN`] bytes. At offset 256 follow the program headers
//! by which the cache is reported as a module. The header has the addresses of the rest: records, the address
//! map, notes. A change of this format must change [`VERSION`] and keep the part that `frozen` lists. Of a
//! later version a reader reads only this part, and never guesses.

use crate::placement::USER_END;
use crate::{Error, frozen};
use addr::{Addr, Avma, AvmaRange};

/// The first bytes of a journal.
pub const MAGIC: [u8; 8] = *b"whetjrnl";
/// The version of this format.
pub const VERSION: u32 = 4;
/// The version before: as the present one, but clones that have counted cannot count again.
const COUNTS_ONCE: u32 = 3;
/// The version before [`COUNTS_ONCE`]: [`Header::counting`] is always 0.
const WITHOUT_COUNTING: u32 = 2;
/// The size of a header. Bytes.
pub const HEADER_LEN: usize = 160;
/// The size of a record. Bytes.
pub const RECORD_LEN: usize = 32;
/// Offset of [`Record::new`] in a record.
pub(crate) const NEW_OFFSET: u64 = 24;
/// The offset of [`Header::state`]. Only it and [`Header::stopped_ns`] change after the journal is complete.
pub const STATE_OFFSET: u64 = 16;
/// The offset of [`Header::stopped_ns`].
pub const STOPPED_OFFSET: u64 = 136;

/// The state of a generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The journal is complete; no redirect was written yet, or the writer died while it wrote them.
    Prepared,
    /// Redirects are in force.
    Applied,
    /// Redirects were undone.
    Undone,
}

impl State {
    /// Returns its code in the target.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            State::Prepared => 1,
            State::Applied => 2,
            State::Undone => 3,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        [State::Prepared, State::Applied, State::Undone].into_iter().find(|s| s.code() == code)
    }
}

/// The kind of place that leads into a clone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RedirectKind {
    /// A jump, or the displacement of a jump, on the way from an original's entry.
    Entry,
    /// The displacement of a direct call, or of a jump to another function, in original code.
    Call,
    /// A word of a virtual table.
    Vtable,
    /// A slot of the procedure linkage table, already bound.
    Slot,
    /// A kind that only later whets have.
    Other,
}

impl RedirectKind {
    const ALL: [RedirectKind; 4] =
        [RedirectKind::Entry, RedirectKind::Call, RedirectKind::Vtable, RedirectKind::Slot];

    fn code(self) -> u8 {
        match self {
            RedirectKind::Entry => 1,
            RedirectKind::Call => 2,
            RedirectKind::Vtable => 3,
            RedirectKind::Slot => 4,
            RedirectKind::Other => 0,
        }
    }

    /// Returns the stable name used in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RedirectKind::Entry => "entry",
            RedirectKind::Call => "call",
            RedirectKind::Vtable => "vtable",
            RedirectKind::Slot => "slot",
            RedirectKind::Other => "other",
        }
    }
}

/// One redirect: `len` bytes at `at` are `old` without it and `new` with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// The first changed byte.
    pub at: Avma,
    /// The kind of the place.
    pub kind: RedirectKind,
    /// How many bytes change (at most 8, inside one page).
    pub len: u8,
    /// Bit `i` set: an original instruction starts at `at + i`, `0 < i < len`. No thread may be about to
    /// resume there when the redirect is written.
    pub interior: u8,
    /// The bytes without the redirect.
    pub old: [u8; 8],
    /// The bytes with the redirect.
    pub new: [u8; 8],
    /// The marked page of the place's module, if that module may be unloaded: see [`crate::mark_modules`].
    pub mark: Option<Avma>,
}

impl Record {
    /// Returns the range that it changes.
    #[must_use]
    pub fn range(&self) -> AvmaRange {
        AvmaRange::with_len(self.at, u64::from(self.len))
    }

    /// Returns `old`, cut to length.
    #[must_use]
    pub fn old_bytes(&self) -> &[u8] {
        &self.old[..usize::from(self.len)]
    }

    /// Returns `new`, cut to length.
    #[must_use]
    pub fn new_bytes(&self) -> &[u8] {
        &self.new[..usize::from(self.len)]
    }

    /// Returns whether it changes nothing: its module has been unloaded (see [`crate::mark_modules`]).
    pub(crate) fn is_buried(&self) -> bool {
        self.old_bytes() == self.new_bytes()
    }

    /// Returns whether it is inside one page. Otherwise the death of the writer could tear its write.
    #[must_use]
    pub fn in_one_page(&self) -> bool {
        self.at.align_down(4096) == self.at.add(u64::from(self.len.max(1)) - 1).align_down(4096)
    }

    fn sound(&self) -> bool {
        (1..=8).contains(&self.len) && self.in_one_page()
    }
}

/// The header of a journal, which describes its code cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The state of the generation.
    pub state: State,
    /// The number of the generation, which counts up from 1 over the life of the target.
    pub generation: u32,
    /// The number of this cache among those of its generation.
    pub index: u32,
    /// How many caches the generation has.
    pub caches: u32,
    /// Whether its clones only count, and are removed after that.
    pub counting: bool,
    /// When it was installed: nanoseconds of the Unix epoch.
    pub since_ns: u64,
    /// The `r-x` mapping with the clones.
    pub text: AvmaRange,
    /// The `r--` mapping that begins with this header.
    pub data: AvmaRange,
    /// The clones' `.eh_frame_hdr`.
    pub eh_frame_hdr: Avma,
    /// Bytes of clones, without padding to the mapping's end; at most the mapping's length.
    pub code_bytes: u64,
    /// The address range of the records.
    pub records: AvmaRange,
    /// The address range of the address map.
    pub map: AvmaRange,
    /// The address range of the notes for later whets.
    pub notes: AvmaRange,
    /// The longest stop of all threads when the redirects were last written or undone: nanoseconds. For
    /// information; 0 if it was not recorded.
    pub stopped_ns: u64,
}

impl Header {
    /// Returns its bytes in the target.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(HEADER_LEN);
        b.extend(MAGIC);
        b.extend(VERSION.to_le_bytes());
        b.extend(self.generation.to_le_bytes());
        b.extend(self.state.code().to_le_bytes());
        b.extend(self.index.to_le_bytes());
        b.extend(self.caches.to_le_bytes());
        b.extend(u32::from(self.counting).to_le_bytes());
        b.extend(self.since_ns.to_le_bytes());
        b.extend(self.code_bytes.to_le_bytes());
        b.extend(self.eh_frame_hdr.0.to_le_bytes());
        for r in [self.text, self.data, self.records, self.map, self.notes] {
            b.extend(r.start.0.to_le_bytes());
            b.extend(r.end.0.to_le_bytes());
        }
        b.extend(self.stopped_ns.to_le_bytes());
        b.extend(frozen::FROZEN.to_le_bytes());
        b.resize(HEADER_LEN, 0);
        b
    }
}

/// Reads a header. Any process can write one, so what is returned is bounded: see [`Header::code_bytes`].
///
/// # Errors
/// [`Error::Journal`] if the bytes are not a journal of this version, or contradict themselves.
pub fn parse_header(bytes: &[u8], at: Avma) -> Result<Header, Error> {
    let bad = |what: &'static str| Error::Journal { at, what };
    let b: &[u8; HEADER_LEN] = bytes
        .get(..HEADER_LEN)
        .and_then(|b| b.try_into().ok())
        .ok_or_else(|| bad("shorter than a header"))?;
    let u32_at = |o: usize| u32::from_le_bytes([b[o], b[o + 1], b[o + 2], b[o + 3]]);
    let u64_at = |o: usize| u64::from(u32_at(o)) | u64::from(u32_at(o + 4)) << 32;
    if b[..8] != MAGIC {
        return Err(bad("no magic"));
    }
    let version = u32_at(8);
    let is_newer = version > VERSION && u32_at(frozen::IN_JOURNAL) == frozen::FROZEN;
    if ![VERSION, COUNTS_ONCE, WITHOUT_COUNTING].contains(&version) && !is_newer {
        return Err(bad("written by another version"));
    }
    let range = |o: usize| AvmaRange::new(Avma(u64_at(o)), Avma(u64_at(o + 8)));
    // The content of these tables is known only for this version.
    let table = |o: usize| if is_newer { AvmaRange::with_len(at, 0) } else { range(o) };
    let mut header = Header {
        generation: u32_at(12),
        state: State::from_code(u32_at(16)).ok_or_else(|| bad("no such state"))?,
        index: u32_at(20),
        caches: u32_at(24),
        counting: match u32_at(28) {
            0 => false,
            1 => true,
            // Whatever the purpose: such clones do not count.
            _ if is_newer => false,
            _ => return Err(bad("no such purpose")),
        },
        since_ns: u64_at(32),
        code_bytes: u64_at(40),
        eh_frame_hdr: Avma(u64_at(48)),
        text: range(56),
        data: range(72),
        records: range(88),
        map: table(104),
        notes: table(120),
        stopped_ns: u64_at(136),
    };
    if header.data.start != at {
        return Err(bad("not at the address it says"));
    }
    for r in [header.text, header.data, header.records, header.map, header.notes] {
        if r.end < r.start || r.len() > 1 << 30 {
            return Err(bad("a range of impossible size"));
        }
        if r.end > USER_END {
            return Err(bad("a range above all mappings"));
        }
    }
    for r in [header.records, header.map, header.notes] {
        if !r.is_empty() && !header.data.covers(&r) {
            return Err(bad("a table outside the data mapping"));
        }
    }
    if !header.records.len().is_multiple_of(RECORD_LEN as u64) {
        return Err(bad("records of odd length"));
    }
    // A later version may count other bytes here. No word of a process leads to more than its mapping.
    header.code_bytes = header.code_bytes.min(header.text.len());
    Ok(header)
}

/// Returns the version of the whet that wrote a header, if it is a later version.
#[must_use]
pub fn newer(header: &[u8; HEADER_LEN]) -> Option<u32> {
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    (version > VERSION).then_some(version)
}

/// The size of a marked page's number in a record. Bytes.
const MARK_LEN: usize = 5;
/// The size of a page. Bytes.
const PAGE: u64 = 4096;

/// Reads the number of a marked page; 0 means none.
fn mark(number: &[u8]) -> Option<Avma> {
    let number = number.iter().rev().fold(0, |sum, &b| sum << 8 | u64::from(b));
    (number != 0).then(|| Avma(number.saturating_mul(PAGE)))
}

/// Returns the bytes of records in the target.
#[must_use]
pub fn write_records(records: &[Record]) -> Vec<u8> {
    let mut b = Vec::with_capacity(records.len() * RECORD_LEN);
    for r in records {
        b.extend(r.at.0.to_le_bytes());
        b.extend([r.kind.code(), r.len, r.interior]);
        // A page's number has 35 bits, as user addresses have 47.
        let page = r.mark.map_or(0, |at| at.0 / PAGE).to_le_bytes();
        b.extend(&page[..MARK_LEN]);
        b.extend(r.old);
        b.extend(r.new);
    }
    b
}

/// Reads records.
///
/// # Errors
/// [`Error::Journal`] for a record that no whet of this version writes.
pub fn parse_records(bytes: &[u8], at: Avma) -> Result<Vec<Record>, Error> {
    parse_records_of(bytes, at, None)
}

/// Reads records that a whet of a later version may have written, of kinds that this version does not have.
///
/// # Errors
/// [`Error::Journal`] for a record that does not have the frozen form.
pub fn parse_records_of(bytes: &[u8], at: Avma, newer: Option<u32>) -> Result<Vec<Record>, Error> {
    let bad = |what: &'static str| Error::Journal { at, what };
    let (chunks, rest) = bytes.as_chunks::<RECORD_LEN>();
    if !rest.is_empty() {
        return Err(bad("records of odd length"));
    }
    chunks
        .iter()
        .map(|c| {
            let word = |o: usize| -> [u8; 8] { std::array::from_fn(|i| c[o + i]) };
            let kind = RedirectKind::ALL
                .into_iter()
                .find(|k| k.code() == c[8])
                .or(newer.map(|_| RedirectKind::Other))
                .ok_or_else(|| bad("a record of unknown kind"))?;
            let record = Record {
                at: Avma(u64::from_le_bytes(word(0))),
                kind,
                len: c[9],
                interior: c[10],
                old: word(16),
                new: word(24),
                // A later version may have another use for these bytes.
                mark: mark(&c[11..11 + MARK_LEN]).filter(|_| newer.is_none()),
            };
            if record.sound() { Ok(record) } else { Err(bad("a record of impossible length")) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let r = |a: u64, b: u64| AvmaRange::new(Avma(a), Avma(b));
        Header {
            state: State::Prepared,
            generation: 3,
            index: 1,
            caches: 2,
            counting: true,
            since_ns: 12_345,
            text: r(0x20_0000, 0x40_0000),
            data: r(0x40_0000, 0x50_0000),
            eh_frame_hdr: Avma(0x40_2000),
            code_bytes: 77,
            records: r(0x41_0000, 0x41_0000 + 64),
            map: r(0x42_0000, 0x42_0001),
            notes: r(0x43_0000, 0x43_0000),
            stopped_ns: 1_500_000,
        }
    }

    #[test]
    fn header_round_trips() {
        let h = header();
        assert_eq!(parse_header(&h.write(), h.data.start).unwrap(), h);
        assert!(parse_header(&h.write(), Avma(0x1000)).is_err(), "moved");
        let place = |offset| usize::try_from(offset).unwrap();
        assert_eq!(h.write()[place(STATE_OFFSET)], 1);
        assert_eq!(h.write()[place(STOPPED_OFFSET)..][..8], 1_500_000u64.to_le_bytes());
    }

    #[test]
    fn foreign_headers_are_refused() {
        let h = header();
        for byte in [0, 16, 28] {
            let mut b = h.write();
            b[byte] ^= 0x40;
            assert!(parse_header(&b, h.data.start).is_err(), "byte {byte}");
        }
        let mut earlier = h.write();
        earlier[8] = 1;
        assert!(parse_header(&earlier, h.data.start).is_err());
        let mut high = header();
        high.text = AvmaRange::new(Avma(u64::MAX - 4095), Avma(u64::MAX));
        assert!(parse_header(&high.write(), high.data.start).is_err());
        let mut out = header();
        out.records = AvmaRange::new(Avma(0x10), Avma(0x30));
        assert!(parse_header(&out.write(), out.data.start).is_err());
    }

    #[test]
    fn no_header_has_more_code_than_its_mapping() {
        let forged = Header { code_bytes: u64::MAX, ..header() };
        let read = parse_header(&forged.write(), forged.data.start).unwrap();
        assert_eq!(read.code_bytes, forged.text.len());
    }

    #[test]
    fn records_round_trip() {
        let r = Record {
            at: Avma(0x1004),
            kind: RedirectKind::Entry,
            len: 5,
            interior: 0b10010,
            old: *b"\x55\x48\x89\xe5\x90\0\0\0",
            new: *b"\xe9\0\0\0\0\0\0\0",
            mark: None,
        };
        assert_eq!(parse_records(&write_records(&[r, r]), Avma(0)).unwrap(), vec![r, r]);
        let marked = Record { mark: Some(Avma(0x7fff_ffff_f000)), ..r };
        assert_eq!(parse_records(&write_records(&[marked]), Avma(0)).unwrap(), vec![marked]);
        assert_eq!(r.old_bytes().len(), 5);
        let crossing = Record { at: Avma(0x1ffd), ..r };
        assert!(!crossing.in_one_page());
        assert!(parse_records(&write_records(&[crossing]), Avma(0)).is_err());
    }

    /// The one-second form of the fuzz target: arbitrary bytes cause no panic.
    #[test]
    fn any_bytes_are_parsed_or_refused() {
        arbtest::arbtest(|u| {
            let mut h = header().write();
            for _ in 0..u.int_in_range(0..=8)? {
                let i = u.choose_index(h.len())?;
                h[i] = u.arbitrary()?;
            }
            let _ = parse_header(&h, Avma(0x40_0000));
            let junk: Vec<u8> = u.arbitrary()?;
            let _ = parse_header(&junk, Avma(0));
            let _ = parse_records(&junk, Avma(0));
            Ok(())
        })
        .budget_ms(1000);
    }
}
