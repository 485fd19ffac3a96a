//! Is a module that may be unloaded still the one that was rebuilt?
//!
//! The state problem: redirects into clones of such a module lie in its own pages and vanish with it, but the journal keeps
//! their addresses. Another library, or the same one again, may come to lie there. Its bytes may even be those that a record
//! holds as the original's. A redirect written there would lead into clones of a module that is gone.
//!
//! A *mark* tells the two apart: the process's own copy of the module's first page, which holds the ELF header. Nobody writes
//! to that page, so the kernel keeps no copy of it for the process, until whet writes one byte of it as it is. The copy
//! goes with the mapping. So a page with an ELF header of which the process has a copy of its own is that of a module that
//! has been there ever since.
//!
//! INVARIANT(marked first): a module is marked before the first of its bytes is read that decides what is written. Both the
//! mark and each later write are made with the world stopped, when no library comes or goes; each write looks for the mark
//! first.
//!
//! INVARIANT(buried): before another module is marked at the same address, the records of the one that is gone are made ones
//! that change nothing. Else the new mark would let them stand.
//!
//! LIMIT: a process that loads another library at the same address and writes to its first page (the ELF header) by itself
//! makes it look marked. Then still nothing is written where the bytes are not those of the record.

use crate::toggle::{self, Policy, ToggleReport};
use crate::{Error, Installed, Record, discover, fault, journal};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::collections::{BTreeMap, BTreeSet};
use tracee::Process;

/// First bytes of an ELF file.
const ELF: [u8; 4] = *b"\x7fELF";

/// Marks the modules whose first pages these are. Tells of each whether it is marked now. `anchor` is where the target's is.
///
/// # Errors
/// [`Error`] where the target could not be stopped or read; no byte has changed then, nor otherwise.
pub fn mark_modules(process: &Process, pages: &[Avma], anchor: Option<Avma>) -> Result<Vec<bool>, Error> {
    let marked = are_marked(process, pages)?;
    if marked.iter().all(|m| *m) {
        return Ok(marked);
    }
    let listed = anchor.map(|at| discover(process, &[AvmaRange::with_len(at, 4096)]));
    let listed = listed.transpose()?.flatten();
    let stopped = toggle::stop(process, &Policy::default(), &mut ToggleReport::default())?;
    for (&page, was) in pages.iter().zip(are_marked(process, pages)?) {
        // What is no module any more, or has the page written already, stays as it is.
        if !was && is_module(process, page) {
            listed.iter().try_for_each(|l| bury(process, l, page))?;
            fault::point();
            process.write(page, &ELF[..1])?;
        }
    }
    let marked = are_marked(process, pages);
    stopped.release()?;
    marked
}

/// Makes all records of the module that had its first page there ones that change nothing.
fn bury(process: &Process, listed: &Installed, page: Avma) -> Result<(), Error> {
    for cache in listed.caches.iter().filter(|c| c.newer.is_none()) {
        for (record, i) in cache.records.iter().zip(0u64..).filter(|(r, _)| r.mark == Some(page)) {
            fault::point();
            let at = cache.header.records.start.add(i * journal::RECORD_LEN as u64);
            toggle::write_checked(process, at.add(journal::NEW_OFFSET), &record.old)?;
        }
    }
    Ok(())
}

/// Tells of each of these pages whether it is the first one of a module that is marked.
///
/// # Errors
/// [`Error::Tracee`] where the kernel does not tell.
fn are_marked(process: &Process, pages: &[Avma]) -> Result<Vec<bool>, Error> {
    let own = process.own_copies(pages)?;
    Ok(pages.iter().zip(own).map(|(&page, own)| own && is_module(process, page)).collect())
}

fn is_module(process: &Process, page: Avma) -> bool {
    let mut first = [0; ELF.len()];
    process.read(page, &mut first).is_ok() && first == ELF
}

/// Which of the modules of some records are there.
#[derive(Debug, Default)]
pub(crate) struct Marks(BTreeMap<Avma, bool>);

impl Marks {
    /// Looks for the marks of these records.
    ///
    /// # Errors
    /// As [`are_marked`].
    pub fn look<'a>(process: &Process, records: impl Iterator<Item = &'a Record>) -> Result<Self, Error> {
        let pages: BTreeSet<Avma> = records.filter_map(|r| r.mark).collect();
        if pages.is_empty() {
            return Ok(Self::default());
        }
        let pages: Vec<Avma> = pages.into_iter().collect();
        let marked = are_marked(process, &pages)?;
        Ok(Self(pages.into_iter().zip(marked).collect()))
    }

    /// Whether the place of a record is still in the module that it was made for.
    pub fn stands(&self, record: &Record) -> bool {
        record.mark.is_none_or(|page| self.0.get(&page).is_some_and(|marked| *marked))
    }
}

/// Drops the records of modules that are gone: their redirects went with them.
///
/// # Errors
/// [`Error::Tracee`] where the kernel does not tell which are.
pub fn forget_unloaded(process: &Process, installed: &mut Installed) -> Result<(), Error> {
    let marks = Marks::look(process, installed.caches.iter().flat_map(|c| &c.records))?;
    for cache in &mut installed.caches {
        let all = cache.records.len();
        cache.records.retain(|r| !r.is_buried() && marks.stands(r));
        cache.has_gone = cache.records.len() < all;
    }
    Ok(())
}
