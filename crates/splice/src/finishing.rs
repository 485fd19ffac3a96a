//! The frame tables by which unwinders pass the routines that finish interrupted system calls
//! (`tracee::FinishingCode`).
//!
//! A thread in such a routine has the same stack as at its program's system call. So the routine is a frame
//! of size zero, whose return address is a word of the slot. The tables lie behind the routines, in the same
//! mapping. The anchor lists this mapping as one more region before any thread is sent there.
//!
//! As in every region, the tables begin with a journal, here of generation 0 and without records. The program
//! headers of the region follow, so that it is reported as a module. Unwinders that iterate over modules find
//! these tables in the same way as the tables of clones.

use crate::anchor::{Anchor, Region};
use crate::toggle::Word;
use crate::{Error, Header, Record, State, module_list, toggle};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use tracee::{FinishingCode, Process};
use unwind::{CfaRule, CloneFrame, Reg, RegRule, Row};

/// The offsets of the index, behind the journal and the program headers, and of the table. Bytes from the
/// journal.
const INDEX: u64 = 512;
const TABLE: u64 = 2048;
/// `DW_OP_addr`: pushes the word that follows.
const OP_ADDR: u8 = 0x03;

/// The generation in the journals of finishing code.
pub(crate) const GENERATION: u32 = 0;

/// Lists the target's finishing code in the anchor, and lets stops use it if unwinders read the list.
///
/// # Errors
/// [`Error::Unwind`] if the tables cannot be made, [`Error::WriteLost`], [`Error::Unreadable`].
pub(crate) fn publish(process: &Process, anchor: &mut Anchor) -> Result<(), Error> {
    if anchor.newer.is_some() {
        return Ok(());
    }
    admit(process, anchor)?;
    for code in process.unlisted_finishing_code() {
        // If the page is full, or another whet has changed the list since the anchor was read, the code stays
        // unused.
        if anchor.room_in_page() == 0 {
            return Ok(());
        }
        for (at, bytes) in tables(&code)? {
            toggle::write_checked(process, at, &bytes)?;
        }
        match anchor.add_regions(process, &[region(&code)]) {
            Err(Error::NotAlone) => return Ok(()),
            outcome => outcome?,
        }
        process.finishing_code_is_listed(&code);
    }
    Ok(())
}

/// Lets stops send threads into finishing code that the anchor lists, if unwinders read the list. Writes
/// nothing.
///
/// # Errors
/// [`Error::Unreadable`].
pub fn admit(process: &Process, anchor: &Anchor) -> Result<(), Error> {
    // This version cannot determine how unwinders are redirected to a later whet's anchor.
    if anchor.newer.is_some() {
        return Ok(());
    }
    for code in process.unlisted_finishing_code() {
        if anchor.regions.contains(&region(&code)) {
            process.finishing_code_is_listed(&code);
        }
    }
    open(process, Word::swap(anchor), anchor.module_list_redirects())
}

/// Lets stops use listed code if each of these words redirects unwinders to the anchor.
///
/// # Errors
/// [`Error::Unreadable`].
pub(crate) fn open(process: &Process, word: Option<Word>, calls: &[Record]) -> Result<(), Error> {
    if process.has_open_slots() {
        return Ok(());
    }
    if let Some(word) = word
        && process.u64(word.at)? != word.new
    {
        return Ok(());
    }
    for record in calls {
        if process.bytes(record.range())? != record.new_bytes() {
            return Ok(());
        }
    }
    process.open_slots();
    Ok(())
}

/// Returns the region under which the anchor lists the code.
fn region(code: &FinishingCode) -> Region {
    let journal = code.tables.start;
    Region { text: code.text, eh_frame_hdr: journal.add(INDEX), journal }
}

/// Returns the contents of the tables with their addresses.
fn tables(code: &FinishingCode) -> Result<[(Avma, Vec<u8>); 4], Error> {
    let Region { text, eh_frame_hdr, journal } = region(code);
    let table = journal.add(TABLE);
    let frames = unwind::write_frames(&frames(code), table, eh_frame_hdr)?;
    let index = AvmaRange::with_len(eh_frame_hdr, frames.hdr.len() as u64);
    if index.end > table || !code.tables.contains(table.add(frames.eh_frame.len() as u64)) {
        return Err(Error::Journal { at: journal, what: "no room for the frames of routines" });
    }
    let none = AvmaRange::with_len(journal, 0);
    let header = Header {
        state: State::Undone,
        generation: GENERATION,
        index: 0,
        caches: 0,
        counting: false,
        since_ns: 0,
        text,
        data: code.tables,
        eh_frame_hdr,
        code_bytes: code.tables.start.since(text.start).unwrap_or(0),
        records: none,
        map: none,
        notes: none,
        stopped_ns: 0,
    };
    Ok([
        (table, frames.eh_frame),
        (eh_frame_hdr, frames.hdr),
        (journal.add(module_list::HEADERS), module_list::headers(text, index)),
        (journal, header.write()),
    ])
}

/// Returns one frame for each routine.
fn frames(code: &FinishingCode) -> Vec<CloneFrame> {
    let frame = |&(range, back): &(AvmaRange, Avma)| {
        let at: Vec<u8> = std::iter::once(OP_ADDR).chain(back.0.to_le_bytes()).collect();
        let row = Row {
            range,
            cfa: CfaRule::RegOffset(Reg::RSP, 0),
            regs: vec![(Reg::RA, RegRule::Expr(at.into()))],
            args_size: 0,
        };
        CloneFrame { range, rows: vec![row], personality: None, lsda: None, signal_frame: false }
    };
    code.routines.iter().map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_no_size() {
        let routine = |i: u64| {
            (
                AvmaRange::with_len(Avma(0x7000_0000_1000).add(i * 192), 192),
                Avma(0x7000_0001_0020).add(i * 512),
            )
        };
        let code = FinishingCode {
            text: AvmaRange::with_len(Avma(0x7000_0000_1000), 0xa000),
            tables: AvmaRange::with_len(Avma(0x7000_0000_7000), 0x4000),
            routines: (0..128).map(routine).collect(),
        };
        let [(table_at, table), (hdr_at, index), (headers_at, headers), (journal_at, journal)] =
            tables(&code).unwrap();
        assert!(journal_at.add(journal.len() as u64) <= headers_at);
        assert_eq!(
            (headers_at, headers),
            (
                journal_at.add(module_list::HEADERS),
                module_list::headers(code.text, AvmaRange::with_len(hdr_at, index.len() as u64)),
            )
        );
        let header = crate::journal::parse_header(&journal, journal_at).unwrap();
        assert_eq!((header.generation, header.records.len()), (GENERATION, 0));
        let table = unwind::FrameTable::parse(table, table_at, &(Avma(0), &[0u8][..])).unwrap();
        let read: Vec<Row> = table.fdes().iter().flat_map(|f| table.rows(f).unwrap()).collect();
        let meant: Vec<Row> = frames(&code).into_iter().flat_map(|f| f.rows).collect();
        assert_eq!(read, meant);
    }
}
