//! The anchor: the one place in a target from which everything whet did is found.
//!
//! Two pages, mapped once and never unmapped: a page of code (`r-x`) with the unwinder's lookup routine, and after it
//! a page of data (`r--`) with the list of regions that routine searches. Each region is a code cache, with the
//! address of its journal. Region 0 is the routine's own page, so that even it unwinds.

use crate::{Error, lookup};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use unwind::{CfaRule, CloneFrame, Reg, RegRule, Row};

/// First bytes of the data page.
pub const MAGIC: [u8; 8] = *b"whetanch";
const VERSION: u64 = 1;
/// Size of each of the two pages.
pub const PAGE: u64 = 4096;
const SLOT: u64 = 16;
const ORIGINAL: u64 = 24;
const COUNT: u64 = 32;
const REGIONS: u64 = 64;
const REGION_LEN: u64 = 32;
/// The routine's own frame tables lie at the end of the page.
const FRAMES: u64 = 3584;
/// How many regions have a place.
pub const MAX_REGIONS: usize = 100;

/// One code cache as the lookup routine sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its code.
    pub text: AvmaRange,
    /// Its `.eh_frame_hdr`.
    pub eh_frame_hdr: Avma,
    /// Its journal; 0 for the routine's own page.
    pub journal: Avma,
}

/// A target's anchor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Its data page.
    pub at: Avma,
    /// The pointer through which the unwinder asks.
    pub slot: Avma,
    /// What that pointer held before whet came.
    pub original: u64,
    /// The regions.
    pub regions: Vec<Region>,
}

impl Anchor {
    /// Where the routine is, given the data page.
    #[must_use]
    pub fn routine(&self) -> Avma {
        self.at.sub(PAGE)
    }

    /// Where the region count is.
    #[must_use]
    pub fn count_at(&self) -> Avma {
        self.at.add(COUNT)
    }

    /// Where region `i` is.
    #[must_use]
    pub fn region_at(&self, i: usize) -> Avma {
        self.at.add(REGIONS + REGION_LEN * i as u64)
    }

    /// The bytes of a new anchor's code page and data page, the data page at `at`.
    ///
    /// # Errors
    /// [`Error::Unwind`] where the routine's frame table cannot be made.
    pub fn pages(at: Avma, slot: Avma, original: u64) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let code_at = at.sub(PAGE);
        let mut code = lookup::routine(at.add(COUNT), at.add(REGIONS), original);
        code.resize(4096, 0xcc);
        let range = AvmaRange::with_len(code_at, PAGE);
        // A leaf without a frame: at each of its instructions the return address is on top of the stack.
        let row = Row {
            range,
            cfa: CfaRule::RegOffset(Reg::RSP, 8),
            regs: vec![(Reg::RA, RegRule::Offset(-8))],
            args_size: 0,
        };
        let frame = CloneFrame { range, rows: vec![row], personality: None, lsda: None, signal_frame: false };
        let hdr_at = at.add(FRAMES);
        let eh_frame_at = hdr_at.add(64);
        let frames = unwind::write_frames(&[frame], eh_frame_at, hdr_at)?;
        let own = Region { text: range, eh_frame_hdr: hdr_at, journal: Avma(0) };
        let mut data = Vec::with_capacity(4096);
        data.extend(MAGIC);
        data.extend(VERSION.to_le_bytes());
        data.extend(slot.0.to_le_bytes());
        data.extend(original.to_le_bytes());
        data.extend(1u64.to_le_bytes());
        data.resize(REGIONS as usize, 0);
        data.extend(region_bytes(&own));
        data.resize(FRAMES as usize, 0);
        data.extend(&frames.hdr);
        data.resize(FRAMES as usize + 64, 0);
        data.extend(&frames.eh_frame);
        data.resize(4096, 0);
        Ok((code, data))
    }

    /// Reads the anchor whose data page is at `at`; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Journal`] for an anchor of another version.
    pub fn read(mem: &dyn ReadMemory, at: Avma) -> Result<Option<Anchor>, Error> {
        let mut magic = [0; 8];
        if mem.read(at, &mut magic).is_err() || magic != MAGIC {
            return Ok(None);
        }
        let bad = |what: &'static str| Error::Journal { at, what };
        if mem.u64(at.add(8))? != VERSION {
            return Err(bad("an anchor of another version"));
        }
        let count = usize::try_from(mem.u64(at.add(COUNT))?).unwrap_or(usize::MAX);
        if count == 0 || count > MAX_REGIONS {
            return Err(bad("an anchor with an impossible number of regions"));
        }
        let mut anchor = Anchor {
            at,
            slot: Avma(mem.u64(at.add(SLOT))?),
            original: mem.u64(at.add(ORIGINAL))?,
            regions: Vec::with_capacity(count),
        };
        for i in 0..count {
            let r = anchor.region_at(i);
            anchor.regions.push(Region {
                text: AvmaRange::new(Avma(mem.u64(r)?), Avma(mem.u64(r.add(8))?)),
                eh_frame_hdr: Avma(mem.u64(r.add(16))?),
                journal: Avma(mem.u64(r.add(24))?),
            });
        }
        Ok(Some(anchor))
    }
}

/// A region's words.
#[must_use]
pub fn region_bytes(r: &Region) -> [u8; 32] {
    let mut b = [0; 32];
    for (i, w) in [r.text.start.0, r.text.end.0, r.eh_frame_hdr.0, r.journal.0].into_iter().enumerate() {
        b[i * 8..i * 8 + 8].copy_from_slice(&w.to_le_bytes());
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_read_back() {
        let at = Avma(0x7f00_0000_1000);
        let (code, data) = Anchor::pages(at, Avma(0x7000), 0x1234).unwrap();
        assert_eq!((code.len(), data.len()), (4096, 4096));
        let got = Anchor::read(&(at, &data[..]), at).unwrap().unwrap();
        assert_eq!((got.slot, got.original), (Avma(0x7000), 0x1234));
        assert_eq!(got.regions.len(), 1);
        assert_eq!(got.regions[0].text, AvmaRange::with_len(at.sub(4096), 4096));
        assert_eq!(got.regions[0].eh_frame_hdr, at.add(FRAMES));
        assert!(got.region_at(MAX_REGIONS) <= at.add(FRAMES));
    }

    #[test]
    fn others_pages_are_not_anchors() {
        let page = [0u8; 4096];
        assert_eq!(Anchor::read(&(Avma(0x1000), &page[..]), Avma(0x1000)).unwrap(), None);
        let (_, mut data) = Anchor::pages(Avma(0x2000), Avma(8), 0).unwrap();
        data[8] = 9;
        assert!(Anchor::read(&(Avma(0x2000), &data[..]), Avma(0x2000)).is_err());
    }
}
