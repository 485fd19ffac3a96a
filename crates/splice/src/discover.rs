//! Finding what an earlier whet left in a target.

use crate::{Anchor, Error, Header, Record, State, finishing, journal};
use addr::{AvmaRange, ReadMemory};

/// One code cache with its journal.
#[derive(Clone, Debug)]
pub struct Cache {
    /// What the journal says of it.
    pub header: Header,
    /// Its redirects.
    pub records: Vec<Record>,
    /// Whether a module is gone that it has clones of: see [`crate::forget_unloaded`].
    pub has_gone: bool,
    /// The version of its journal, where a later whet has written it: see [`Installed::newer`].
    pub newer: Option<u32>,
}

impl Cache {
    /// The address map as it was stored.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn map(&self, mem: &dyn ReadMemory) -> Result<Vec<u8>, Error> {
        Ok(mem.bytes(self.header.map)?)
    }

    /// The installer's notes.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub fn notes(&self, mem: &dyn ReadMemory) -> Result<Vec<u8>, Error> {
        Ok(mem.bytes(self.header.notes)?)
    }
}

/// All that whet did to a target.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The anchor.
    pub anchor: Anchor,
    /// Its code caches, oldest first.
    pub caches: Vec<Cache>,
}

impl Installed {
    /// The newest generation's number, those that only counted aside; 0 where there is none.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.caches.iter().filter(|c| !c.header.counting).map(|c| c.header.generation).max().unwrap_or(0)
    }

    /// The version of the format, where a later whet has been at work: what this one knows of the target is enough to undo it, and for
    /// nothing else.
    #[must_use]
    pub fn newer(&self) -> Option<u32> {
        self.caches.iter().filter_map(|c| c.newer).chain(self.anchor.newer).max()
    }

    /// The caches of one generation, those that only counted aside.
    pub fn of(&self, generation: u32) -> impl Iterator<Item = &Cache> {
        self.caches.iter().filter(move |c| !c.header.counting && c.header.generation == generation)
    }

    /// The caches into which something may lead: all but those that counted and were taken out, as nothing puts such back.
    pub fn of_use(&self) -> impl Iterator<Item = &Cache> {
        self.caches.iter().filter(|c| !(c.header.counting && c.header.state == State::Undone))
    }

    /// Whether clones that count may be in force.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.caches.iter().any(|c| c.header.counting && c.header.state != State::Undone)
    }

    /// Whether clones may count, or bases point into counters' memory, that this whet can end: also where a whet died, or an
    /// older one undid, before all of that was over.
    pub(crate) fn may_count(&self) -> bool {
        (self.is_counting() || self.anchor.counters.is_some()) && !self.counts_for_good()
    }

    /// Whether an older whet has left clones that count for good, and threads with GS bases for these: their journals do not
    /// say where the counters are.
    #[must_use]
    pub fn counts_for_good(&self) -> bool {
        self.caches.iter().any(|c| c.header.counting && c.header.notes.is_empty())
    }

    /// Where the newest generation is in its life: applied if any of its caches is.
    #[must_use]
    pub fn state(&self) -> State {
        let newest = self.generation();
        let has = |s| self.of(newest).any(|c| c.header.state == s);
        if has(State::Applied) {
            State::Applied
        } else if has(State::Prepared) {
            State::Prepared
        } else {
            State::Undone
        }
    }

    /// All that leads into a cache or the anchor, or did, of all generations.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let led = self.anchor.led().iter().copied();
        self.caches.iter().flat_map(|c| c.records.iter().copied()).chain(led)
    }

    /// Bytes of address space that code caches take.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.caches.iter().map(|c| c.header.text.len() + c.header.data.len()).sum()
    }
}

/// Looks for an anchor among the mappings that could hold one and reads all it lists; `None` for a process that
/// whet never touched.
///
/// `candidates` are the private anonymous read-only mappings.
///
/// # Errors
/// [`Error::Journal`] where there is one that this version cannot read.
pub fn discover(mem: &dyn ReadMemory, candidates: &[AvmaRange]) -> Result<Option<Installed>, Error> {
    for c in candidates {
        if let Some(anchor) = Anchor::read(mem, c.start)? {
            let mut caches = Vec::new();
            for region in anchor.caches() {
                let mut b = [0; journal::HEADER_LEN];
                mem.read(region.journal, &mut b)?;
                let header = journal::parse_header(&b, region.journal)?;
                if header.generation == finishing::GENERATION {
                    continue;
                }
                let newer = journal::newer(&b);
                let bytes = mem.bytes(header.records)?;
                let mut records = journal::parse_records_of(&bytes, header.records.start, newer)?;
                if newer.is_some() {
                    // It may have rules of its own for what can go away.
                    records.retain(|r| mem.bytes(r.range()).is_ok());
                }
                caches.push(Cache { header, records, has_gone: false, newer });
            }
            return Ok(Some(Installed { anchor, caches }));
        }
    }
    Ok(None)
}
