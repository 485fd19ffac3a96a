//! Unwind rows and call sites, read back from the output's sections.

use addr::{Avma, ReadMemory, Unreadable};
use emit::{Link, Output};
use unwind::{FrameTable, Lsda, Row};

/// The output's data, and perhaps other memory.
struct Data<'a>(Avma, &'a [u8], Option<&'a dyn ReadMemory>);

impl ReadMemory for Data<'_> {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        match ((self.0, self.1).read(at, buf), self.2) {
            (Err(_), Some(other)) => other.read(at, buf),
            (r, _) => r,
        }
    }
}

/// Checks that each clone instruction has its original's rule when read back, where each fragment is a
/// separate function.
pub fn check_rows(
    out: &Output,
    data_at: Avma,
    rows_of: &dyn Fn(Avma) -> Vec<Row>,
    lsda_of: &dyn Fn(Avma) -> Option<Lsda>,
) {
    let mem = Data(data_at, &out.data, None);
    let bytes = mem.bytes(out.eh_frame).unwrap();
    let table = FrameTable::parse(bytes, out.eh_frame.start, &mem).unwrap();
    let fragments: usize = out.clones.iter().map(|c| c.fragments().ranges().count()).sum();
    assert_eq!((table.fdes().len(), table.skipped(), table.overlaps()), (fragments, 0, 0));
    for (c, range) in out.clones.iter().flat_map(|c| c.fragments().ranges().map(move |r| (c, r))) {
        let fde = table.find(range.start).unwrap();
        assert_eq!(fde.range, range);
        let (got, want) = (table.rows(fde).unwrap(), rows_of(c.original));
        let at = |rows: &[Row], pc: Avma| rows.iter().position(|r| r.range.contains(pc));
        let original_lsda = lsda_of(c.original);
        let lsda = fde.lsda.map(|l| Lsda::parse(&mem, l, range).unwrap());
        assert_eq!(lsda.is_some(), original_lsda.is_some());
        let (mut n, mut w) = (0, 0);
        for e in c.map.entries() {
            let pc = c.fragments().address(e.at);
            if !range.contains(pc) {
                continue;
            }
            while !got[n].range.contains(pc) {
                n += 1;
            }
            if !want[w].range.contains(e.original) {
                match at(&want, e.original) {
                    Some(i) => w = i,
                    None => {
                        assert_eq!(e.link, Link::Extra);
                        continue;
                    }
                }
            }
            if e.link == Link::Dropped {
                continue;
            }
            assert!(got[n].same_rule(&want[w]), "row at {pc} for {}: {:?} {:?}", e.original, got[n], want[w]);
            if let (Link::Copy | Link::Again | Link::Within, Some(l), Some(o)) =
                (e.link, &lsda, &original_lsda)
            {
                let key = |s: Option<&unwind::CallSite>| s.map(|s| (s.landing_pad, s.action));
                assert_eq!(
                    key(l.lookup(pc)),
                    key(o.lookup(e.original)),
                    "call site at {pc} for {}",
                    e.original
                );
            }
        }
        if let (Some(l), Some(o)) = (lsda, original_lsda) {
            // Only what the call sites reach is read, and the remaining call sites may reach less.
            assert!(l.actions.iter().zip(&o.actions).all(|(a, b)| a == b));
            assert!(l.types.iter().zip(&o.types).all(|(a, b)| a == b));
            assert!(l.filters.iter().zip(&o.filters).all(|(a, b)| a == b));
        }
    }
}
