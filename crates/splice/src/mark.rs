//! Checks whether a module that may be unloaded is still the module that was rebuilt.
//!
//! Redirects into clones of such a module lie in its own pages and vanish with it, but the journal keeps
//! their addresses. Another library, or the same library again, may be mapped there later. Its bytes may even
//! equal the original bytes in a record. A redirect written there would lead into clones of an unloaded
//! module.
//!
//! A *mark* distinguishes the two: the process's own copy of the module's first page, which holds the ELF
//! header. Nothing else writes to that page, so without whet the process has no copy of its own. whet makes
//! the kernel create a copy: it overwrites one byte with the same value. The copy disappears with the
//! mapping. So if a page has an ELF header and the process has its own copy of it, the same module has been
//! mapped there ever since.
//!
//! INVARIANT(marked first): a module is marked before the first read of its bytes that decides what is
//! written. The mark and each later write are made with all threads stopped, when no library can be loaded or
//! unloaded. Each write checks the mark first.
//!
//! INVARIANT(buried): before another module is marked at the same address, the records of the unloaded module
//! are made to change nothing. Otherwise the new mark would make them valid.
//!
//! LIMIT: a process that loads another library at the same address and itself writes to its first page (the
//! ELF header) makes it look marked. Even then nothing is written where the bytes differ from those of the
//! record.

use crate::toggle::{self, Policy, ToggleReport};
use crate::{Error, Installed, Record, discover, fault, journal};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::collections::{BTreeMap, BTreeSet};
use tracee::Process;

/// The first bytes of an ELF file.
const ELF: [u8; 4] = *b"\x7fELF";

/// Marks the modules with these first pages. Returns for each whether it is marked now. `anchor` is the
/// address of the target's anchor.
///
/// # Errors
/// [`Error`] if the target could not be stopped or read. No byte changes value, with or without an error.
pub fn mark_modules(process: &Process, pages: &[Avma], anchor: Option<Avma>) -> Result<Vec<bool>, Error> {
    let marked = are_marked(process, pages)?;
    if marked.iter().all(|m| *m) {
        return Ok(marked);
    }
    let listed = anchor.map(|at| discover(process, &[AvmaRange::with_len(at, 4096)]));
    let listed = listed.transpose()?.flatten();
    let stopped = toggle::stop(process, &Policy::default(), &mut ToggleReport::default())?;
    for (&page, was) in pages.iter().zip(are_marked(process, pages)?) {
        // A page without a module, or one that the process has written already, stays as it is.
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

/// Makes all records of the module that had its first page at `page` change nothing.
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

/// Returns for each page whether it is the first page of a marked module.
///
/// # Errors
/// [`Error::Tracee`] if the kernel does not show it.
fn are_marked(process: &Process, pages: &[Avma]) -> Result<Vec<bool>, Error> {
    let own = process.own_copies(pages)?;
    Ok(pages.iter().zip(own).map(|(&page, own)| own && is_module(process, page)).collect())
}

fn is_module(process: &Process, page: Avma) -> bool {
    let mut first = [0; ELF.len()];
    process.read(page, &mut first).is_ok() && first == ELF
}

/// The first pages of some records' modules, each with whether the module is still mapped.
#[derive(Debug, Default)]
pub(crate) struct Marks(BTreeMap<Avma, bool>);

impl Marks {
    /// Checks the marks of these records.
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

    /// Returns whether the place of a record is still in the module for which it was made.
    pub fn stands(&self, record: &Record) -> bool {
        record.mark.is_none_or(|page| self.0.get(&page).is_some_and(|marked| *marked))
    }
}

/// Drops the records of unloaded modules: their redirects vanished with them.
///
/// # Errors
/// [`Error::Tracee`] if the kernel does not show the marks.
pub fn forget_unloaded(process: &Process, installed: &mut Installed) -> Result<(), Error> {
    let marks = Marks::look(process, installed.caches.iter().flat_map(|c| &c.records))?;
    for cache in &mut installed.caches {
        let all = cache.records.len();
        cache.records.retain(|r| !r.is_buried() && marks.stands(r));
        cache.has_gone = cache.records.len() < all;
    }
    Ok(())
}
