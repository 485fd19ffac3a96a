//! The `.debug_frame` of clones, for debuggers.
//!
//! Format: DWARF 3, section 6.4.1. Addresses are absolute, so one section describes clones at any address,
//! where the distances of an `.eh_frame` would not reach. It has neither personalities nor exception tables;
//! debuggers need neither.

use crate::cfi::{DATA_ALIGN, INITIAL_RA, put_initial};
use crate::frames::{check_rows, close, put_rows};
use crate::leb::{put_sleb, put_uleb};
use crate::{CloneFrame, Error, Reg, RegRule};
use addr::Addr;
use std::collections::BTreeMap;

/// The key of a CIE: whether its FDEs are signal frames, and whether all their rows have a rule for the
/// return address.
type Kind = (bool, bool);

/// Writes the frames of clones, in the given order.
///
/// # Errors
/// [`Error::RowsDoNotCover`], [`Error::UnsortedRegisters`], [`Error::TooFar`] for a section of 4 GiB.
pub fn write_debug_frame(frames: &[CloneFrame]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut cies: BTreeMap<Kind, u32> = BTreeMap::new();
    for frame in frames {
        check_rows(frame)?;
        let ra = frame.rows.iter().all(|r| r.regs.iter().any(|(reg, _)| *reg == Reg::RA));
        let kind = (frame.signal_frame, ra);
        let cie = match cies.get(&kind) {
            Some(&at) => at,
            None => {
                let at = u32::try_from(out.len()).map_err(|_| Error::TooFar { what: "a CIE" })?;
                put_cie(&mut out, kind)?;
                cies.insert(kind, at);
                at
            }
        };
        put_fde(&mut out, cie, kind, frame)?;
    }
    Ok(out)
}

fn put_cie(out: &mut Vec<u8>, (signal_frame, ra): Kind) -> Result<(), Error> {
    let start = out.len();
    out.extend([0; 4]); // Length, set below.
    out.extend([0xff; 4]); // The mark of a CIE.
    out.push(1); // Version.
    out.extend(if signal_frame { &b"zS\0"[..] } else { b"\0" });
    put_uleb(out, 1); // Code alignment factor.
    put_sleb(out, DATA_ALIGN);
    out.push(16); // The return address column; one byte in version 1.
    if signal_frame {
        put_uleb(out, 0); // The size of the augmentation data.
    }
    put_initial(out, ra)?;
    close(out, start)
}

fn put_fde(out: &mut Vec<u8>, cie: u32, (signal_frame, ra): Kind, frame: &CloneFrame) -> Result<(), Error> {
    let start = out.len();
    out.extend([0; 4]); // Length, set below.
    out.extend(cie.to_le_bytes());
    out.extend(frame.range.start.raw().to_le_bytes());
    out.extend(frame.range.len().to_le_bytes());
    if signal_frame {
        put_uleb(out, 0);
    }
    let initial: &[(Reg, RegRule)] = if ra { &[(Reg::RA, INITIAL_RA)] } else { &[] };
    put_rows(out, initial, frame)?;
    close(out, start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CfaRule, Row};
    use addr::{Avma, AvmaRange};
    use gimli::{NativeEndian, UnwindContext, UnwindSection};

    fn frame(start: u64, signal_frame: bool) -> CloneFrame {
        let range = AvmaRange::with_len(Avma(start), 0x40);
        let row = |from: u64, to: u64, cfa, mut regs: Vec<(Reg, RegRule)>| {
            regs.push((Reg::RA, INITIAL_RA));
            Row { range: AvmaRange::new(Avma(start + from), Avma(start + to)), cfa, regs, args_size: 0 }
        };
        let saved = vec![(Reg::RBP, RegRule::Offset(-16))];
        let expression = CfaRule::Expr([0x77, 0x08, 0x06].into());
        let rows = vec![
            row(0, 1, CfaRule::RegOffset(Reg::RSP, 8), vec![]),
            row(1, 0x20, CfaRule::RegOffset(Reg::RSP, 16), saved.clone()),
            row(0x20, 0x40, expression, saved),
        ];
        CloneFrame { range, rows, personality: None, lsda: None, signal_frame }
    }

    /// An independent reader finds the same rules, for clones further apart than an `.eh_frame` can span.
    #[test]
    fn an_independent_reader_finds_the_same_rules() {
        let frames = [frame(0x5555_0000_0000, false), frame(0x7fff_0000_0000, true), frame(0x1000, false)];
        let bytes = write_debug_frame(&frames).unwrap();
        let section = gimli::DebugFrame::new(&bytes, NativeEndian);
        let bases = gimli::BaseAddresses::default();
        for f in &frames {
            for row in &f.rows {
                for pc in [row.range.start.0, row.range.end.0 - 1] {
                    let fde =
                        section.fde_for_address(&bases, pc, gimli::DebugFrame::cie_from_offset).unwrap();
                    assert_eq!((fde.initial_address(), fde.len()), (f.range.start.0, f.range.len()));
                    assert_eq!(fde.is_signal_trampoline(), f.signal_frame);
                    let mut context = UnwindContext::new();
                    let got = fde.unwind_info_for_address(&section, &bases, &mut context, pc).unwrap();
                    let rbp = got.register(gimli::Register(6));
                    let saved = row.regs.len() == 2;
                    assert_eq!(rbp == Some(gimli::RegisterRule::Offset(-16)), saved, "{pc:#x} {rbp:?}");
                    assert_eq!(got.register(gimli::Register(16)), Some(gimli::RegisterRule::Offset(-8)));
                    match (got.cfa(), &row.cfa) {
                        (gimli::CfaRule::RegisterAndOffset { offset, .. }, CfaRule::RegOffset(_, wanted)) => {
                            assert_eq!(offset, wanted);
                        }
                        (gimli::CfaRule::Expression(_), CfaRule::Expr(_)) => {}
                        other => panic!("{pc:#x} {other:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let mut short = frame(0x1000, false);
        short.rows.pop();
        assert!(matches!(write_debug_frame(&[short]), Err(Error::RowsDoNotCover { .. })));
        assert_eq!(write_debug_frame(&[]).unwrap(), b"");
    }
}
