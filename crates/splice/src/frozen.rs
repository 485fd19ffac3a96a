//! The part of the format that never changes, so that any whet can undo an installation of a later whet.
//!
//! Numbers are little-endian. A later version may add data behind what is listed here, under a higher version
//! number. A whet that reads a higher version with this frozen part only does `status` and `undo`. A change
//! of the frozen part itself needs another [`FROZEN`], which earlier whets refuse.
//!
//! | where | what |
//! |---|---|
//! | anchor + 0 | `whetanch` |
//! | anchor + 8 | version of the anchor (8 bytes) |
//! | anchor + 32 | how many regions the page lists (8) |
//! | anchor + 40 | the process's setting of huge pages, while its recovery is pending (8) |
//! | anchor + 48 | how many operator's undos have begun (8) |
//! | anchor + 136 | the number of this frozen part (8) |
//! | anchor + 504 | address of the next page of the list (8); 0 for none |
//! | anchor + 512 | regions of 32 bytes: start and end of the clones, their `.eh_frame_hdr`, the journal |
//! | next page + 0 | `whetlist`, how many regions it lists (8), address of the next page (8), 8 bytes of anything |
//! | next page + 32 | regions |
//! | journal + 0 | `whetjrnl` |
//! | journal + 8 | version of the journal (4), generation (4), state (4), index (4), caches (4), purpose (4), installed at (8) |
//! | journal + 40 | bytes of clones (8), `.eh_frame_hdr` (8) |
//! | journal + 56 | start and end of clones, of the journal's mapping, of the records, of two tables that are not frozen (16 each) |
//! | journal + 136 | nanoseconds of the last stop (8), the number of this frozen part (4) |
//! | record | address (8), kind (1), length in bytes (1), 6 bytes of anything, the bytes without (8) and with (8) the redirect |
//!
//! All mappings of clones and journals together have 256 MiB at most; a longer list is taken for a forged one.
//!
//! A journal of generation 0 has no records: its region is code of another kind, listed only for unwinders.
//!
//! If a redirect's bytes are found at its place, an undo writes the bytes without the redirect, whatever the
//! kind. A record whose place is no longer mapped has nothing to undo.

/// The number of this frozen part. Installations of earlier whets have 0 here.
pub(crate) const FROZEN: u32 = 1;
/// The offset of the number in an anchor.
pub(crate) const IN_ANCHOR: u64 = 136;
/// The offset of the number in a journal.
pub(crate) const IN_JOURNAL: usize = 144;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, RedirectKind, State, discover, journal};
    use addr::{Avma, AvmaRange, ReadMemory, Unreadable};

    /// Pages with their addresses.
    struct Memory(Vec<(Avma, Vec<u8>)>);

    impl ReadMemory for Memory {
        fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
            let none = Unreadable { at, len: buf.len() as u64 };
            self.0.iter().find_map(|(from, bytes)| (*from, &bytes[..]).read(at, buf).ok()).ok_or(none)
        }
    }

    const ANCHOR: u64 = 0x7f00_0000_1000;
    const LIST_PAGE: u64 = 0x7f00_0000_5000;
    const JOURNALS: [u64; 2] = [0x7f00_0020_0000, 0x7f00_0040_0000];
    const RECORDS: u64 = 0x800;

    fn words(page: &mut [u8], at: usize, words: &[u64]) {
        for (i, w) in words.iter().enumerate() {
            page[at + 8 * i..][..8].copy_from_slice(&w.to_le_bytes());
        }
    }

    fn region(journal: u64) -> [u64; 4] {
        [journal - 0x1000, journal, journal + 0x400, journal]
    }

    /// Written out by hand: this layout must stay readable for ever.
    fn memory(anchor_version: u64, journal_version: u64, frozen: u64) -> Memory {
        let mut anchor = vec![0x5a; 4096];
        anchor[..8].copy_from_slice(b"whetanch");
        words(&mut anchor, 8, &[anchor_version]);
        // The number of regions, no pending recovery, two undos.
        words(&mut anchor, 32, &[2, 0, 2]);
        if anchor_version == 3 {
            words(&mut anchor, 16, &[0, 0]);
            words(&mut anchor, 56, &[0; 9]);
        }
        words(&mut anchor, 136, &[frozen]);
        words(&mut anchor, 504, &[LIST_PAGE]);
        words(&mut anchor, 512, &[ANCHOR - 0x1000, ANCHOR, ANCHOR + 0xe00, ANCHOR]);
        words(&mut anchor, 544, &region(JOURNALS[0]));
        let mut list = vec![0x5a; 4096];
        list[..8].copy_from_slice(b"whetlist");
        words(&mut list, 8, &[1, 0]);
        words(&mut list, 32, &region(JOURNALS[1]));
        let journal = |at: u64| {
            let mut page = vec![0x5a; 4096];
            page[..8].copy_from_slice(b"whetjrnl");
            // The journal's version, generation 7; applied, index 0; one cache that does not count.
            words(&mut page, 8, &[journal_version | 7 << 32, 2, 1]);
            words(&mut page, 32, &[99, 100, at + 0x400, at - 0x1000, at, at, at + 0x1000]);
            words(&mut page, 88, &[at + RECORDS, at + RECORDS + 64, 1, 2, 3, 4, 0]);
            if journal_version == 3 {
                words(&mut page, 104, &[at, at, at, at]);
            }
            words(&mut page, 144, &[frozen]);
            let r = usize::try_from(RECORDS).unwrap();
            // A kind of redirect that no version has, and a record whose place is not mapped any more.
            let kind = if journal_version == 3 { 1 } else { 77 };
            words(&mut page, r, &[at + 16, kind | 5 << 8, 0x11, 0x5a5a_5a5a_5a5a_5a5a]);
            words(&mut page, r + 32, &[0x10_0000, kind | 4 << 8, 1, 2]);
            page
        };
        let journals = JOURNALS.map(|at| (Avma(at), journal(at)));
        let mut all = vec![(Avma(ANCHOR), anchor), (Avma(LIST_PAGE), list)];
        all.extend(journals);
        Memory(all)
    }

    fn look(memory: &Memory) -> Result<Option<crate::Installed>, Error> {
        discover(memory, &[AvmaRange::with_len(Avma(ANCHOR), 4096)])
    }

    #[test]
    fn changes_of_a_later_whet_are_found_and_can_be_undone() {
        for (anchor, journal) in [(9, 3), (3, 9), (9, 9), (3, 3)] {
            let found = look(&memory(anchor, journal, 1)).unwrap().unwrap();
            assert_eq!((found.generation(), found.state(), found.caches.len()), (7, State::Applied, 2));
            assert_eq!(found.anchor.undos, 2);
            let is_newer = (anchor, journal) != (3, 3);
            assert_eq!(found.newer(), is_newer.then_some(9));
            for (cache, at) in found.caches.iter().zip(JOURNALS) {
                let first = cache.records.first().unwrap();
                let kind = if journal == 3 { RedirectKind::Entry } else { RedirectKind::Other };
                assert_eq!((first.at, first.kind, first.len), (Avma(at + 16), kind, 5));
                assert_eq!((first.old_bytes(), first.new_bytes()), (&[0x11, 0, 0, 0, 0][..], &[0x5a; 5][..]));
                assert_eq!(cache.records.len(), if journal == 3 { 2 } else { 1 });
                assert_eq!(cache.header.code_bytes, 100);
                assert!(cache.header.map.is_empty());
            }
        }
    }

    #[test]
    fn another_frozen_part_is_refused() {
        for (anchor, journal) in [(9, 3), (3, 9)] {
            for frozen in [0, 2] {
                assert!(matches!(look(&memory(anchor, journal, frozen)), Err(Error::Journal { .. })));
            }
        }
        // Earlier whets did not write the number of the frozen part.
        assert!(look(&memory(3, 3, 0)).unwrap().unwrap().newer().is_none());
    }

    #[test]
    fn a_ring_of_pages_ends() {
        let mut memory = memory(3, 3, 1);
        words(&mut memory.0[1].1, 16, &[LIST_PAGE]);
        assert!(matches!(look(&memory), Err(Error::Journal { .. })));
    }

    /// The words in search order: of the anchor's page, then of each further page.
    #[test]
    fn a_list_of_several_pages_is_read() {
        let mut memory = memory(3, 3, 1);
        for (at, next) in [(LIST_PAGE, LIST_PAGE + 0x2000), (LIST_PAGE + 0x2000, 0)] {
            let mut page = vec![0; 4096];
            page[..8].copy_from_slice(b"whetlist");
            words(&mut page, 8, &[127, next]);
            for i in 0..127 {
                let own = [at + i, at + i + 1, ANCHOR, ANCHOR];
                words(&mut page, 32 + 32 * usize::try_from(i).unwrap(), &own);
            }
            memory.0.retain(|(from, _)| *from != Avma(at));
            memory.0.push((Avma(at), page));
        }
        let found = crate::Anchor::read(&memory, Avma(ANCHOR)).unwrap().unwrap();
        assert_eq!(found.regions.len(), 2 + 2 * 127);
        assert_eq!(found.regions[255].text.start, Avma(LIST_PAGE + 0x2000 + 126));
        // The routines of the whet that wrote this anchor search only its own page.
        assert_eq!(found.room(), 0);
        // One region more than fits in a page.
        words(&mut memory.0.last_mut().unwrap().1, 8, &[128]);
        assert!(matches!(look(&memory), Err(Error::Journal { .. })));
    }

    /// This whet writes the frozen part.
    #[test]
    fn this_whet_writes_the_frozen_part() {
        let (_, data) = crate::Anchor::pages(Avma(ANCHOR), None, 0).unwrap();
        let at = usize::try_from(IN_ANCHOR).unwrap();
        assert_eq!(data[at..at + 8], u64::from(FROZEN).to_le_bytes());
        assert_eq!(data[504..512], [0; 8]);
        assert_eq!(journal::VERSION, 4);
    }
}
