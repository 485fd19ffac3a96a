//! Checks whether the clones of a parent fit a member, or the clones of a member its parent.
//!
//! Clones hold addresses, and facts about memory that cannot change: code, tables, words that are read-only
//! after relocation. So a member fits on two conditions. It maps the parent's code at the same addresses from
//! the same files, and all read-only memory of these modules has the same bytes. The bytes are compared page
//! by page. A page is equal to the file's if neither process has its own copy; all other pages are read.
//! Memory that the parent cannot write must not be writable in the member either, or it might change later.
//! The member may have loaded more modules.

use crate::build::installer;
use crate::build::lookup::{self, Lookup};
use crate::session::claim::Claim;
use crate::session::lock::TargetLock;
use crate::session::pristine::Pristine;
use crate::session::restore;
use crate::session::target::check_program;
use crate::{Error, Target};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use image::{Image, Mapping};
use std::collections::BTreeSet;
use tracee::{Pid, Process};

const PAGE: u64 = 4096;

/// How much is compared at once. Bytes.
const MAX_RUN: u64 = 1 << 20;

/// The process with which others are compared.
pub(crate) struct Head<'a> {
    target: &'a Target,
    image: &'a Image,
    lookup: &'a Lookup,
    /// The first pages of modules that may be unloaded and hold clones' originals.
    marks: Vec<Avma>,
    /// The read-only pages of its modules.
    pages: Vec<Avma>,
    /// The pages among them of which it has its own copy.
    own: BTreeSet<Avma>,
}

/// A member that fits, held by its lock.
pub(crate) struct Fitting {
    pub(crate) target: Target,
    /// How its unwinders are redirected.
    pub(crate) lookup: Lookup,
    _lock: TargetLock,
}

impl<'a> Head<'a> {
    /// Reads what members are compared with.
    ///
    /// # Errors
    /// Returns [`Error::Tracee`] if the kernel does not show which pages are the process's own.
    pub(crate) fn new(
        target: &'a Target,
        image: &'a Image,
        lookup: &'a Lookup,
        marks: Vec<Avma>,
    ) -> Result<Self, Error> {
        let pages = pages(&constant(target, image));
        let own = own(target, &pages)?;
        Ok(Self { target, image, lookup, marks, pages, own })
    }

    /// Opens a member and checks that it fits. Counting that a whet left behind in it is ended first. A
    /// member in which modules have to be marked gets its first stop.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] for a member that does not fit, and the errors of [`TargetLock::open`].
    pub(crate) fn join(&self, pid: Pid) -> Result<Fitting, Error> {
        let (process, lock) = TargetLock::open(pid)?;
        Claim::overrule(&process);
        restore::end_counting(pid)?;
        let target = lock.target(pid)?;
        let lookup = self.lookup_in(&target).map_err(|e| target.cause(e))?;
        self.mark(&target, &lookup).map_err(|e| target.cause(e))?;
        // Marking may have made an anchor.
        let target = if self.marks.is_empty() { target } else { target.again()? };
        self.compare(&target).map_err(|e| target.cause(e))?;
        Ok(Fitting { target, lookup, _lock: lock })
    }

    /// Checks the modules of a member. Returns how its unwinders are redirected.
    fn lookup_in(&self, member: &Target) -> Result<Lookup, Error> {
        let pid = member.process.pid();
        if !constant(self.target, self.image).iter().all(|m| is_within(m, &member.maps, is_same_file)) {
            let why = "it does not map the code of its family's parent at the same addresses";
            return Err(unfit(pid, "other_modules", why));
        }
        let mut code = member.maps.iter().filter(|m| m.perms.x && m.inode != 0);
        if code.all(|m| is_within(m, &self.target.maps, is_same_file)) {
            return Ok(self.lookup.clone());
        }
        // A module of its own may have an unwinder, or be a runtime that whet leaves alone.
        let image = member.image()?;
        check_program(pid, &image, &member.pristine())?;
        lookup::find(member, &image)
    }

    fn mark(&self, member: &Target, lookup: &Lookup) -> Result<(), Error> {
        if self.marks.is_empty() {
            return Ok(());
        }
        if member.installed.is_none() {
            installer::make_first_stop(member, self.image, lookup)?;
        }
        let anchor = Target::open(member.process.pid())?.installed.map(|i| i.anchor.at);
        let marked = splice::mark_modules(&member.process, &self.marks, anchor)?;
        match marked.iter().all(|marked| *marked) {
            true => Ok(()),
            false => {
                let why = "a module of its family's parent that may be unloaded cannot be marked in it";
                Err(unfit(member.process.pid(), "module_may_unload", why))
            }
        }
    }

    fn compare(&self, member: &Target) -> Result<(), Error> {
        let theirs = own(member, &self.pages)?;
        let (here, there) = (Original::of(self.target), Original::of(member));
        for run in runs(self.own.union(&theirs).copied()) {
            if here.bytes(run).map_err(|e| self.target.cause(e))? != there.bytes(run)? {
                let why = "its code or its constants differ from those of its family's parent";
                return Err(unfit(member.process.pid(), "other_bytes", why));
            }
        }
        let is_same = |a: &Mapping, b: &Mapping| a.perms == b.perms && is_same_file(a, b);
        if !constant(self.target, self.image).iter().all(|m| is_within(m, &member.maps, is_same)) {
            let why = "its code or its constants have other access rights than those of its family's parent";
            return Err(unfit(member.process.pid(), "other_rights", why));
        }
        Ok(())
    }
}

/// A process's memory without changes by whet.
struct Original<'a> {
    pristine: Pristine<'a, Process>,
    /// The pointer by which unwinders are led to the anchor, and its original value. It is in no journal.
    hook: Option<(Avma, u64)>,
}

impl<'a> Original<'a> {
    fn of(target: &'a Target) -> Self {
        let anchor = target.installed.as_ref().map(|i| &i.anchor);
        let hook = anchor.and_then(|a| Some((a.slot?, a.original)));
        Self { pristine: target.pristine(), hook }
    }

    fn bytes(&self, range: AvmaRange) -> Result<Vec<u8>, Error> {
        let mut bytes = self.pristine.bytes(range).map_err(tracee::Error::from)?;
        if let Some((slot, original)) = self.hook {
            let at = slot.since(range.start).and_then(|at| usize::try_from(at).ok());
            if let Some(own) = at.and_then(|at| bytes.get_mut(at..at.checked_add(8)?)) {
                own.copy_from_slice(&original.to_le_bytes());
            }
        }
        Ok(bytes)
    }
}

/// Returns the ranges that pages in ascending order form. None is longer than [`MAX_RUN`].
fn runs(pages: impl Iterator<Item = Avma>) -> Vec<AvmaRange> {
    let mut runs: Vec<AvmaRange> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page && run.len() < MAX_RUN => run.end = page.add(PAGE),
            _ => runs.push(AvmaRange::with_len(page, PAGE)),
        }
    }
    runs
}

/// Returns the error for a member that is left alone.
pub(crate) fn unfit(pid: Pid, code: &'static str, why: &str) -> Error {
    Error::Unsupported { pid, code, why: why.to_owned() }
}

/// Returns the mappings of modules that clones rely on: code, and memory that cannot be written.
fn constant<'a>(target: &'a Target, image: &Image) -> Vec<&'a Mapping> {
    let is_constant = |m: &&Mapping| m.perms.r && (m.perms.x || !m.perms.w);
    let is_of_module = |m: &&Mapping| image.module_of(m.range.start).is_some();
    // The kernel's own mappings are not the process's to change.
    let is_of_kernel = |m: &&Mapping| m.path.as_deref().is_some_and(|p| p.starts_with('['));
    target.maps.iter().filter(is_constant).filter(is_of_module).filter(|m| !is_of_kernel(m)).collect()
}

/// Returns whether mappings that are like one cover it. A change of access rights splits a mapping.
fn is_within(mapping: &Mapping, maps: &[Mapping], is_like: impl Fn(&Mapping, &Mapping) -> bool) -> bool {
    let mut at = mapping.range.start;
    // Mappings are in ascending order.
    for other in maps {
        if other.range.contains(at) && is_like(mapping, other) {
            at = other.range.end;
        }
    }
    at >= mapping.range.end
}

/// Returns whether two mappings show the same file, with each byte at the same address.
fn is_same_file(a: &Mapping, b: &Mapping) -> bool {
    let start = |m: &Mapping| m.range.start.0.wrapping_sub(m.offset);
    a.same_file(b) && (a.inode == 0 || start(a) == start(b))
}

fn pages(mappings: &[&Mapping]) -> Vec<Avma> {
    let of = |m: &&Mapping| (m.range.start.0..m.range.end.0).step_by(4096).map(Avma);
    mappings.iter().flat_map(of).collect()
}

fn own(target: &Target, pages: &[Avma]) -> Result<BTreeSet<Avma>, Error> {
    let own = target.process.own_copies(pages)?;
    Ok(pages.iter().zip(own).filter(|(_, own)| *own).map(|(page, _)| *page).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_form_runs() {
        let of = |pages: &[u64]| runs(pages.iter().map(|p| Avma(p * PAGE)));
        let run = |from: u64, to: u64| AvmaRange::new(Avma(from * PAGE), Avma(to * PAGE));
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[1, 2, 3, 5, 7, 8]), [run(1, 4), run(5, 6), run(7, 9)]);
        let most = MAX_RUN / PAGE;
        let long: Vec<u64> = (0..most + 1).collect();
        assert_eq!(of(&long), [run(0, most), run(most, most + 1)]);
    }

    #[test]
    fn mappings_that_were_split() {
        let maps = |text: &str| image::maps::parse(text).unwrap();
        let whole = maps("1000-4000 r-xp 00001000 08:01 7 /bin/server\n");
        let within =
            |text: &str, is_like: fn(&Mapping, &Mapping) -> bool| is_within(&whole[0], &maps(text), is_like);
        let file = |text: &str| within(text, is_same_file);
        let split = "1000-2000 r-xp 00001000 08:01 7 /bin/server\n\
                     2000-3000 rwxp 00002000 08:01 7 /bin/server\n\
                     3000-5000 r-xp 00003000 08:01 7 /bin/server\n";
        assert!(file(split));
        assert!(!within(split, |a, b| a.perms == b.perms));
        assert!(within(&split.replace("rwxp", "r-xp"), |a, b| a.perms == b.perms));
        assert!(!file(&split.replace("00002000", "00004000")), "other bytes of the file");
        assert!(!file(&split.replace("00002000 08:01 7", "00002000 08:01 8")), "another file");
        assert!(
            !file(&split.lines().take(2).map(|l| format!("{l}\n")).collect::<String>()),
            "its end is missing"
        );
        assert!(!file("3000-5000 r-xp 00003000 08:01 7 /bin/server\n"), "its start is missing");
    }
}
