//! Finds the installations of earlier whets in a target.

use crate::{Anchor, Error, Header, Record, State, finishing, journal};
use addr::{AvmaRange, ReadMemory};

/// The maximum address space of all code caches of a process. Bytes. Only a forged list names more, which would take
/// that much memory and time to read. This whet keeps within a half of it (`engine::MEMORY_CAP`).
const MOST_MAPPED: u64 = 256 << 20;

/// One code cache with its journal.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Its header in the journal.
    pub header: Header,
    /// Its redirects.
    pub records: Vec<Record>,
    /// Whether one of the modules of its clones has been unloaded: see [`crate::forget_unloaded`].
    pub has_gone: bool,
    /// The version of its journal, if a later whet has written it: see [`Installed::newer`].
    pub newer: Option<u32>,
}

impl Cache {
    /// Returns the address map as it was stored.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn map(&self, mem: &dyn ReadMemory) -> Result<Vec<u8>, Error> {
        Ok(mem.bytes(self.header.map)?)
    }

    /// Returns the installer's notes.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn notes(&self, mem: &dyn ReadMemory) -> Result<Vec<u8>, Error> {
        Ok(mem.bytes(self.header.notes)?)
    }
}

/// All changes of a target by whet.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The anchor.
    pub anchor: Anchor,
    /// Its code caches, oldest first.
    pub caches: Vec<Cache>,
}

impl Installed {
    /// Returns the newest generation's number, counting generations excluded; 0 if there is none.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.caches.iter().filter(|c| !c.header.counting).map(|c| c.header.generation).max().unwrap_or(0)
    }

    /// Returns the number of the next generation.
    ///
    /// # Errors
    /// [`Error::Journal`] if there is none. Only a forged journal has the last number.
    pub fn next_generation(&self) -> Result<u32, Error> {
        let last = Error::Journal { at: self.anchor.at, what: "its generation has the last number" };
        self.generation().checked_add(1).ok_or(last)
    }

    /// Returns the version of the format if a later whet has changed the target. This version can then only
    /// show the status and undo the changes.
    #[must_use]
    pub fn newer(&self) -> Option<u32> {
        self.caches.iter().filter_map(|c| c.newer).chain(self.anchor.newer).max()
    }

    /// Returns the caches of one generation, counting generations excluded.
    pub fn of(&self, generation: u32) -> impl Iterator<Item = &Cache> {
        self.caches.iter().filter(move |c| !c.header.counting && c.header.generation == generation)
    }

    /// Returns the caches that redirects may lead to: all except those that counted and were undone. Such a
    /// cache counts again only after [`crate::count_again`] has marked it as prepared.
    pub fn of_use(&self) -> impl Iterator<Item = &Cache> {
        self.caches.iter().filter(|c| !(c.header.counting && c.header.state == State::Undone))
    }

    /// Returns whether clones that count may be in force.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.caches.iter().any(|c| c.header.counting && c.header.state != State::Undone)
    }

    /// Returns whether there may be counting clones, or bases that point into counters' memory, that this
    /// whet can end. This includes the case that a whet died, or an older whet undid its redirects, before
    /// all of that had ended.
    pub(crate) fn may_count(&self) -> bool {
        (self.is_counting() || self.anchor.counters.is_some()) && !self.counts_for_good()
    }

    /// Returns whether an older whet has left clones that count for ever, and threads with GS bases for them.
    /// The journals of such clones do not list the counters.
    #[must_use]
    pub fn counts_for_good(&self) -> bool {
        self.caches.iter().any(|c| c.header.counting && c.header.notes.is_empty())
    }

    /// Returns the state of the newest generation: applied if any of its caches is. If it is undone, an older
    /// generation may be in force, because a comparison died; that counts as applied.
    #[must_use]
    pub fn state(&self) -> State {
        let newest = self.generation();
        let has = |s| self.of(newest).any(|c| c.header.state == s);
        let is_older_applied =
            || self.caches.iter().any(|c| !c.header.counting && c.header.state == State::Applied);
        if has(State::Applied) {
            State::Applied
        } else if has(State::Prepared) {
            State::Prepared
        } else if is_older_applied() {
            State::Applied
        } else {
            State::Undone
        }
    }

    /// Returns all present and former redirects to a cache or the anchor, of all generations.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let module_list = self.anchor.module_list_redirects().iter().copied();
        self.caches.iter().flat_map(|c| c.records.iter().copied()).chain(module_list)
    }

    /// Returns the bytes of address space that code caches occupy.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.caches.iter().map(|c| c.header.text.len() + c.header.data.len()).sum()
    }
}

/// Searches the mappings that could hold an anchor, and reads all that it lists; `None` for a process without
/// changes by whet.
///
/// `candidates` are the private anonymous read-only mappings.
///
/// # Errors
/// [`Error::Journal`] if there is an anchor that this version cannot read, or that no whet can have written.
pub fn discover(mem: &dyn ReadMemory, candidates: &[AvmaRange]) -> Result<Option<Installed>, Error> {
    for c in candidates {
        if let Some(anchor) = Anchor::read(mem, c.start)? {
            let (mut caches, mut mapped) = (Vec::new(), 0);
            for region in anchor.caches() {
                let mut b = [0; journal::HEADER_LEN];
                mem.read(region.journal, &mut b)?;
                let header = journal::parse_header(&b, region.journal)?;
                if header.generation == finishing::GENERATION {
                    continue;
                }
                mapped += header.text.len() + header.data.len();
                if mapped > MOST_MAPPED {
                    return Err(Error::Journal {
                        at: region.journal,
                        what: "code caches of impossible size",
                    });
                }
                let newer = journal::newer(&b);
                let bytes = mem.bytes(header.records)?;
                let mut records = journal::parse_records_of(&bytes, header.records.start, newer)?;
                if newer.is_some() {
                    // The later version may have its own rules for memory that can be unmapped.
                    records.retain(|r| mem.bytes(r.range()).is_ok());
                }
                caches.push(Cache { header, records, has_gone: false, newer });
            }
            return Ok(Some(Installed { anchor, caches }));
        }
    }
    Ok(None)
}
