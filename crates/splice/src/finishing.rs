//! How unwinders get through the routines that finish interrupted system calls (`tracee::FinishingCode`).
//!
//! A thread in such a routine stands where its program called the kernel, with the same stack. So the routine is a frame of no
//! size, whose return address is a word of the slot. The tables lie behind the routines, in the same mapping; the
//! anchor lists it as one more region, before any thread is sent there. For unwinders that walk the list of modules a stack
//! ends in the routine.

use crate::anchor::{Anchor, Region};
use crate::{Error, toggle};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use tracee::{FinishingCode, Process};
use unwind::{CfaRule, CloneFrame, Reg, RegRule, Row};

/// Room for the index of the tables. Bytes.
const INDEX: u64 = 2048;
/// `DW_OP_addr`: a word that follows, as a number.
const OP_ADDR: u8 = 0x03;

/// Lists in the anchor what code of that kind the target has by now. Stops send threads there only after that.
///
/// # Errors
/// [`Error::Unwind`] where the tables cannot be made, [`Error::WriteLost`], [`Error::Unreadable`].
pub(crate) fn publish(process: &Process, anchor: &mut Anchor) -> Result<(), Error> {
    // Who walks the list of modules would be shown this code with another module's headers.
    if anchor.hook.is_some() {
        return Ok(());
    }
    for code in process.finishing_code() {
        let listed = anchor.regions.iter().any(|r| r.text.start == code.text.start);
        if listed || anchor.room_in_page() == 0 {
            continue;
        }
        let (hdr_at, table_at) = (code.tables.start, code.tables.start.add(INDEX));
        let frames = unwind::write_frames(&frames(&code), table_at, hdr_at)?;
        if frames.hdr.len() as u64 > INDEX
            || !code.tables.contains(table_at.add(frames.eh_frame.len() as u64))
        {
            return Err(Error::Journal { at: hdr_at, what: "no room for the frames of routines" });
        }
        toggle::write_checked(process, table_at, &frames.eh_frame)?;
        toggle::write_checked(process, hdr_at, &frames.hdr)?;
        // As its own page: no journal.
        let region = Region { text: code.text, eh_frame_hdr: hdr_at, journal: anchor.at };
        match anchor.add_regions(process, &[region]) {
            // Listed since the anchor was read.
            Err(Error::NotAlone) => return Ok(()),
            outcome => outcome?,
        }
    }
    if is_known_library(process) {
        process.open_slots();
    }
    Ok(())
}

/// The first minor version of the GNU C Library 2 whose cancellation goes by the address at which a call is made, as musl's does: in
/// a routine such a thread could not be cancelled.
const CANCELS_BY_ADDRESS: u32 = 41;

/// Whether threads in the routines can be cancelled: by the version that the C library names in its constants.
fn is_known_library(process: &Process) -> bool {
    const WORDS: &[u8] = b"release version 2.";
    let maps = process.maps_text().unwrap_or_default();
    let constants = maps.lines().filter(|l| l.ends_with("/libc.so.6") && l.contains(" r--p "));
    let mut minors = constants.filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let at = |hex| u64::from_str_radix(hex, 16).ok().map(Avma);
        let bytes = process.bytes(AvmaRange::new(at(start)?, at(end)?)).ok()?;
        let from = bytes.windows(WORDS.len()).position(|w| w == WORDS)? + WORDS.len();
        let digits: String =
            bytes[from..].iter().map(|&b| char::from(b)).take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    minors.next().is_some_and(|minor| minor < CANCELS_BY_ADDRESS)
}

/// One frame for each routine.
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
        let (hdr_at, table_at) = (code.tables.start, code.tables.start.add(INDEX));
        let written = unwind::write_frames(&frames(&code), table_at, hdr_at).unwrap();
        assert!(written.hdr.len() as u64 <= INDEX);
        assert!(code.tables.contains(table_at.add(written.eh_frame.len() as u64)));
        let table = unwind::FrameTable::parse(written.eh_frame, table_at, &(Avma(0), &[0u8][..])).unwrap();
        let read: Vec<Row> = table.fdes().iter().flat_map(|f| table.rows(f).unwrap()).collect();
        let meant: Vec<Row> = frames(&code).into_iter().flat_map(|f| f.rows).collect();
        assert_eq!(read, meant);
    }
}
