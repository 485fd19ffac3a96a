//! The anchor: the place in a target from which all changes by whet are found.
//!
//! It has two pages, mapped once and never unmapped. The page of code (`r-x`) holds the routines that answer
//! unwinders. The page of data (`r--`) behind it holds the list of regions that they search. Each region is a
//! code cache, with the address of its journal. Region 0 is the routines' own page, so that they can be
//! unwound as well.

use crate::list::{self, Tail};
use crate::{CounterArea, Error, Record, frozen, journal, lookup, module_list};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use unwind::{CfaRule, CloneFrame, Reg, RegRule, Row};

/// The first bytes of the data page.
pub const MAGIC: [u8; 8] = *b"whetanch";
const VERSION: u64 = 4;
/// The version before: its routines search only the anchor's page.
const WITHOUT_CHAIN: u64 = 3;
/// Size of each of the two pages.
pub const PAGE: u64 = 4096;
const SLOT: u64 = 16;
const ORIGINAL: u64 = 24;
pub(crate) const COUNT: u64 = 32;
/// The process's setting of huge pages (`PR_GET_THP_DISABLE`) while whet has changed it; 0 if no recovery is
/// pending.
const PENDING: u64 = 40;
/// How many undos by operators have begun: a change that began before an undo puts nothing in force after it.
const UNDOS: u64 = 48;
/// The [`Hook`]: the address of the original function (or its clone) with the first record right behind it,
/// so that one write sets both.
pub(crate) const TARGET: u64 = 56;
/// The [`CounterArea`]: its start, its end, the size of a part, and that size again for whets that expect it;
/// 0 for none.
const COUNTERS: u64 = 96;
/// Further records of the [`Hook`], each in its own place; zeros for none.
const MORE: u64 = 368;
/// How many further records of the hook have a place.
const MAX_MORE: usize = 4;
/// The name of regions when they are reported as modules.
pub(crate) const NAME: u64 = 128;
/// How many regions all pages of the list hold. It is increased last.
pub(crate) const TOTAL: u64 = 144;
pub(crate) const REGIONS: u64 = 512;
pub(crate) const REGION_LEN: u64 = 32;
/// The routines' own frame tables lie at the end of the page: an index of at most [`MAX_INDEX`] bytes, and
/// its table.
const FRAMES: u64 = 3584;
const MAX_INDEX: u64 = 64;
/// How many regions fit in the anchor's own page.
pub const MAX_REGIONS: usize = 96;

/// One code cache as the lookup routines see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its code.
    pub text: AvmaRange,
    /// Its `.eh_frame_hdr`.
    pub eh_frame_hdr: Avma,
    /// Its journal; for the routines' own page the anchor.
    pub journal: Avma,
}

const _: () =
    assert!(REGIONS + MAX_REGIONS as u64 * REGION_LEN <= FRAMES && TOTAL + 8 <= module_list::HEADERS);
const _: () = assert!(
    MORE + MAX_MORE as u64 * journal::RECORD_LEN as u64 <= REGIONS && module_list::HEADERS + 112 <= MORE
);

/// The redirects of calls of `dl_iterate_phdr` to the anchor. They stay for ever, as a caller may meet frames
/// of clones at any time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hook {
    /// Words by which unwinders call it, or the displacements of their calls. An older whet wrote a jump at
    /// its entry.
    pub records: Vec<Record>,
    /// The function that does its work: the original itself, or a clone of it if an older whet made the hook.
    pub function: Avma,
}

impl Hook {
    /// How many records fit in a hook.
    pub const MOST: usize = 1 + MAX_MORE;
}

/// A target's anchor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Its data page.
    pub at: Avma,
    /// The pointer through which the unwinder calls; `None` if libc has none.
    pub slot: Option<Avma>,
    /// The value of that pointer before whet changed it.
    pub original: u64,
    /// The redirects for unwinders that iterate over modules, if there are any.
    pub hook: Option<Hook>,
    /// The memory in which clones count, if some did.
    pub counters: Option<CounterArea>,
    /// How many operator's undos had begun when the anchor was read.
    pub undos: u64,
    /// The version, if a later whet made the anchor: then only the frozen part was read.
    pub newer: Option<u32>,
    /// The regions of all pages of the list.
    pub regions: Vec<Region>,
    /// Whether its routines search further pages of the list.
    pub(crate) chains: bool,
    pub(crate) tail: Tail,
}

impl Anchor {
    /// Returns the address of the routine that replaces `_dl_find_object`.
    #[must_use]
    pub fn routine(&self) -> Avma {
        self.at.sub(PAGE)
    }

    /// Returns the address of the routine that replaces `dl_iterate_phdr`, for a code page at `code_at`.
    #[must_use]
    pub fn module_list_routine(code_at: Avma) -> Avma {
        code_at.add(module_list::AT)
    }

    /// Returns the regions that are code caches.
    pub fn caches(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().filter(|r| r.journal != self.at)
    }

    /// Returns the words of a hook with their addresses. Further records come first, because readers ignore
    /// the hook until its first record is written.
    #[must_use]
    pub fn hook_words(&self, hook: &Hook) -> Vec<(Avma, Vec<u8>)> {
        let Some((first, more)) = hook.records.split_first() else { return Vec::new() };
        let place = |i: usize| self.at.add(MORE + (i * journal::RECORD_LEN) as u64);
        let more = more.iter().take(MAX_MORE).enumerate();
        let mut words: Vec<_> = more.map(|(i, r)| (place(i), journal::write_records(&[*r]))).collect();
        let mut bytes = hook.function.0.to_le_bytes().to_vec();
        bytes.extend(journal::write_records(&[*first]));
        words.push((self.at.add(TARGET), bytes));
        words
    }

    /// Returns the redirects of the hook; empty if there is no hook.
    #[must_use]
    pub fn module_list_redirects(&self) -> &[Record] {
        self.hook.as_ref().map_or(&[], |h| &h.records)
    }

    /// Returns the address of the word for pending recoveries: see `huge`.
    #[must_use]
    pub fn pending_at(&self) -> Avma {
        self.at.add(PENDING)
    }

    /// Returns the address of the count of operator's undos.
    #[must_use]
    pub fn undos_at(&self) -> Avma {
        self.at.add(UNDOS)
    }

    /// Returns the words of a counter area with their address; the words for none if `area` is `None`.
    pub(crate) fn counter_words(&self, area: Option<&CounterArea>) -> (Avma, Vec<u8>) {
        let words = area.map_or([0; 4], |a| [a.range.start.0, a.range.end.0, a.part, a.part]);
        (self.at.add(COUNTERS), words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    /// Reads the counter area that is on record now.
    pub(crate) fn recorded_counters(&self, mem: &dyn ReadMemory) -> Result<Option<CounterArea>, Error> {
        read_counters(mem, self.at.add(COUNTERS))
    }

    /// Returns the bytes of a new anchor's code page and data page, the data page at `at`.
    ///
    /// # Errors
    /// [`Error::Unwind`] if the routine's frame table cannot be made.
    pub fn pages(at: Avma, slot: Option<Avma>, original: u64) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let code_at = at.sub(PAGE);
        let mut code = lookup::routine(at, original);
        resize(&mut code, module_list::AT, 0xcc);
        code.extend(module_list::routine());
        resize(&mut code, PAGE, 0xcc);
        // The first routine is a leaf without a frame: at each instruction the return address is on top of
        // the stack.
        let range = AvmaRange::with_len(code_at, module_list::AT);
        let row = Row {
            range,
            cfa: CfaRule::RegOffset(Reg::RSP, 8),
            regs: vec![(Reg::RA, RegRule::Offset(-8))],
            args_size: 0,
        };
        let leaf = CloneFrame { range, rows: vec![row], personality: None, lsda: None, signal_frame: false };
        let all: Vec<CloneFrame> = [leaf].into_iter().chain(module_list::frames(code_at)).collect();
        let hdr_at = at.add(FRAMES);
        let frames = unwind::write_frames(&all, hdr_at.add(MAX_INDEX), hdr_at)?;
        let own = Region { text: AvmaRange::with_len(code_at, PAGE), eh_frame_hdr: hdr_at, journal: at };
        let mut data = Vec::with_capacity(4096);
        data.extend(MAGIC);
        data.extend(VERSION.to_le_bytes());
        data.extend(slot.map_or(0, |s| s.0).to_le_bytes());
        data.extend(original.to_le_bytes());
        data.extend(1u64.to_le_bytes());
        resize(&mut data, NAME, 0);
        data.extend(b"[whet]");
        resize(&mut data, frozen::IN_ANCHOR, 0);
        data.extend(u64::from(frozen::FROZEN).to_le_bytes());
        data.extend(1u64.to_le_bytes());
        resize(&mut data, module_list::HEADERS, 0);
        data.extend(module_list::headers(own.text, AvmaRange::with_len(hdr_at, frames.hdr.len() as u64)));
        resize(&mut data, REGIONS, 0);
        data.extend(region_bytes(&own));
        resize(&mut data, FRAMES, 0);
        data.extend(&frames.hdr);
        resize(&mut data, FRAMES + MAX_INDEX, 0);
        data.extend(&frames.eh_frame);
        resize(&mut data, PAGE, 0);
        Ok((code, data))
    }

    /// Reads the anchor whose data page is at `at`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Journal`] for an anchor of another version.
    pub fn read(mem: &dyn ReadMemory, at: Avma) -> Result<Option<Anchor>, Error> {
        let mut magic = [0; 8];
        if mem.read(at, &mut magic).is_err() || magic != MAGIC {
            return Ok(None);
        }
        let bad = |what: &'static str| Error::Journal { at, what };
        let version = mem.u64(at.add(8))?;
        let is_frozen = || Ok::<_, Error>(mem.u64(at.add(frozen::IN_ANCHOR))? == u64::from(frozen::FROZEN));
        let newer = match version {
            VERSION | WITHOUT_CHAIN => None,
            newer if newer > VERSION && is_frozen()? => Some(u32::try_from(newer).unwrap_or(u32::MAX)),
            _ => return Err(bad("an anchor of another version")),
        };
        let (regions, tail) = list::read(mem, at)?;
        let mut anchor = Anchor {
            at,
            slot: None,
            original: 0,
            hook: None,
            counters: None,
            undos: mem.u64(at.add(UNDOS))?,
            newer,
            regions,
            chains: version == VERSION,
            tail,
        };
        if newer.is_none() {
            anchor.slot = Some(Avma(mem.u64(at.add(SLOT))?)).filter(|s| *s != Avma(0));
            anchor.original = mem.u64(at.add(ORIGINAL))?;
            anchor.hook = read_hook(mem, at)?;
            anchor.counters = read_counters(mem, at.add(COUNTERS))?;
        }
        Ok(Some(anchor))
    }
}

/// Reads a region's words.
pub(crate) fn read_region(mem: &dyn ReadMemory, at: Avma) -> Result<Region, Error> {
    Ok(Region {
        text: AvmaRange::new(Avma(mem.u64(at)?), Avma(mem.u64(at.add(8))?)),
        eh_frame_hdr: Avma(mem.u64(at.add(16))?),
        journal: Avma(mem.u64(at.add(24))?),
    })
}

/// Reads the words of a counter area at `at`; `None` if there is none.
fn read_counters(mem: &dyn ReadMemory, at: Avma) -> Result<Option<CounterArea>, Error> {
    let (start, end, part) = (mem.u64(at)?, mem.u64(at.add(8))?, mem.u64(at.add(16))?);
    let range = AvmaRange::new(Avma(start), Avma(end));
    match (start, part) {
        (0, _) => Ok(None),
        (_, 1..) if start < end && range.len().is_multiple_of(part) => Ok(Some(CounterArea { range, part })),
        _ => Err(Error::Journal { at, what: "an impossible area of counters" }),
    }
}

fn resize(page: &mut Vec<u8>, len: u64, with: u8) {
    page.resize(usize::try_from(len).unwrap_or(0), with);
}

/// Reads the hook of the anchor at `at`; `None` if its words were never written.
fn read_hook(mem: &dyn ReadMemory, at: Avma) -> Result<Option<Hook>, Error> {
    let function = Avma(mem.u64(at.add(TARGET))?);
    if function == Avma(0) {
        return Ok(None);
    }
    let record = |at: Avma| -> Result<Option<Record>, Error> {
        let bytes = mem.bytes(AvmaRange::with_len(at, journal::RECORD_LEN as u64))?;
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        Ok(journal::parse_records(&bytes, at)?.first().copied())
    };
    let mut records: Vec<Record> = record(at.add(TARGET + 8))?.into_iter().collect();
    for i in 0..MAX_MORE {
        records.extend(record(at.add(MORE + (i * journal::RECORD_LEN) as u64))?);
    }
    Ok(Some(Hook { records, function }))
}

/// Returns a region's words.
pub(crate) fn region_bytes(r: &Region) -> [u8; 32] {
    let mut b = [0; 32];
    for (i, w) in [r.text.start.0, r.text.end.0, r.eh_frame_hdr.0, r.journal.0].into_iter().enumerate() {
        b[i * 8..i * 8 + 8].copy_from_slice(&w.to_le_bytes());
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Avma = Avma(0x7f00_0000_1000);

    fn pages() -> (Vec<u8>, Vec<u8>) {
        Anchor::pages(AT, Some(Avma(0x7000)), 0x1234).unwrap()
    }

    #[test]
    fn pages_read_back() {
        let (code, data) = pages();
        assert_eq!((code.len(), data.len()), (4096, 4096));
        let got = Anchor::read(&(AT, &data[..]), AT).unwrap().unwrap();
        assert_eq!((got.slot, got.original, &got.hook), (Some(Avma(0x7000)), 0x1234, &None));
        assert_eq!(got.regions.len(), 1);
        assert_eq!(got.caches().count(), 0);
        assert_eq!(got.regions[0].text, AvmaRange::with_len(AT.sub(4096), 4096));
        assert_eq!(got.regions[0].eh_frame_hdr, AT.add(FRAMES));
        assert_eq!((AT, &data[..]).u64(got.pending_at()).unwrap(), 0);
        assert_eq!(got.room(), list::MOST_REGIONS - 1);
        assert!(lookup::routine(AT, 3).len() as u64 <= module_list::AT);
    }

    #[test]
    fn a_hook_reads_back() {
        let (_, mut data) = pages();
        let anchor = Anchor::read(&(AT, &data[..]), AT).unwrap().unwrap();
        let record = |at: u64| Record {
            at: Avma(at),
            kind: crate::RedirectKind::Slot,
            len: 8,
            interior: 0,
            old: [1; 8],
            new: [2; 8],
            mark: None,
        };
        for n in 1..=Hook::MOST as u64 {
            let records = (1..=n).map(|i| record(0x7100_0000_0000 + i * 8)).collect();
            let hook = Hook { records, function: Avma(0x7200_0000_0040) };
            for (at, bytes) in anchor.hook_words(&hook) {
                let from = usize::try_from(at.since(AT).unwrap()).unwrap();
                data[from..from + bytes.len()].copy_from_slice(&bytes);
            }
            let got = Anchor::read(&(AT, &data[..]), AT).unwrap().unwrap();
            assert_eq!(got, Anchor { hook: Some(hook), ..anchor.clone() });
        }
    }

    #[test]
    fn an_area_of_counters_reads_back() {
        let (_, mut data) = pages();
        let anchor = Anchor::read(&(AT, &data[..]), AT).unwrap().unwrap();
        let range = AvmaRange::with_len(Avma(0x7300_0000_0000), 0x8000);
        let area = CounterArea { range, part: 0x2000 };
        let (at, bytes) = anchor.counter_words(Some(&area));
        let from = usize::try_from(at.since(AT).unwrap()).unwrap();
        data[from..from + bytes.len()].copy_from_slice(&bytes);
        assert!(from + bytes.len() <= usize::try_from(NAME).unwrap());
        let got = Anchor::read(&(AT, &data[..]), AT).unwrap().unwrap();
        assert_eq!(got, Anchor { counters: Some(area), ..anchor });
    }

    #[test]
    fn the_anchor_page_has_frames_for_its_routines() {
        let (_, data) = pages();
        let from = usize::try_from(FRAMES + MAX_INDEX).unwrap();
        let table = data[from..].to_vec();
        let mem = (AT, &data[..]);
        let frames = unwind::FrameTable::parse(table, AT.add(FRAMES + MAX_INDEX), &mem).unwrap();
        assert_eq!((frames.fdes().len(), frames.skipped()), (3, 0));
        let wanted: Vec<Row> = module_list::frames(AT.sub(PAGE)).into_iter().flat_map(|f| f.rows).collect();
        let got: Vec<Row> = frames.fdes()[1..].iter().flat_map(|f| frames.rows(f).unwrap()).collect();
        assert_eq!(got, wanted);
        // The index has the three functions, and ends before the table.
        let index = usize::try_from(FRAMES).unwrap();
        assert_eq!(data[index + 8..index + 12], 3u32.to_le_bytes());
        let size_of_index = usize::try_from(module_list::HEADERS).unwrap() + 56 + 40;
        assert_eq!(data[size_of_index..][..8], (12 + 8 * 3u64).to_le_bytes());
    }

    #[test]
    fn foreign_pages_are_not_anchors() {
        let page = [0u8; 4096];
        assert_eq!(Anchor::read(&(Avma(0x1000), &page[..]), Avma(0x1000)).unwrap(), None);
        let (_, mut data) = Anchor::pages(Avma(0x2000), None, 0).unwrap();
        assert_eq!(Anchor::read(&(Avma(0x2000), &data[..]), Avma(0x2000)).unwrap().unwrap().slot, None);
        data[8] = 2;
        assert!(Anchor::read(&(Avma(0x2000), &data[..]), Avma(0x2000)).is_err());
    }
}
