//! Which function is looked for next, in which thread?
//!
//! Four addresses can be watched at a time. Clones that were met inside of a comparison are sure to be executed, so
//! they come first; the rest is gone through in a random order, again and again. Threads that met something are asked
//! more often.

use crate::atlas::Atlas;
use addr::Avma;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::time::Duration;
use tracee::{MAX_WATCHED, Process, Tid};

/// How often a clone that was met inside of a comparison is waited for before it is one among all.
const TRIES: u8 = 6;
/// How long a thread is waited for at four addresses.
const WINDOW: Duration = Duration::from_millis(4);

/// `SplitMix64` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % (n.max(1) as u64)).unwrap_or(0)
    }
}

#[derive(Debug)]
pub(crate) struct Hunt {
    random: Random,
    /// Where clones are entered, by the original's entry.
    entries: FxHashMap<Avma, Avma>,
    /// Met, not yet examined: the original's entry and how often it was waited for.
    met: VecDeque<(Avma, u8)>,
    /// All not yet examined.
    all: VecDeque<Avma>,
    /// Those in `met`.
    known: FxHashSet<Avma>,
    done: FxHashSet<Avma>,
    hits: FxHashMap<Tid, u32>,
}

impl Hunt {
    pub(crate) fn new(atlas: &Atlas, seed: u64) -> Self {
        let newest = || atlas.clones().iter().filter(|c| c.newest);
        let mut random = Random(seed);
        let mut all: Vec<Avma> = newest().map(|c| c.original).collect();
        all.sort_unstable();
        for i in (1..all.len()).rev() {
            all.swap(i, random.below(i + 1));
        }
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

    /// Whether all are examined.
    pub(crate) fn is_over(&self) -> bool {
        self.done.len() == self.entries.len()
    }

    /// Clones that are executed.
    pub(crate) fn meet(&mut self, originals: impl Iterator<Item = Avma>) {
        for o in originals {
            if self.entries.contains_key(&o) && self.known.insert(o) && !self.done.contains(&o) {
                self.met.push_front((o, 0));
            }
        }
    }

    /// One is examined.
    pub(crate) fn done(&mut self, original: Avma, by: Tid) {
        self.done.insert(original);
        *self.hits.entry(by).or_default() += 1;
    }

    pub(crate) fn is_done(&self, original: Avma) -> bool {
        self.done.contains(&original)
    }

    /// Where to wait for a function: at its clone, which clones call, or at its original, from which redirects lead on.
    fn way_in(&mut self, original: Avma) -> Option<Avma> {
        let clone = self.entries.get(&original).copied()?;
        Some(if self.random.below(2) == 0 { original } else { clone })
    }

    /// The entries to watch next, and for how long.
    pub(crate) fn next(&mut self) -> (Vec<Avma>, Duration) {
        let mut out = Vec::with_capacity(MAX_WATCHED);
        // One place is left for the others, lest those that come rarely hold all of them.
        while out.len() < MAX_WATCHED - 1
            && let Some((original, tries)) = self.met.pop_front()
        {
            if self.done.contains(&original) {
                continue;
            }
            if tries < TRIES {
                self.met.push_back((original, tries + 1));
            } else {
                // Until it is met again.
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

    /// A thread to watch: one that runs or has met something, rather than one that waits.
    pub(crate) fn thread(&mut self, process: &Process) -> Result<Tid, tracee::Error> {
        let threads = process.threads()?;
        let weight = |tid: &Tid| {
            let runs = process.thread_status(*tid).is_ok_and(|s| s.state == 'R');
            1 + 20 * usize::from(runs) + 4 * self.hits.get(tid).map_or(0, |&h| h.min(10) as usize)
        };
        let weights: Vec<usize> = threads.iter().map(weight).collect();
        let mut at = self.random.below(weights.iter().sum());
        for (tid, w) in threads.iter().zip(&weights) {
            if at < *w {
                return Ok(*tid);
            }
            at -= w;
        }
        threads.first().copied().ok_or(tracee::Error::Gone(process.pid()))
    }
}
