//! Input that `status` may meet: memory that looks like an anchor with journals, and is not.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use addr::{Addr, Avma, AvmaRange, ReadMemory, Unreadable};
use splice::{Anchor, Error, Header, MAX_REGIONS, State, decode_stub, discover};

const ANCHOR: Avma = Avma(0x7f00_0000_1000);
const JOURNAL: Avma = Avma(0x7f00_0020_0000);

/// A memory of two pages.
struct Memory([(Avma, Vec<u8>); 2]);

impl ReadMemory for Memory {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let [a, b] = &self.0;
        (a.0, &a.1[..]).read(at, buf).or_else(|_| (b.0, &b.1[..]).read(at, buf))
    }
}

/// An anchor with one code cache, whose journal has no redirects.
fn memory() -> Memory {
    let (_, mut anchor) = Anchor::pages(ANCHOR, Some(Avma(0x7000)), 0x1234).unwrap();
    let journal = AvmaRange::with_len(JOURNAL, 4096);
    let empty = AvmaRange::with_len(journal.end, 0);
    let header = Header {
        state: State::Applied,
        generation: 1,
        counting: false,
        index: 0,
        caches: 1,
        since_ns: 0,
        text: AvmaRange::with_len(JOURNAL.sub(4096), 4096),
        data: journal,
        eh_frame_hdr: JOURNAL.add(2048),
        code_bytes: 100,
        records: empty,
        map: empty,
        notes: empty,
        stopped_ns: 0,
    };
    let region = [header.text.start, header.text.end, header.eh_frame_hdr, JOURNAL];
    let mut put = |at: Avma, bytes: &[u8]| {
        let from = usize::try_from(at.since(ANCHOR).unwrap()).unwrap();
        anchor[from..from + bytes.len()].copy_from_slice(bytes);
    };
    put(ANCHOR.add(544), &region.map(|a| a.0.to_le_bytes()).concat());
    put(ANCHOR.add(32), &2u64.to_le_bytes());
    let mut journal = header.write();
    journal.resize(4096, 0);
    Memory([(ANCHOR, anchor), (JOURNAL, journal)])
}

fn look(memory: &Memory) -> Option<splice::Installed> {
    let pages = [AvmaRange::with_len(Avma(0x1000), 4096), AvmaRange::with_len(ANCHOR, 4096)];
    discover(memory, &pages).ok().flatten()
}

#[test]
fn a_valid_anchor_is_found() {
    let found = look(&memory()).unwrap();
    assert_eq!((found.generation(), found.state(), found.caches.len()), (1, State::Applied, 1));
    assert_eq!(found.mapped_bytes(), 8192);
}

/// One code cache of this size is possible; the list names it twice.
#[test]
fn a_list_of_more_memory_than_whets_map_is_refused() {
    let (mut memory, half) = (memory(), AvmaRange::with_len(JOURNAL.sub(128 << 20), 128 << 20));
    let [_, (_, journal)] = &mut memory.0;
    journal[56..72].copy_from_slice(&[half.start, half.end].map(|a| a.0.to_le_bytes()).concat());
    assert!(look(&memory).is_some());
    let [(_, anchor), _] = &mut memory.0;
    anchor.copy_within(544..576, 576);
    anchor[32..40].copy_from_slice(&3u64.to_le_bytes());
    let refused = discover(&memory, &[AvmaRange::with_len(ANCHOR, 4096)]).unwrap_err();
    assert!(matches!(refused, Error::Journal { what: "code caches of impossible size", .. }), "{refused}");
}

/// The journal's words are as large as they can be: sums of them and numbers behind them do not overflow.
#[test]
fn a_journal_of_extreme_words_has_bounded_figures() {
    let mut memory = memory();
    let [_, (_, journal)] = &mut memory.0;
    journal[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    journal[20..28].copy_from_slice(&[0xff; 8]);
    journal[32..48].copy_from_slice(&[0xff; 16]);
    journal[136..144].copy_from_slice(&[0xff; 8]);
    let found = look(&memory).unwrap();
    assert_eq!((found.generation(), found.caches[0].header.code_bytes), (u32::MAX, 4096));
    assert!(matches!(found.next_generation(), Err(Error::Journal { .. })));
}

/// The one-second form of the fuzz target: arbitrary bytes cause no panic.
#[test]
fn invalid_memory_causes_no_panic() {
    arbtest::arbtest(|u| {
        let mut memory = memory();
        for _ in 0..u.int_in_range(1..=6)? {
            let [anchor, journal] = &mut memory.0;
            // Mostly in the places with contents: the head, the list of regions, the journal's header.
            let (page, range) = u.choose(&[(0, 0..64), (0, 64..4096), (1, 0..256), (1, 0..4096)])?;
            let at = u.int_in_range(range.start..=range.end - 8)?;
            let word = match u.int_in_range(0..=3u8)? {
                0 => u.int_in_range(0..=MAX_REGIONS as u64 + 1)?,
                1 => JOURNAL.0.wrapping_add(u.int_in_range(0..=4096)?),
                2 => u64::MAX - u.int_in_range(0..=64u64)?,
                _ => u.arbitrary()?,
            };
            let bytes = if *page == 0 { &mut anchor.1 } else { &mut journal.1 };
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(found) = look(&memory) {
            let _ = (found.generation(), found.state(), found.mapped_bytes());
            for cache in &found.caches {
                let _ = (cache.map(&memory), cache.notes(&memory));
            }
        }
        let _ = decode_stub(&memory, ANCHOR.add(u.int_in_range(0..=4095)?));
        Ok(())
    })
    .budget_ms(1000);
}
