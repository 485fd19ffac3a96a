//! Hand-made `.eh_frame` sections: the output of linkers, and entries that must be left out.

use addr::{Avma, AvmaRange, ReadMemory, Unreadable};
use std::time::{Duration, Instant};
use unwind::{CfaRule, Error, Fde, FrameTable, Reg, RegRule};

const AT: u64 = 0x10_0000;

/// One slot with the value 0x5555.
struct Slot(u64);

impl ReadMemory for Slot {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        if at != Avma(self.0) || buf.len() != 8 {
            return Err(Unreadable { at, len: buf.len() as u64 });
        }
        buf.copy_from_slice(&0x5555u64.to_le_bytes());
        Ok(())
    }
}

/// A section under construction.
#[derive(Default)]
struct Section(Vec<u8>);

impl Section {
    /// Appends an entry; returns its offset.
    fn entry(&mut self, body: &[u8]) -> usize {
        let at = self.0.len();
        self.0.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        self.0.extend(body);
        at
    }

    /// Appends a CIE with the usual factors and rules.
    fn cie(&mut self, augmentation: &str, data: &[u8]) -> usize {
        let mut body = vec![0, 0, 0, 0, 1];
        body.extend(augmentation.bytes());
        body.extend([0, 1, 0x78, 16, u8::try_from(data.len()).unwrap()]);
        body.extend(data);
        body.extend([0x0c, 7, 8, 0x90, 1]);
        self.entry(&body)
    }

    /// Appends an FDE with absolute four-byte addresses (`R` 0x03).
    fn fde(&mut self, cie: usize, start: u32, len: u32, data: &[u8], program: &[u8]) -> usize {
        let back = u32::try_from(self.0.len() + 4 - cie).unwrap();
        let mut body = back.to_le_bytes().to_vec();
        body.extend(start.to_le_bytes());
        body.extend(len.to_le_bytes());
        body.push(u8::try_from(data.len()).unwrap());
        body.extend(data);
        body.extend(program);
        self.entry(&body)
    }

    fn parse(&self) -> FrameTable {
        FrameTable::parse(self.0.clone(), Avma(AT), &Slot(AT + 0x1000)).unwrap()
    }
}

#[test]
fn indirect_personality_and_null_table() {
    let mut s = Section::default();
    // Length, id, version, letters, factors and the size of the data take 18 bytes; the encoding takes one.
    let slot = u32::try_from(0x1000 - 19).unwrap().to_le_bytes();
    let cie = s.cie("zPLR", &[&[0x9b][..], &slot, &[0x1b, 0x03]].concat());
    s.fde(cie, 0x2000, 16, &[0x40, 0, 0, 0], &[]);
    // A pc-relative null is null.
    s.fde(cie, 0x1000, 16, &[0; 4], &[]);
    let table = s.parse();
    assert_eq!(table.skipped(), 0);
    let [first, second] = table.fdes() else { panic!("{table:?}") };
    assert_eq!((first.range.start, first.lsda), (Avma(0x1000), None));
    assert_eq!((first.personality, second.personality), (Some(Avma(0x5555)), Some(Avma(0x5555))));
    let lsda = AT + second.offset + 17 + 0x40;
    assert_eq!(second.lsda, Some(Avma(lsda)));

    assert_eq!(table.find(Avma(0x100f)), Some(first));
    assert_eq!(table.find(Avma(0x1010)), None);
    assert_eq!(table.find(Avma(0xfff)), None);
    assert_eq!(table.find(Avma(0x2000)), Some(second));

    // If the slot cannot be read, the FDEs cannot be used.
    let blind = FrameTable::parse(s.0, Avma(AT), &Slot(0)).unwrap();
    assert_eq!((blind.fdes().len(), blind.skipped()), (0, 2));
}

/// The exception tables may begin directly behind the last entry: no terminator, no padding (clang's layout).
#[test]
fn a_table_directly_behind_its_entry_is_not_null() {
    for behind in [0u32, 4, 8] {
        let mut s = Section::default();
        let cie = s.cie("zLR", &[0x03, 0x03]);
        // An entry is 4 bytes of length, 4 of back pointer, 8 of addresses and 1 and 4 of data.
        let lsda = u32::try_from(AT).unwrap() + u32::try_from(s.0.len()).unwrap() + 21 + behind;
        s.fde(cie, 0x1000, 16, &lsda.to_le_bytes(), &[]);
        assert_eq!(s.parse().fdes()[0].lsda, Some(Avma(u64::from(lsda))), "{behind} bytes behind");
    }
}

#[test]
fn unsound_entries_are_left_out_and_counted() {
    let mut s = Section::default();
    let cie = s.cie("zR", &[0x03]);
    s.fde(cie, 0x1000, 16, &[], &[]);
    s.fde(cie, 0x2000, 0, &[], &[]); // Empty.
    s.fde(cie + 1, 0x3000, 16, &[], &[]); // No CIE there.
    s.entry(&[9, 9]); // Too short.
    let odd = s.cie("zQ", &[0]); // An unknown augmentation.
    s.fde(odd, 0x4000, 16, &[], &[]);
    s.fde(cie, 0x1008, 16, &[], &[]); // Overlaps the first.
    assert_eq!(s.parse().fdes().len(), 2);
    assert_eq!((s.parse().skipped(), s.parse().overlaps()), (4, 1));

    // Nothing is read after a terminator; a truncated entry is counted.
    let mut cut = Section(s.0.clone());
    cut.0.extend([0xff, 0, 0, 0, 1, 2, 3, 4]);
    assert_eq!((cut.parse().fdes().len(), cut.parse().skipped()), (2, 5));
    s.0.extend([0; 4]);
    s.fde(cie, 0x6000, 16, &[], &[]);
    assert_eq!((s.parse().fdes().len(), s.parse().skipped()), (2, 4));

    let high = FrameTable::parse(vec![0; 16], Avma(u64::MAX - 8), &Slot(0));
    assert!(matches!(high, Err(Error::OutsideAddressSpace { .. })));
}

/// Only the listed FDEs are read, not others in the section; zero words between do not end it.
#[test]
fn only_listed_entries_are_read() {
    let mut s = Section::default();
    let first_cie = s.cie("zR", &[0x03]);
    s.fde(first_cie, 0x1000, 16, &[], &[]);
    let new = s.fde(first_cie, 0x2000, 16, &[], &[]);
    s.0.extend([0; 4]);
    let second_cie = s.cie("zR", &[0x03]);
    let old = s.fde(second_cie, 0x3000, 16, &[], &[]);
    s.fde(second_cie, 0x2008, 16, &[], &[]);
    let end = s.0.len();
    let read = |list: &[usize]| {
        let list: Vec<Avma> = list.iter().map(|o| Avma(AT + *o as u64)).collect();
        FrameTable::parse_listed(s.0.clone(), Avma(AT), &list, &Slot(0)).unwrap()
    };
    let table = read(&[new, old]);
    let starts: Vec<Avma> = table.fdes().iter().map(|f| f.range.start).collect();
    assert_eq!((starts, table.skipped(), table.overlaps()), (vec![Avma(0x2000), Avma(0x3000)], 0, 0));
    assert_eq!(table.extent(), AvmaRange::with_len(Avma(AT), (end - (end - old) / 2) as u64));
    for fde in table.fdes() {
        assert_eq!(table.rows(fde).unwrap().len(), 1);
    }
    // A repeated address counts once. An entry that begins inside another is rejected, even if it is
    // complete.
    assert_eq!(read(&[old, new, old, new]).fdes(), table.fdes());
    let mut outer = Section::default();
    let cie = outer.cie("zR", &[0x03]);
    let mut inner = Section(vec![0; outer.0.len() + 17]);
    let at = inner.fde(cie, 0x7000, 16, &[], &[]);
    let holder = outer.fde(cie, 0x6000, 16, &[], &[&inner.0[at..], &[0; 8]].concat());
    assert_eq!(holder + 17, at);
    let list = [holder, at].map(|o| Avma(AT + o as u64));
    let both = FrameTable::parse_listed(outer.0, Avma(AT), &list, &Slot(0)).unwrap();
    assert_eq!((both.fdes().len(), both.skipped()), (1, 1));
    // No FDE: a CIE, the zero word, the section's end, outside, inside an entry.
    let none = read(&[first_cie, second_cie - 4, end, end + 100, new + 1]);
    assert_eq!((none.fdes().len(), none.skipped()), (0, 5));
    assert!(none.extent().is_empty());
}

#[test]
fn programs() {
    let mut s = Section::default();
    let cie = s.cie("zR", &[0x03]);
    // push rbp; arguments pushed; remember; leave; restore: the size of the arguments keeps its last stated
    // value.
    let program =
        [0x41, 0x0e, 16, 0x86, 2, 0x42, 0x2e, 32, 0x0a, 0x41, 0x2e, 0, 0xc6, 0x0c, 7, 8, 0x41, 0x0b, 0x7f];
    s.fde(cie, 0x1000, 16, &[], &program);
    s.fde(cie, 0x2000, 16, &[], &[0x0b]); // Nothing to restore.
    s.fde(cie, 0x3000, 16, &[], &[0x2d]); // An instruction of another machine.
    s.fde(cie, 0x4000, 16, &[], &[0x07, 0x80, 0x02]); // A register of another machine.
    s.fde(cie, 0x5000, 16, &[], &[0x41, 0x0e, 16, 0x0a, 0x0a, 0x0b, 0x0b, 0x0b]);
    s.fde(cie, 0x6000, 16, &[], &[0x07, 16]); // Outermost.
    let table = s.parse();
    assert_eq!(table.skipped(), 0);
    let rows = |at| table.rows(table.find(Avma(at)).unwrap());

    let ra = (Reg::RA, RegRule::Offset(-8));
    let rbp = (Reg::RBP, RegRule::Offset(-16));
    let got: Vec<_> =
        rows(0x1000).unwrap().into_iter().map(|r| (r.range.start.0, r.cfa, r.regs, r.args_size)).collect();
    let cfa = |n| CfaRule::RegOffset(Reg::RSP, n);
    let want = [
        (0x1000, cfa(8), vec![ra.clone()], 0),
        (0x1001, cfa(16), vec![rbp.clone(), ra.clone()], 0),
        (0x1003, cfa(16), vec![rbp.clone(), ra.clone()], 32),
        (0x1004, cfa(8), vec![ra.clone()], 0),
        (0x1005, cfa(16), vec![rbp, ra.clone()], 0),
    ];
    assert_eq!(got, want);
    // The program's last step leaves the function, but the rows do not.
    assert_eq!(rows(0x1000).unwrap().last().unwrap().range, AvmaRange::new(Avma(0x1005), Avma(0x1010)));

    for at in [0x2000, 0x3000, 0x4000, 0x5000] {
        assert!(rows(at).is_err(), "{at:#x}");
    }
    assert_eq!(rows(0x6000).unwrap()[0].regs, [(Reg::RA, RegRule::Undefined)]);
    let initial = table.initial_row(table.find(Avma(0x6000)).unwrap()).unwrap();
    assert_eq!((initial.regs, initial.cfa), (vec![ra], cfa(8)));

    // A key of another table.
    let alien = Fde { offset: 1, ..table.fdes()[0].clone() };
    assert_eq!(table.rows(&alien), Err(Error::NoFde { offset: 1 }));
}

/// Sizes that would explode if all were accepted, or if each shared part were read again.
#[test]
fn work_is_bounded() {
    let start = Instant::now();
    // Many registers, many rows: refused by their number.
    let mut s = Section::default();
    let cie = s.cie("zR", &[0x03]);
    let mut program: Vec<u8> = (0..128).flat_map(|r| [0x08, r & 0x7f]).collect();
    for i in 0..100_000u32 {
        program.extend([0x41, 0x2e, u8::try_from(i % 2).unwrap()]);
    }
    s.fde(cie, 0x1000, 1 << 24, &[], &program);
    let table = s.parse();
    assert!(matches!(table.rows(&table.fdes()[0]), Err(Error::Program { what: "too many rules", .. })));

    // A long CIE that all FDEs share.
    let mut s = Section::default();
    let mut body = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 3, 0x0c, 7, 8];
    body.resize(1 << 20, 0);
    let cie = s.entry(&body);
    for i in 0..50_000 {
        s.fde(cie, 0x1000 + 16 * i, 16, &[], &[]);
    }
    let table = s.parse();
    assert_eq!((table.fdes().len(), table.skipped()), (0, 50_000));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
