//! The list of regions: the anchor's page, and further pages chained behind it.
//!
//! The form is frozen (`frozen`). Two kinds of readers search it while a whet adds to it: routines in the target, which
//! take no lock, and other whets.
//!
//! INVARIANT(complete): a page is linked after it is complete. A region's words are in place before the count of its
//! page includes the region. So a reader sees complete regions only, in whichever order it comes to them.
//! INVARIANT(end): a reader follows at most [`PAGES`] pages, whatever the pages say.

use crate::anchor::{
    Anchor, COUNT, MAX_REGIONS, REGION_LEN, REGIONS, Region, TOTAL, read_region, region_bytes,
};
use crate::{Error, fault, toggle};
use addr::{Addr, Avma, ReadMemory};
use tracee::Process;

/// Where an anchor holds the address of the next page.
pub(crate) const NEXT: u64 = 504;
/// First bytes of a further page.
const MAGIC: [u8; 8] = *b"whetlist";
/// Where a further page holds its count of regions.
pub(crate) const PAGE_COUNT: u64 = 8;
/// Where a further page holds the address of the next page.
pub(crate) const PAGE_NEXT: u64 = 16;
/// Where the regions of a further page begin.
pub(crate) const PAGE_REGIONS: u64 = 32;
/// Regions of a further page.
pub(crate) const PAGE_MOST: u64 = (4096 - PAGE_REGIONS) / REGION_LEN;
/// Further pages that a reader follows at most: more are a ring.
pub(crate) const PAGES: usize = 256;
/// Regions that a whet lists at most. The search for a frame passes all of them: about a microsecond.
pub const MOST_REGIONS: usize = 1000;
/// Regions kept free for routines that finish system calls.
pub(crate) const AREAS: usize = tracee::MOST_AREAS;

const _: () = assert!(NEXT + 8 == REGIONS);

/// The last page of a list, to which regions are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    /// Where the count of the page is.
    count_at: Avma,
    /// Where the address of the page after it goes.
    next_at: Avma,
    /// Where its regions begin.
    regions_at: Avma,
    /// Regions it lists.
    count: u64,
    /// Regions it has room for.
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

/// Reads all regions, and which page is the last.
///
/// # Errors
/// [`Error::Journal`] for a page that is none, a count that a page has no room for, or a chain without an end;
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
    /// Regions that can be added without a further page.
    pub(crate) fn room_in_page(&self) -> usize {
        self.tail.room()
    }

    /// Regions that can be added, further pages included.
    pub(crate) fn room(&self) -> usize {
        // The routines of older whets search the anchor's page alone.
        let most = fault::list_room().map_or(MOST_REGIONS, |room| MOST_REGIONS.min(room));
        if self.chains { most.saturating_sub(self.regions.len()) } else { self.tail.room() }
    }

    /// Whether the list has room for so many code caches, beside routines that finish system calls and may come in between.
    #[must_use]
    pub fn has_room_for(&self, caches: usize) -> bool {
        caches + AREAS <= self.room()
    }

    /// Links a further page, which is mapped at `at` and empty.
    ///
    /// # Errors
    /// [`Error::NotAlone`] where another whet has linked one, [`Error::WriteLost`], [`Error::Tracee`].
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
    /// [`Error::NotAlone`] where the list is not as it was read, [`Error::TooManyCaches`] where the page has no room,
    /// [`Error::WriteLost`], [`Error::Tracee`].
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
