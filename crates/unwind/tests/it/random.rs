//! Random tables: written tables read back the same, by this crate and by gimli; hostile bytes are harmless.

use crate::common::section;
use addr::{Addr, Avma, AvmaRange};
use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use gimli::{EhFrame, EhFrameHdr, LittleEndian, UnwindContext};
use std::sync::Arc;
use unwind::{CallSite, CfaRule, CloneFrame, FrameTable, Lsda, Reg, RegRule, Row, write_frames};

const NOTHING: (Avma, &[u8]) = (Avma(0), &[]);

fn offset(u: &mut Unstructured<'_>) -> Result<i64> {
    Ok(match u.int_in_range(0..=3)? {
        0 => -8 * u.int_in_range(0..=20)?,
        1 => u.int_in_range(-300..=300)?,
        2 => u.int_in_range(-0x1_0000_0000..=0x1_0000_0000)?,
        // The one value without a form is refused; see `frames.rs`.
        _ => u.arbitrary::<i64>()?.max(-i64::MAX),
    })
}

fn expr(u: &mut Unstructured<'_>) -> Result<Arc<[u8]>> {
    let len = if u.ratio(1, 8)? { 300 } else { u.int_in_range(0..=8)? };
    (0..len).map(|_| u.arbitrary::<u8>()).collect()
}

fn rule(u: &mut Unstructured<'_>) -> Result<RegRule> {
    Ok(match u.int_in_range(0..=6)? {
        0 => RegRule::Undefined,
        1 => RegRule::SameValue,
        2 => RegRule::ValOffset(offset(u)?),
        3 => RegRule::Register(Reg(u.int_in_range(0..=129)?)),
        4 => RegRule::Expr(expr(u)?),
        5 => RegRule::ValExpr(expr(u)?),
        _ => RegRule::Offset(offset(u)?),
    })
}

/// Changes some fields of a row.
fn change(u: &mut Unstructured<'_>, row: &mut Row, keep_ra: bool) -> Result<()> {
    for _ in 0..u.int_in_range(0..=3)? {
        match u.int_in_range(0..=4)? {
            0 => {
                row.cfa = if u.ratio(1, 6)? {
                    CfaRule::Expr(expr(u)?)
                } else {
                    CfaRule::RegOffset(Reg(u.int_in_range(5..=8)?), offset(u)?)
                }
            }
            1 => {
                if let CfaRule::RegOffset(reg, old) = &mut row.cfa {
                    if u.arbitrary()? { *reg = Reg(u.int_in_range(6..=7)?) } else { *old = offset(u)? }
                }
            }
            2 => row.args_size = if u.arbitrary()? { 0 } else { u.arbitrary()? },
            which => {
                let reg = Reg(*u.choose(&[3, 6, 7, 12, 16, 17, 63, 64, 65, 118, 129])?);
                let found = row.regs.binary_search_by_key(&reg, |r| r.0);
                match found {
                    Ok(at) if which == 3 && !(keep_ra && reg == Reg::RA) => drop(row.regs.remove(at)),
                    Ok(at) => row.regs[at].1 = if u.ratio(1, 3)? { RegRule::Offset(-8) } else { rule(u)? },
                    Err(at) => row.regs.insert(at, (reg, rule(u)?)),
                }
            }
        }
    }
    Ok(())
}

/// Returns a clone from `at` on; neighbouring rows may be equal.
fn clone(u: &mut Unstructured<'_>, mut at: Avma) -> Result<CloneFrame> {
    let start = at;
    let keep_ra = u.ratio(3, 4)?;
    let mut row = Row {
        range: AvmaRange::default(),
        cfa: CfaRule::RegOffset(Reg::RSP, 8),
        regs: vec![(Reg::RA, RegRule::Offset(-8))],
        args_size: 0,
    };
    let mut rows = Vec::new();
    for _ in 0..u.int_in_range(1..=12)? {
        change(u, &mut row, keep_ra)?;
        let len = match u.int_in_range(0..=4)? {
            0..3 => u.int_in_range(1..=70)?,
            3 => u.int_in_range(1..=0x1_0010)?,
            _ => *u.choose(&[63, 64, 255, 256, 0xffff, 0x1_0000])?,
        };
        row.range = AvmaRange::with_len(at, len);
        rows.push(row.clone());
        at = row.range.end;
    }
    Ok(CloneFrame {
        range: AvmaRange::new(start, at),
        rows,
        personality: if u.arbitrary()? {
            Some(Avma(*u.choose(&[0x1234_5678, 0xdead_0000_0000])?))
        } else {
            None
        },
        lsda: if u.arbitrary()? { Some(Avma(u.int_in_range(1..=u64::MAX)?)) } else { None },
        signal_frame: u.ratio(1, 5)?,
    })
}

fn clones(u: &mut Unstructured<'_>) -> Result<Vec<CloneFrame>> {
    let mut at = Avma(0x7f00_0000_0000 + u.int_in_range(0..=0x1000)?);
    let mut out = Vec::new();
    for _ in 0..u.int_in_range(0..=6)? {
        let next = clone(u, at)?;
        at = next.range.end.add(if u.arbitrary()? { 0 } else { u.int_in_range(0..=100)? });
        out.push(next);
    }
    Ok(out)
}

/// Merges equal neighbours, as the reader does.
fn joined(rows: &[Row]) -> Vec<Row> {
    let mut out: Vec<Row> = Vec::new();
    for row in rows {
        match out.last_mut() {
            Some(last) if last.same_rule(row) => last.range.end = row.range.end,
            _ => out.push(row.clone()),
        }
    }
    out
}

#[test]
fn frames_round_trip() {
    arbtest(|u| {
        let mut clones = clones(u)?;
        let hdr_at = Avma(0x7f00_1000_0000);
        let eh_frame_at = Avma(0x7eff_f000_0001);
        if u.arbitrary()? {
            clones.reverse(); // The order given does not matter.
        }
        let frames = write_frames(&clones, eh_frame_at, hdr_at).unwrap();
        clones.sort_by_key(|c| c.range.start);

        let table = FrameTable::parse(frames.eh_frame.clone(), eh_frame_at, &NOTHING).unwrap();
        assert_eq!((table.skipped(), table.overlaps(), table.fdes().len()), (0, 0, clones.len()));
        let (section, bases) = section(&frames.eh_frame, eh_frame_at);
        let bases = bases.set_eh_frame_hdr(hdr_at.raw());
        let hdr = EhFrameHdr::new(&frames.hdr, LittleEndian).parse(&bases, 8).unwrap();
        let mut ctx = UnwindContext::new();
        for (clone, fde) in clones.iter().zip(table.fdes()) {
            assert_eq!((clone.range, clone.personality), (fde.range, fde.personality));
            assert_eq!((clone.lsda, clone.signal_frame), (fde.lsda, fde.signal_frame));
            assert_eq!(table.rows(fde).unwrap(), joined(&clone.rows));
            for row in &clone.rows {
                for at in [row.range.start, row.range.end.sub(1)] {
                    assert_eq!(table.find(at), Some(fde));
                    let cie = <EhFrame<_> as gimli::UnwindSection<_>>::cie_from_offset;
                    let search = hdr.table().unwrap();
                    let found = search.unwind_info_for_address(&section, &bases, &mut ctx, at.raw(), cie);
                    let found = crate::common::row(&frames.eh_frame, found.unwrap());
                    assert!(found.same_rule(row), "at {at}: {found:?} for {row:?}");
                }
            }
        }
        Ok(())
    })
    .budget_ms(2000);
}

/// Returns an exception table whose types and specifications are all in use, so that the reader finds all of
/// them.
fn lsda(u: &mut Unstructured<'_>, func: AvmaRange) -> Result<Lsda> {
    let types: Vec<Option<Avma>> = (0..u.int_in_range(0..=5)?)
        .map(|_| Ok(if u.ratio(1, 4)? { None } else { Some(Avma(u.int_in_range(1..=u64::MAX)?)) }))
        .collect::<Result<_>>()?;
    let count = u8::try_from(types.len()).unwrap();
    let filters = if count > 0 && u.arbitrary()? { vec![count, 1, 0, 0] } else { Vec::new() };
    // One chain over all types, then the specifications, one byte per number; the last is the cleanup.
    let mut actions: Vec<u8> = (1..=count).flat_map(|i| [i, 1]).collect();
    if !filters.is_empty() {
        actions.extend([0x7f, 1, 0x7c, 1]); // Filters -1 and -4.
    }
    actions.extend([0, 0]);
    let mut call_sites = Vec::new();
    let mut at = func.start;
    while call_sites.is_empty() || (call_sites.len() < 20 && u.ratio(3, 4)?) {
        let start = at.add(u.int_in_range(0..=300)?);
        at = start.add(u.int_in_range(1..=300)?);
        call_sites.push(CallSite {
            range: AvmaRange::new(start, at),
            landing_pad: if u.arbitrary()? { Some(Avma(u.int_in_range(2..=u64::MAX)?)) } else { None },
            // The first call site reaches everything.
            action: if call_sites.is_empty() { 1 } else { *u.choose(&[0, 1, actions.len() as u64 - 1])? },
        });
    }
    Ok(Lsda { call_sites, actions, types, filters })
}

#[test]
fn exception_tables_round_trip() {
    let func = AvmaRange::with_len(Avma(0x7f00_0000_1234), 0x10_0000);
    arbtest(|u| {
        let table = lsda(u, func)?;
        let bytes = table.write(func.start).unwrap();
        let place = (Avma(u.int_in_range(1..=0x7fff_ffff_0000)?), &bytes[..]);
        let again = Lsda::parse(&place, place.0, func).unwrap();
        assert_eq!(
            (&again.types, &again.filters, &again.actions),
            (&table.types, &table.filters, &table.actions)
        );
        let places = table
            .call_sites
            .iter()
            .flat_map(|s| [s.range.start.sub(1), s.range.start, s.range.end.sub(1), s.range.end]);
        for pc in places {
            let brute = table.call_sites.iter().find(|s| s.range.contains(pc));
            let found = again.lookup(pc);
            assert_eq!(brute.map(|s| (s.landing_pad, s.action)), found.map(|s| (s.landing_pad, s.action)));
            assert_eq!(table.lookup(pc), brute);
        }
        Ok(())
    })
    .budget_ms(1000);
}

/// Mutates sound bytes like a fuzzer.
fn spoil(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=6)? {
        if bytes.is_empty() {
            break;
        }
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=4)? {
            0 => bytes[at] = u.arbitrary()?,
            1 => bytes[at] = *u.choose(&[0, 1, 0x7f, 0x80, 0xff])?,
            2 => bytes.truncate(at),
            3 => bytes.insert(at, u.arbitrary()?),
            _ => {
                for b in bytes.iter_mut().skip(at).take(8) {
                    *b = 0xff;
                }
            }
        }
    }
    Ok(())
}

/// Reads everything that can be read.
fn devour(bytes: &[u8], at: Avma) {
    let mem = (at, bytes);
    let Ok(table) = FrameTable::parse(bytes.to_vec(), at, &mem) else { return };
    for fde in table.fdes() {
        if let Ok(rows) = table.rows(fde) {
            assert_eq!(rows.first().unwrap().range.start, fde.range.start);
            assert_eq!(rows.last().unwrap().range.end, fde.range.end);
            assert!(rows.windows(2).all(|w| w[0].range.end == w[1].range.start));
            let clone = CloneFrame {
                range: fde.range,
                rows,
                personality: fde.personality,
                lsda: fde.lsda,
                signal_frame: fde.signal_frame,
            };
            // Everything that was read can be written within 2 GiB, or is refused.
            let near = fde.range.start.align_down(8);
            if let Ok(frames) = write_frames(std::slice::from_ref(&clone), near, near) {
                let again = FrameTable::parse(frames.eh_frame, near, &NOTHING);
                if let Ok(again) = again {
                    assert_eq!(again.rows(&again.fdes()[0]).unwrap(), clone.rows);
                }
            }
        }
        let _ = table.initial_row(fde);
        if let Some(lsda) = fde.lsda {
            let _ = Lsda::parse(&mem, lsda, fde.range);
        }
    }
}

#[test]
fn hostile_frames() {
    arbtest(|u| {
        let at = Avma(0x7f00_1000_0000);
        let mut bytes = if u.ratio(1, 4)? {
            u.arbitrary::<Vec<u8>>()?
        } else {
            write_frames(&clones(u)?, at, at).unwrap().eh_frame
        };
        spoil(u, &mut bytes)?;
        devour(&bytes, if u.ratio(1, 8)? { Avma(u.arbitrary()?) } else { at });
        Ok(())
    })
    .budget_ms(1500);
}

#[test]
fn hostile_exception_tables() {
    let func = AvmaRange::with_len(Avma(0x1000), 0x10_0000);
    arbtest(|u| {
        let mut bytes = if u.ratio(1, 4)? {
            u.arbitrary::<Vec<u8>>()?
        } else {
            lsda(u, func)?.write(func.start).unwrap()
        };
        spoil(u, &mut bytes)?;
        let at = if u.ratio(1, 8)? { Avma(0u64.wrapping_sub(bytes.len() as u64)) } else { Avma(0x8000) };
        if let Ok(table) = Lsda::parse(&(at, &bytes[..]), at, func)
            && let Ok(written) = table.write(func.start)
        {
            let place = (Avma(0x9000), &written[..]);
            let again = Lsda::parse(&place, place.0, func).unwrap();
            // Empty call sites are not written, so actions that only they use are not found again.
            if table.call_sites.iter().all(|s| !s.range.is_empty()) {
                assert_eq!(
                    (again.types, again.filters, again.actions),
                    (table.types, table.filters, table.actions)
                );
            }
        }
        Ok(())
    })
    .budget_ms(1500);
}
