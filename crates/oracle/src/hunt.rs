//! Decides which functions to wait for next, and in which thread.
//!
//! Four addresses can be watched at a time. Clones that ran inside a comparison are certain to be executed,
//! so they come first. The others are tried repeatedly, in a random order. Threads that have entered watched
//! functions are watched more often.

use crate::atlas::Atlas;
use addr::Avma;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::time::Duration;
use testkit::Rng;
use tracee::{MAX_WATCHED, Process, Tid};

/// How often a clone that was met inside a comparison is waited for before it loses its priority.
const TRIES: u8 = 6;
/// How long a thread is watched at one set of addresses. Three times as long if some of the functions are
/// known to run.
const WINDOW: Duration = Duration::from_millis(4);

#[derive(Debug)]
pub(crate) struct Hunt {
    random: Rng,
    /// Addresses at which clones are entered, by the original's entry.
    entries: FxHashMap<Avma, Avma>,
    /// Functions that were met and are not yet examined: the original's entry, and how often it was waited
    /// for.
    met: VecDeque<(Avma, u8)>,
    /// All functions that are not yet examined.
    all: VecDeque<Avma>,
    /// The functions in `met`.
    known: FxHashSet<Avma>,
    done: FxHashSet<Avma>,
    hits: FxHashMap<Tid, u32>,
}

impl Hunt {
    pub(crate) fn new(atlas: &Atlas, seed: u64) -> Self {
        let newest = || atlas.clones().iter().filter(|c| c.newest);
        let mut random = Rng(seed);
        let mut all: Vec<Avma> = newest().map(|c| c.original).collect();
        all.sort_unstable();
        random.shuffle(&mut all);
        Self {
            random,
            entries: newest().map(|c| (c.original, c.entered)).collect(),
            met: VecDeque::new(),
            all: all.into(),
            known: FxHashSet::default(),
            done: FxHashSet::default(),
            hits: FxHashMap::default(),
        }
    }

    /// Returns whether all functions are examined.
    pub(crate) fn is_over(&self) -> bool {
        self.done.len() == self.entries.len()
    }

    /// Notes that the clones of these originals are executed.
    pub(crate) fn meet(&mut self, originals: impl Iterator<Item = Avma>) {
        for o in originals {
            if self.entries.contains_key(&o) && self.known.insert(o) && !self.done.contains(&o) {
                self.met.push_front((o, 0));
            }
        }
    }

    /// Notes that a function is examined, which the thread `by` has entered.
    pub(crate) fn done(&mut self, original: Avma, by: Tid) {
        self.done.insert(original);
        *self.hits.entry(by).or_default() += 1;
    }

    pub(crate) fn is_done(&self, original: Avma) -> bool {
        self.done.contains(&original)
    }

    /// Chooses where to wait for a function: at its clone, which clones call, or at its original, from which
    /// redirects lead on.
    fn way_in(&mut self, original: Avma) -> Option<Avma> {
        let clone = self.entries.get(&original).copied()?;
        Some(if self.random.below(2) == 0 { original } else { clone })
    }

    /// Returns the addresses to watch next, and for how long.
    pub(crate) fn next(&mut self) -> (Vec<Avma>, Duration) {
        let mut out = Vec::with_capacity(MAX_WATCHED);
        // One place is left for the other functions, so that rarely entered ones cannot hold all places.
        while out.len() < MAX_WATCHED - 1
            && let Some((original, tries)) = self.met.pop_front()
        {
            if self.done.contains(&original) {
                continue;
            }
            if tries < TRIES {
                self.met.push_back((original, tries + 1));
            } else {
                // It may be met again.
                self.known.remove(&original);
            }
            let new = self.way_in(original).filter(|e| !out.contains(e));
            if new.is_none() {
                break;
            }
            out.extend(new);
        }
        let sure = !out.is_empty();
        for _ in 0..self.all.len() {
            if out.len() == MAX_WATCHED {
                break;
            }
            let Some(original) = self.all.pop_front() else { break };
            if self.done.contains(&original) {
                continue;
            }
            self.all.push_back(original);
            out.extend(self.way_in(original).filter(|e| !out.contains(e)));
        }
        (out, if sure { WINDOW * 3 } else { WINDOW })
    }

    /// Chooses a thread to watch. Prefers threads that run or have entered a watched function.
    pub(crate) fn thread(&mut self, process: &Process) -> Result<Tid, tracee::Error> {
        let threads = process.threads()?;
        let weight = |tid: &Tid| {
            let runs = process.thread_status(*tid).is_ok_and(|s| s.state == 'R');
            1 + 20 * usize::from(runs) + 4 * self.hits.get(tid).map_or(0, |&h| h.min(10) as usize)
        };
        let weights: Vec<usize> = threads.iter().map(weight).collect();
        let mut at: usize = self.random.below(weights.iter().sum());
        for (tid, w) in threads.iter().zip(&weights) {
            if at < *w {
                return Ok(*tid);
            }
            at -= w;
        }
        threads.first().copied().ok_or(tracee::Error::Gone(process.pid()))
    }
}
