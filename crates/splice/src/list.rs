//! The list of regions, in the anchor's page and in further pages chained behind it.
//!
//! The format is frozen (`frozen`). Two kinds of readers search the list while a whet adds to it: routines in
//! the target, which take no lock, and other whets.
//!
//! INVARIANT(complete): a page is linked after it is complete. A region's words are in place before the count
//! of its page includes the region. So a reader sees complete regions only, in any order of reading.
//! INVARIANT(end): a reader follows at most [`PAGES`] pages, whatever the pages contain.

use crate::anchor::{
    Anchor, COUNT, MAX_REGIONS, REGION_LEN, REGIONS, Region, TOTAL, read_region, region_bytes,
};
use crate::{Error, fault, toggle};
use addr::{Addr, Avma, ReadMemory};
use tracee::Process;

/// The offset of the next page's address in an anchor.
pub(crate) const NEXT: u64 = 504;
/// The first bytes of a further page.
const MAGIC: [u8; 8] = *b"whetlist";
/// The offset of a further page's count of regions.
pub(crate) const PAGE_COUNT: u64 = 8;
/// The offset of the next page's address in a further page.
pub(crate) const PAGE_NEXT: u64 = 16;
/// The offset of the regions in a further page.
pub(crate) const PAGE_REGIONS: u64 = 32;
/// The number of regions that fit in a further page.
pub(crate) const PAGE_MOST: u64 = (4096 - PAGE_REGIONS) / REGION_LEN;
/// The maximum number of further pages that a reader follows: a longer chain is a ring.
pub(crate) const PAGES: usize = 256;
/// The maximum number of regions that a whet lists. The search for a frame passes all of them: about a
/// microsecond.
pub const MOST_REGIONS: usize = 1000;
/// The number of regions kept free for routines that finish system calls.
pub(crate) const AREAS: usize = tracee::MOST_AREAS;

const _: () = assert!(NEXT + 8 == REGIONS);

/// The last page of a list, to which regions are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    /// The address of the page's count.
    count_at: Avma,
    /// The address of the pointer to the next page.
    next_at: Avma,
    /// The address of its first region.
    regions_at: Avma,
    /// The number of regions that it lists.
    count: u64,
    /// The number of regions that fit.
    most: u64,
}

impl Tail {
    fn of_anchor(at: Avma, count: u64) -> Self {
        let most = MAX_REGIONS as u64;
        Self { count_at: at.add(COUNT), next_at: at.add(NEXT), regions_at: at.add(REGIONS), count, most }
    }

    fn of_page(at: Avma, count: u64) -> Self {
        Self {
            count_at: at.add(PAGE_COUNT),
            next_at: at.add(PAGE_NEXT),
            regions_at: at.add(PAGE_REGIONS),
            count,
            most: PAGE_MOST,
        }
    }

    fn room(&self) -> usize {
        let most = fault::page_room().map_or(self.most, |room| self.most.min(room));
        usize::try_from(most.saturating_sub(self.count)).unwrap_or(0)
    }
}

/// Reads all regions, and the last page.
///
/// # Errors
/// [`Error::Journal`] for a page without the magic, a count larger than the page, or a chain without an end;
/// [`Error::Unreadable`].
pub(crate) fn read(mem: &dyn ReadMemory, anchor: Avma) -> Result<(Vec<Region>, Tail), Error> {
    let bad = |at, what| Err(Error::Journal { at, what });
    let mut tail = Tail::of_anchor(anchor, mem.u64(anchor.add(COUNT))?);
    let mut regions = Vec::new();
    if tail.count == 0 {
        return bad(anchor, "an anchor with an impossible number of regions");
    }
    for _ in 0..=PAGES {
        if tail.count > tail.most {
            return bad(tail.count_at, "a list of code caches with an impossible number of regions");
        }
        for i in 0..tail.count {
            regions.push(read_region(mem, tail.regions_at.add(REGION_LEN * i))?);
        }
        let at = Avma(mem.u64(tail.next_at)?);
        if at == Avma(0) {
            return Ok((regions, tail));
        }
        let mut magic = [0; 8];
        mem.read(at, &mut magic)?;
        if magic != MAGIC {
            return bad(at, "no page of the list of code caches");
        }
        tail = Tail::of_page(at, mem.u64(at.add(PAGE_COUNT))?);
    }
    bad(tail.count_at, "a list of code caches without an end")
}

impl Anchor {
    /// Returns how many regions can be added without a further page.
    pub(crate) fn room_in_page(&self) -> usize {
        self.tail.room()
    }

    /// Returns how many regions can be added, further pages included.
    pub(crate) fn room(&self) -> usize {
        // The routines of older whets search only the anchor's page.
        let most = fault::list_room().map_or(MOST_REGIONS, |room| MOST_REGIONS.min(room));
        if self.chains { most.saturating_sub(self.regions.len()) } else { self.tail.room() }
    }

    /// Returns whether the list has room for `caches` code caches, and for routines that finish system calls
    /// as well.
    #[must_use]
    pub fn has_room_for(&self, caches: usize) -> bool {
        caches + AREAS <= self.room()
    }

    /// Links a further page, which is mapped at `at` and empty.
    ///
    /// # Errors
    /// [`Error::NotAlone`] if another whet has linked a page, [`Error::WriteLost`], [`Error::Tracee`].
    pub(crate) fn link_page(&mut self, process: &Process, at: Avma) -> Result<(), Error> {
        if process.u64(self.tail.next_at)? != 0 {
            return Err(Error::NotAlone);
        }
        fault::point();
        toggle::write_checked(process, at, &MAGIC)?;
        fault::point();
        toggle::write_checked(process, self.tail.next_at, &at.0.to_le_bytes())?;
        self.tail = Tail::of_page(at, 0);
        Ok(())
    }

    /// Adds regions to the last page: first the words, then the counts that make them visible.
    ///
    /// # Errors
    /// [`Error::NotAlone`] if the list has changed since it was read, [`Error::TooManyCaches`] if the page
    /// has no room, [`Error::WriteLost`], [`Error::Tracee`].
    pub(crate) fn add_regions(&mut self, process: &Process, new: &[Region]) -> Result<(), Error> {
        if new.len() > self.tail.room() {
            return Err(Error::TooManyCaches(self.regions.len()));
        }
        if process.u64(self.tail.count_at)? != self.tail.count || process.u64(self.tail.next_at)? != 0 {
            return Err(Error::NotAlone);
        }
        for (i, region) in (self.tail.count..).zip(new) {
            fault::point();
            toggle::write_checked(process, self.tail.regions_at.add(REGION_LEN * i), &region_bytes(region))?;
        }
        let count = self.tail.count + new.len() as u64;
        fault::point();
        toggle::write_checked(process, self.tail.count_at, &count.to_le_bytes())?;
        self.tail.count = count;
        self.regions.extend_from_slice(new);
        if self.chains {
            fault::point();
            let total = (self.regions.len() as u64).to_le_bytes();
            toggle::write_checked(process, self.at.add(TOTAL), &total)?;
        }
        Ok(())
    }
}
