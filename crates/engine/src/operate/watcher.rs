//! `status`, once or repeatedly at little cost, by reading processes; no daemon is needed.
//!
//! A process without a journal is rarely read again. The notes of a process with a journal, which may be
//! megabytes, are read once for each generation.

use crate::operate::status::{self, StatusReport, TargetStatus};
use crate::records::notes::Notes;
use crate::records::originals::Originals;
use crate::session::sign::{self, Work};
use crate::session::state::TargetState;
use crate::{Error, Target};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use tracee::Pid;

/// Every `LOOKS_PER_CHECK`-th look reads processes without a journal again.
const LOOKS_PER_CHECK: u64 = 16;

/// Reads one process, or all.
///
/// # Errors
/// Returns the error of the one process. Among all processes, unreadable ones are counted.
pub fn status(pid: Option<Pid>) -> Result<StatusReport, Error> {
    Watcher::new(pid).look()
}

/// Reads one process, or all, repeatedly.
#[derive(Debug)]
pub struct Watcher {
    only: Option<Pid>,
    looks: u64,
    /// Processes without a journal in the last look.
    plain: BTreeSet<Pid>,
    /// Processes among them that could not be read for lack of permission.
    unreadable: BTreeSet<Pid>,
    /// Per process: the generation, when its newest cache was installed, its notes, and the originals of its
    /// rebuilt functions.
    notes: FxHashMap<Pid, (u32, u64, Notes, Originals)>,
}

impl Watcher {
    /// Creates a watcher of one process, or of all.
    #[must_use]
    pub fn new(only: Option<Pid>) -> Self {
        Self {
            only,
            looks: 0,
            plain: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            notes: FxHashMap::default(),
        }
    }

    /// Returns the processes that hold a journal now, or are being worked on.
    ///
    /// # Errors
    /// Returns the error of the one process. Among all processes, unreadable ones are counted.
    pub fn look(&mut self) -> Result<StatusReport, Error> {
        let work = sign::work();
        if let Some(pid) = self.only {
            let found = self.one(&Target::open_of_any_version(pid)?, work.get(&pid));
            return Ok(StatusReport { targets: found.into_iter().collect(), unreadable: 0 });
        }
        let pids = all_pids();
        let round = self.looks % LOOKS_PER_CHECK;
        self.looks = self.looks.wrapping_add(1);
        let is_due = |p: &Pid| u64::from(p.0.unsigned_abs()) % LOOKS_PER_CHECK == round;
        // A process id may denote another process by now.
        self.plain.retain(|p| !is_due(p) && pids.contains(p) && !work.contains_key(p));
        self.notes.retain(|p, _| pids.contains(p));
        let plain = &self.plain;
        self.unreadable.retain(|p| plain.contains(p));
        let mut targets = Vec::new();
        for pid in pids {
            if self.plain.contains(&pid) {
                continue;
            }
            match Target::open_of_any_version(pid).map(|t| self.one(&t, work.get(&pid))) {
                Ok(Some(s)) => {
                    targets.push(s);
                    continue;
                }
                Err(Error::Tracee(tracee::Error::NoPermission { .. })) => {
                    self.unreadable.insert(pid);
                }
                // The process has ended, is a kernel thread, is whet itself, or was never touched: nothing to
                // report.
                Ok(None) | Err(_) => {}
            }
            self.plain.insert(pid);
        }
        Ok(StatusReport { targets, unreadable: self.unreadable.len() })
    }

    fn one(&mut self, target: &Target, work: Option<&Work>) -> Option<TargetStatus> {
        let mut found = status::of(target, self.notes_of(target).map(|k| k.0));
        if let Some(found) = found.as_mut().filter(|f| f.state == TargetState::Optimized)
            && let Some((_, originals)) = self.notes_of(target)
        {
            found.changed_originals = originals.changed(target);
        }
        let Some(work) = work.filter(|w| target.process.start_time().is_ok_and(|t| t == w.start_time)) else {
            return found;
        };
        let Some(mut found) = found else { return work.state.map(|_| status::begun(target, work)) };
        found.state = work.state.unwrap_or(found.state);
        found.worked_on_by = Some(work.by);
        Some(found)
    }

    fn notes_of(&mut self, target: &Target) -> Option<(&Notes, &Originals)> {
        let installed = target.installed.as_ref()?;
        let (pid, generation) = (target.process.pid(), installed.generation());
        let since = installed.of(generation).map(|c| c.header.since_ns).max()?;
        let is_known = self.notes.get(&pid).is_some_and(|(g, s, ..)| (*g, *s) == (generation, since));
        if !is_known {
            let mut notes = Notes::of(&target.process, installed)?;
            // The profile is large and not needed here.
            notes.profile = String::new();
            let originals = Originals::of(target, Some(&notes));
            self.notes.insert(pid, (generation, since, notes, originals));
        }
        self.notes.get(&pid).map(|(_, _, notes, originals)| (notes, originals))
    }
}

fn all_pids() -> BTreeSet<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).map(Pid).collect()
}
