//! The tables of real programs: read, compared with gimli, written as if every function were cloned, and read
//! again.

use crate::common::{Elf, gimli_rows, section};
use addr::{Addr, Avma, AvmaRange};
use gimli::{EhFrame, EhFrameHdr, LittleEndian, UnwindContext};
use std::time::Instant;
use unwind::{CallSite, CfaRule, CloneFrame, FrameTable, Lsda, Reg, Row, write_frames};

const MARIADBD: &str = "/usr/sbin/mariadbd";
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const LIBSTDCXX: &str = "/lib/x86_64-linux-gnu/libstdc++.so.6";

/// The distance of clones from originals here: far beyond 32 bits, and odd.
const AWAY: u64 = 0x7123_4567_89a1;

fn moved(range: AvmaRange) -> AvmaRange {
    AvmaRange::new(range.start.add(AWAY), range.end.add(AWAY))
}

fn table(elf: &Elf) -> FrameTable {
    FrameTable::parse(elf.from(elf.eh_frame_at).unwrap().to_vec(), elf.eh_frame_at, elf).unwrap()
}

/// Reads all rows; checks that they equal gimli's and cover their FDE.
fn rows_of(path: &str, elf: &Elf) -> (FrameTable, Vec<Vec<Row>>) {
    let bytes = elf.from(elf.eh_frame_at).unwrap().to_vec();
    let start = Instant::now();
    let table = FrameTable::parse(bytes, elf.eh_frame_at, elf).unwrap();
    let parsed = start.elapsed();
    let rows: Vec<Vec<Row>> = table.fdes().iter().map(|f| table.rows(f).unwrap()).collect();
    println!(
        "{path}: {} FDEs, {} with an exception table, {} skipped, {} overlapping, {} rows; parsed in {parsed:?}, all in {:?}",
        table.fdes().len(),
        table.fdes().iter().filter(|f| f.lsda.is_some()).count(),
        table.skipped(),
        table.overlaps(),
        rows.iter().map(Vec::len).sum::<usize>(),
        start.elapsed(),
    );
    assert_eq!(table.skipped(), 0);

    let bytes = elf.from(elf.eh_frame_at).unwrap();
    let (section, bases) = section(bytes, elf.eh_frame_at);
    let mut ctx = UnwindContext::new();
    for (fde, rows) in table.fdes().iter().zip(&rows) {
        assert_eq!(rows, &gimli_rows(bytes, &section, &bases, &mut ctx, fde.offset), "{fde:?}");
        assert_eq!(rows.first().unwrap().range.start, fde.range.start);
        assert_eq!(rows.last().unwrap().range.end, fde.range.end);
        assert!(rows.windows(2).all(|w| w[0].range.end == w[1].range.start && !w[0].same_rule(&w[1])));
        // A signal trampoline's CIE leaves the frame address to its FDE.
        match table.initial_row(fde) {
            Ok(row) => assert_eq!((row.range, row.cfa), (fde.range, CfaRule::RegOffset(Reg::RSP, 8))),
            Err(error) => assert!(fde.signal_frame, "{error}"),
        }
    }
    (table, rows)
}

fn rows_survive_cloning(path: &str) {
    let Some(elf) = Elf::load(path) else { return };
    let (table, rows) = rows_of(path, &elf);
    assert_eq!(table.overlaps(), 0);
    let clones: Vec<CloneFrame> = table
        .fdes()
        .iter()
        .zip(rows)
        .map(|(fde, rows)| CloneFrame {
            range: moved(fde.range),
            rows: rows.into_iter().map(|r| Row { range: moved(r.range), ..r }).collect(),
            personality: fde.personality,
            lsda: fde.lsda.map(|l| l.add(AWAY)),
            signal_frame: fde.signal_frame,
        })
        .collect();
    let hdr_at = Avma((AWAY + 0x4000_0000) & !7);
    let eh_frame_at = hdr_at.add(0x100_0000);
    let start = Instant::now();
    let frames = write_frames(&clones, eh_frame_at, hdr_at).unwrap();
    println!("{path}: written in {:?}, {} bytes", start.elapsed(), frames.eh_frame.len());

    let again = FrameTable::parse(frames.eh_frame.clone(), eh_frame_at, &(Avma(0), &[][..])).unwrap();
    assert_eq!((again.fdes().len(), again.skipped()), (clones.len(), 0));
    let (section, bases) = section(&frames.eh_frame, eh_frame_at);
    let bases = bases.set_eh_frame_hdr(hdr_at.raw());
    let hdr = EhFrameHdr::new(&frames.hdr, LittleEndian).parse(&bases, 8).unwrap();
    assert_eq!(hdr.eh_frame_ptr(), gimli::Pointer::Direct(eh_frame_at.raw()));
    let search = hdr.table().unwrap();
    let mut ctx = UnwindContext::new();
    for (clone, fde) in clones.iter().zip(again.fdes()) {
        assert_eq!(clone.range, fde.range);
        assert_eq!((clone.personality, clone.lsda), (fde.personality, fde.lsda));
        assert_eq!(clone.signal_frame, fde.signal_frame);
        assert_eq!(clone.rows, again.rows(fde).unwrap());
        for row in &clone.rows {
            for at in [row.range.start, row.range.end.sub(1)] {
                let found = search.unwind_info_for_address(
                    &section,
                    &bases,
                    &mut ctx,
                    at.raw(),
                    <EhFrame<_> as gimli::UnwindSection<_>>::cie_from_offset,
                );
                assert!(crate::common::row(&frames.eh_frame, found.unwrap()).same_rule(row), "{at}");
            }
        }
    }
}

#[test]
fn mariadbd_frames() {
    rows_survive_cloning(MARIADBD);
}

#[test]
fn libc_frames() {
    rows_survive_cloning(LIBC);
}

#[test]
fn libstdcxx_frames() {
    rows_survive_cloning(LIBSTDCXX);
}

/// Checks that every exception table, moved and written, gives the same result at each boundary as the
/// original.
fn exception_tables(path: &str) -> usize {
    let Some(elf) = Elf::load(path) else { return 0 };
    let table = table(&elf);
    let (mut sites, mut pads, mut types, mut specs, mut bytes) = (0, 0, 0, 0, 0);
    let mut count = 0;
    for fde in table.fdes() {
        let Some(at) = fde.lsda else { continue };
        let lsda = Lsda::parse(&elf, at, fde.range).unwrap();
        count += 1;
        sites += lsda.call_sites.len();
        pads += lsda.call_sites.iter().filter(|s| s.landing_pad.is_some()).count();
        types += lsda.types.len();
        specs += usize::from(!lsda.filters.is_empty());
        // GCC keeps a function's landing pads in the function.
        for pad in lsda.call_sites.iter().filter_map(|s| s.landing_pad) {
            assert!(fde.range.contains(pad), "{fde:?} {pad}");
        }

        let shift = |s: &CallSite| CallSite { range: moved(s.range), ..*s };
        let clone = Lsda { call_sites: lsda.call_sites.iter().map(shift).collect(), ..lsda.clone() };
        let written = clone.write(fde.range.start.add(AWAY)).unwrap();
        bytes += written.len();
        let place = (Avma(0x5000_0003), &written[..]);
        let again = Lsda::parse(&place, place.0, moved(fde.range)).unwrap();
        assert_eq!(
            (&again.actions, &again.types, &again.filters),
            (&lsda.actions, &lsda.types, &lsda.filters)
        );
        let ends = lsda
            .call_sites
            .iter()
            .flat_map(|s| [s.range.start.sub(1), s.range.start, s.range.end.sub(1), s.range.end]);
        for pc in ends {
            let was = lsda.lookup(pc).map(|s| (s.landing_pad, s.action));
            let is = again.lookup(pc.add(AWAY)).map(|s| (s.landing_pad, s.action));
            assert_eq!(was, is, "{fde:?} {pc}");
        }
    }
    println!(
        "{path}: {count} exception tables, {sites} call sites, {pads} with a landing pad, {types} types, {specs} with exception specifications; {bytes} bytes written"
    );
    assert_eq!(count, table.fdes().iter().filter(|f| f.lsda.is_some()).count());
    count
}

#[test]
fn mariadbd_exception_tables() {
    exception_tables(MARIADBD);
}

#[test]
fn library_exception_tables() {
    for path in [LIBC, LIBSTDCXX] {
        exception_tables(path);
    }
}
