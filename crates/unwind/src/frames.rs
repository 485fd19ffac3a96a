//! Writes the `.eh_frame` and `.eh_frame_hdr` of clones.
//!
//! Formats: LSB 5.0 core, "Exception Frames". Augmentation characters are in the order that libgcc's
//! `get_cie_encoding` needs (`S` last: it stops reading there).

use crate::cfi::{DATA_ALIGN, INITIAL_CFA, INITIAL_RA, NOP, put_advance, put_delta, put_initial};
use crate::leb::{put_sleb, put_uleb};
use crate::pointer::ABSPTR;
use crate::{CloneFrame, Error, Reg, RegRule, Row};
use addr::{Addr, Avma};
use std::collections::BTreeMap;

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.
const PCREL_SDATA4: u8 = 0x1b;
/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`: relative to the header's own address.
const DATAREL_SDATA4: u8 = 0x3b;
/// `DW_EH_PE_udata4`.
const UDATA4: u8 = 0x03;
/// The size to whose multiples entries are padded, in bytes.
const ALIGN: usize = 8;

/// The tables of a set of clones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Frames {
    /// The `.eh_frame`, with its terminator.
    pub eh_frame: Vec<u8>,
    /// The `.eh_frame_hdr`, version 1, with its search table.
    pub hdr: Vec<u8>,
}

/// The properties of FDEs that need different CIEs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CieKey {
    personality: Option<Avma>,
    lsda: bool,
    signal_frame: bool,
    /// Whether the CIE has a rule for the return address. It must not if any row has no such rule, as no
    /// instruction removes a rule.
    ra: bool,
}

impl CieKey {
    fn of(frame: &CloneFrame) -> CieKey {
        CieKey {
            personality: frame.personality,
            lsda: frame.lsda.is_some(),
            signal_frame: frame.signal_frame,
            ra: frame.rows.iter().all(|r| r.regs.iter().any(|(reg, _)| *reg == Reg::RA)),
        }
    }

    fn initial(self) -> Vec<(Reg, RegRule)> {
        if self.ra { vec![(Reg::RA, INITIAL_RA)] } else { Vec::new() }
    }
}

/// Writes the tables of `frames` (in any order) for an `.eh_frame` at `eh_frame_at` and its header at
/// `hdr_at` (a multiple of 4). Tables and clones must lie within 2 GiB; personalities and exception tables
/// may lie anywhere.
///
/// # Errors
/// [`Error::RowsDoNotCover`], [`Error::UnsortedRegisters`], [`Error::OffsetRange`], [`Error::Overlap`],
/// [`Error::TooFar`], [`Error::Misaligned`].
pub fn write_frames(frames: &[CloneFrame], eh_frame_at: Avma, hdr_at: Avma) -> Result<Frames, Error> {
    if !hdr_at.raw().is_multiple_of(4) {
        return Err(Error::Misaligned { at: hdr_at });
    }
    let mut sorted: Vec<&CloneFrame> = frames.iter().collect();
    sorted.sort_by_key(|f| f.range);
    if let Some(w) = sorted.windows(2).find(|w| w[0].range.end > w[1].range.start) {
        return Err(Error::Overlap { first: w[0].range, second: w[1].range });
    }

    let mut out = Vec::new();
    let mut cies: BTreeMap<CieKey, usize> = BTreeMap::new();
    let mut table = Vec::with_capacity(sorted.len() * 8);
    for frame in &sorted {
        let key = CieKey::of(frame);
        let cie = match cies.get(&key) {
            Some(&at) => at,
            None => {
                let at = out.len();
                put_cie(&mut out, key)?;
                cies.insert(key, at);
                at
            }
        };
        let at = eh_frame_at.add(out.len() as u64);
        put_fde(&mut out, eh_frame_at, cie, key, frame)?;
        put_distance(&mut table, hdr_at, frame.range.start, "a clone from .eh_frame_hdr")?;
        put_distance(&mut table, hdr_at, at, "an FDE from .eh_frame_hdr")?;
    }
    out.extend_from_slice(&[0; 4]);

    let mut hdr = vec![1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4];
    put_distance(&mut hdr, hdr_at.add(4), eh_frame_at, ".eh_frame from .eh_frame_hdr")?;
    let count = u32::try_from(sorted.len()).map_err(|_| Error::TooFar { what: "the number of clones" })?;
    hdr.extend_from_slice(&count.to_le_bytes());
    hdr.extend_from_slice(&table);
    Ok(Frames { eh_frame: out, hdr })
}

/// Appends `to - from` as four bytes.
fn put_distance(out: &mut Vec<u8>, from: Avma, to: Avma, what: &'static str) -> Result<(), Error> {
    let distance = i32::try_from(to.distance(from)).map_err(|_| Error::TooFar { what })?;
    out.extend_from_slice(&distance.to_le_bytes());
    Ok(())
}

/// Pads the entry that begins at `start`, and stores its length in its first four bytes.
pub(crate) fn close(out: &mut Vec<u8>, start: usize) -> Result<(), Error> {
    let size = (out.len() - start).next_multiple_of(ALIGN);
    out.resize(start + size, NOP);
    let len = u32::try_from(size - 4).map_err(|_| Error::TooFar { what: "the end of an entry" })?;
    if let Some(head) = out.get_mut(start..start + 4) {
        head.copy_from_slice(&len.to_le_bytes());
    }
    Ok(())
}

fn put_cie(out: &mut Vec<u8>, key: CieKey) -> Result<(), Error> {
    let mut letters = vec![b'z'];
    let mut data = Vec::new();
    if let Some(personality) = key.personality {
        letters.push(b'P');
        data.push(ABSPTR);
        data.extend_from_slice(&personality.raw().to_le_bytes());
    }
    if key.lsda {
        letters.push(b'L');
        data.push(ABSPTR);
    }
    letters.push(b'R');
    data.push(PCREL_SDATA4);
    if key.signal_frame {
        letters.push(b'S');
    }
    letters.push(0);

    let start = out.len();
    out.extend_from_slice(&[0; 8]); // Length, set below; id 0.
    out.push(1); // Version.
    out.extend_from_slice(&letters);
    put_uleb(out, 1); // Code alignment factor.
    put_sleb(out, DATA_ALIGN);
    out.push(16); // The return address column; one byte in version 1.
    put_uleb(out, data.len() as u64);
    out.extend_from_slice(&data);
    put_initial(out, key.ra)?;
    close(out, start)
}

fn put_fde(out: &mut Vec<u8>, base: Avma, cie: usize, key: CieKey, frame: &CloneFrame) -> Result<(), Error> {
    check_rows(frame)?;
    let start = out.len();
    out.extend_from_slice(&[0; 4]); // Length, set below.
    let back = u32::try_from(out.len() - cie).map_err(|_| Error::TooFar { what: "a CIE from its FDE" })?;
    out.extend_from_slice(&back.to_le_bytes());
    let here = base.add(out.len() as u64);
    put_distance(out, here, frame.range.start, "a clone from its FDE")?;
    // The size is stored in the same signed form.
    let size = i32::try_from(frame.range.len()).map_err(|_| Error::TooFar { what: "the end of a clone" })?;
    out.extend_from_slice(&size.to_le_bytes());
    match frame.lsda {
        Some(lsda) => {
            put_uleb(out, 8);
            out.extend_from_slice(&lsda.raw().to_le_bytes());
        }
        None => put_uleb(out, 0),
    }

    put_rows(out, &key.initial(), frame)?;
    close(out, start)
}

/// Appends the program for a frame's rows, under a CIE with the initial rules `initial`.
pub(crate) fn put_rows(
    out: &mut Vec<u8>,
    initial: &[(Reg, RegRule)],
    frame: &CloneFrame,
) -> Result<(), Error> {
    let first = Row { range: frame.range, cfa: INITIAL_CFA, regs: initial.to_vec(), args_size: 0 };
    let mut rule = &first;
    let mut at = frame.range.start;
    for row in frame.rows.iter() {
        if row.same_rule(rule) {
            continue;
        }
        let ahead = row.range.start.since(at).and_then(|n| u32::try_from(n).ok());
        match ahead.ok_or(Error::RowsDoNotCover { range: frame.range })? {
            0 => {}
            bytes => put_advance(out, bytes),
        }
        put_delta(out, initial, rule, row)?;
        at = row.range.start;
        rule = row;
    }
    Ok(())
}

pub(crate) fn check_rows(frame: &CloneFrame) -> Result<(), Error> {
    let range = frame.range;
    let mut at = range.start;
    for row in &frame.rows {
        if row.range.start != at || row.range.is_empty() {
            return Err(Error::RowsDoNotCover { range });
        }
        at = row.range.end;
        if !row.regs.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Error::UnsortedRegisters { range });
        }
    }
    if at != range.end || range.is_empty() { Err(Error::RowsDoNotCover { range }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::AvmaRange;

    fn frame(start: u64, end: u64) -> CloneFrame {
        let range = AvmaRange::new(Avma(start), Avma(end));
        let regs = vec![(Reg::RA, INITIAL_RA)];
        let rows = vec![Row { range, cfa: INITIAL_CFA, regs, args_size: 0 }];
        CloneFrame { range, rows, personality: None, lsda: None, signal_frame: false }
    }

    const AT: Avma = Avma(0x10_0000);
    const HDR: Avma = Avma(0x20_0000);

    #[test]
    fn no_clones_make_empty_tables() {
        let frames = write_frames(&[], AT, HDR).unwrap();
        assert_eq!(frames.eh_frame, [0; 4]);
        assert_eq!(frames.hdr, [1, 0x1b, 3, 0x3b, 0xfc, 0xff, 0xef, 0xff, 0, 0, 0, 0]);
    }

    #[test]
    fn similar_clones_share_a_cie() {
        let two = write_frames(&[frame(0x1000, 0x1010), frame(0x1010, 0x1020)], AT, HDR).unwrap();
        // CIE 24, FDE 24 each, terminator 4.
        assert_eq!(two.eh_frame.len(), 24 * 3 + 4);
        let mut signal = frame(0x1010, 0x1020);
        signal.signal_frame = true;
        let two = write_frames(&[frame(0x1000, 0x1010), signal], AT, HDR).unwrap();
        assert_eq!(two.eh_frame.len(), 24 * 4 + 4);
        // `S` after `R`.
        assert!(two.eh_frame.windows(4).any(|w| w == b"zRS\0"));
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let write = |frames: &[CloneFrame]| write_frames(frames, AT, HDR).unwrap_err();
        assert!(matches!(write(&[frame(0, 8), frame(7, 9)]), Error::Overlap { .. }));
        assert!(matches!(write(&[frame(8, 8)]), Error::RowsDoNotCover { .. }));
        let mut short = frame(0, 8);
        short.rows[0].range.end = Avma(7);
        assert!(matches!(write(&[short]), Error::RowsDoNotCover { .. }));
        let mut gap = frame(0, 8);
        gap.rows.push(gap.rows[0].clone());
        gap.rows[0].range.end = Avma(3);
        gap.rows[1].range.start = Avma(4);
        assert!(matches!(write(&[gap]), Error::RowsDoNotCover { .. }));
        let mut unsorted = frame(0, 8);
        unsorted.rows[0].regs.push((Reg(3), RegRule::SameValue));
        assert!(matches!(write(&[unsorted]), Error::UnsortedRegisters { .. }));
        assert!(matches!(write(&[frame(0x9000_0000, 0x9000_0008)]), Error::TooFar { .. }));
        assert!(matches!(write(&[frame(0, 0x8000_0000)]), Error::TooFar { .. }));
        assert!(matches!(write_frames(&[], AT, Avma(2)).unwrap_err(), Error::Misaligned { .. }));
    }
}
