//! Branch stacks of a process that runs clones, translated to the originals.
//!
//! Clones have another block order, so a fall-through in a clone may be a jump in its original, and the other
//! way round. A run in a clone is split wherever the original continues elsewhere: each such place is a
//! branch that the original takes. Jumps that only the clone has stand for the instruction before them. A
//! redirect stands for nothing: the run in the original that ends there continues in the clone.

use addr::{Addr, Avma, AvmaRange};
use code::{Cfg, Dest, Term};
use emit::{AddressMap, Entry, Link};
use profile::{BranchStacks, Run, Taken};
use rustc_hash::{FxHashMap, FxHashSet};

/// Facts about the instructions of originals.
#[derive(Debug, Default)]
pub struct Originals {
    /// The end of each instruction.
    ends: FxHashMap<Avma, Avma>,
    /// For the start of each block, the instruction from which control falls into it, if there is one.
    starts: FxHashMap<Avma, Option<Avma>>,
}

impl Originals {
    /// Collects the facts about some functions.
    #[must_use]
    pub fn of(cfgs: &[&Cfg]) -> Self {
        let mut all = Self::default();
        for cfg in cfgs {
            all.ends.extend(cfg.insts.iter().map(|i| (i.at, i.end())));
            for block in &cfg.blocks {
                all.starts.entry(block.range.start).or_default();
                let last = block.last_inst().and_then(|i| cfg.insts.get(i.index()));
                if let Term::Fall { next }
                | Term::Cond { fall: next, .. }
                | Term::CondShort { fall: next, .. } = block.term
                    && let Dest::Block(next) = next
                    && let (Some(last), Some(next)) = (last, cfg.blocks.get(next.index()))
                {
                    all.starts.insert(next.range.start, Some(last.at));
                }
            }
        }
        all
    }

    fn end_of(&self, at: Avma) -> Option<Avma> {
        self.ends.get(&at).copied()
    }
}

/// Returns the stacks as they would be without clones. `originals` contains the functions of interest.
/// Records from other functions' clones are left out.
#[must_use]
pub fn carried_back(stacks: &BranchStacks, clones: &[AddressMap], originals: &Originals) -> BranchStacks {
    let clones = Clones::new(clones);
    let mut out = BranchStacks::default();
    let mut redirects: FxHashSet<Avma> = FxHashSet::default();
    for (taken, n) in stacks.taken() {
        let (from, to) = (clones.source(taken.from), clones.original(taken.to));
        if from == Some(to) && clones.of(taken.from).is_none() {
            redirects.insert(taken.from);
        } else if clones.is_within(taken.to) || clones.is_way_back(taken.from) {
            // This branch lies within the code that replaces a call, or returns from such code. In the latter
            // case the jump from there shows the return, or the return of the callee's rest has already shown
            // it.
        } else if clones.is_within(taken.from) && from.and_then(|at| originals.end_of(at)) == Some(to) {
            // The source is in no function's code, as for any return of an unknown function.
            out.add_taken(Taken { from: taken.from, to }, n);
        } else if let Some(from) = from {
            out.add_taken(Taken { from, to }, n);
        }
    }
    for (run, n) in stacks.runs() {
        match clones.of(run.first) {
            Some(map) => in_clone(map, run, n, originals, &mut out),
            None if redirects.contains(&run.last) => to_redirect(run, n, originals, &mut out),
            None => out.add_run(run, n),
        }
    }
    out
}

/// Adds a run in an original that ends at a redirect. Leaves out the part that belongs to the run in the
/// clone behind it. A run counts the blocks whose first instruction it passes.
fn to_redirect(run: Run, n: u64, originals: &Originals, out: &mut BranchStacks) {
    match originals.starts.get(&run.last) {
        None => out.add_run(run, n),
        Some(&Some(before)) if run.first < run.last => {
            out.add_run(Run { first: run.first, last: before }, n);
            out.add_taken(Taken { from: before, to: run.last }, n);
        }
        Some(_) => {}
    }
}

/// Splits a run in a clone into runs of the original.
fn in_clone(map: &AddressMap, run: Run, n: u64, originals: &Originals, out: &mut BranchStacks) {
    let fragments = map.fragments();
    let (Some(first), Some(last)) = (fragments.position(run.first), fragments.position(run.last)) else {
        return;
    };
    // Fragments follow each other by position, not by address.
    if last < first || run.first.add(u64::from(last - first)) != run.last {
        return;
    }
    let from = map.entries().partition_point(|e| e.at < first);
    let here = &map.entries()[from..];
    // A dropped jump where the run begins belongs to the code before the run. A call that is inlined there
    // belongs to the run.
    let begins = |e: &Entry| {
        here.iter().take_while(|w| w.at == first).any(|w| w.link == Link::Within && w.original == e.original)
    };
    let is_passed = |e: &&Entry| match e.link {
        Link::Copy | Link::Again => true,
        Link::Dropped => e.at != first || begins(e),
        Link::Extra | Link::Within => false,
    };
    let mut passed = here.iter().take_while(|e| e.at <= last).filter(is_passed);
    let Some(mut at) = passed.next() else { return };
    let mut begin = at.original;
    for next in passed {
        let Some(end) = originals.end_of(at.original) else { return };
        // A jump counts as a branch even if it leads to the next instruction.
        if at.link == Link::Dropped || end != next.original {
            out.add_run(Run { first: begin, last: at.original }, n);
            out.add_taken(Taken { from: at.original, to: next.original }, n);
            begin = next.original;
        }
        at = next;
    }
    out.add_run(Run { first: begin, last: at.original }, n);
}

/// Clones by the addresses of their fragments.
struct Clones<'a>(Vec<(AvmaRange, &'a AddressMap)>);

impl<'a> Clones<'a> {
    fn new(maps: &'a [AddressMap]) -> Self {
        let mut all: Vec<(AvmaRange, &AddressMap)> =
            maps.iter().flat_map(|m| m.fragments().ranges().map(move |r| (r, m))).collect();
        all.sort_unstable_by_key(|(range, _)| range.start);
        Self(all)
    }

    fn of(&self, at: Avma) -> Option<&'a AddressMap> {
        let after = self.0.partition_point(|(range, _)| range.start <= at);
        let (range, map) = self.0.get(after.checked_sub(1)?)?;
        range.contains(at).then_some(*map)
    }

    /// Returns the original address of a destination.
    fn original(&self, at: Avma) -> Avma {
        self.of(at).and_then(|m| m.original_of_interior(at)).unwrap_or(at)
    }

    /// Returns whether an address is in the middle of the code for one original instruction.
    fn is_within(&self, at: Avma) -> bool {
        let entries = self.of(at).map(|m| m.entries_at(at)).unwrap_or_default();
        // Where a call is dropped, its inlined callee begins.
        matches!(entries, [Entry { link: Link::Within, .. }])
    }

    /// Returns whether an address is the jump behind the call of a callee's rest.
    fn is_way_back(&self, at: Avma) -> bool {
        let Some((map, n)) = self.of(at).and_then(|map| Some((map, upto(map, at)?))) else { return false };
        let is_extra =
            n.checked_sub(1).and_then(|i| map.entries().get(i)).is_some_and(|e| e.link == Link::Extra);
        is_extra && n.checked_sub(2).is_some_and(|i| map.is_aside(i))
    }

    /// Returns the original instruction of a branch. For a jump that only the clone has, returns the
    /// instruction before it.
    fn source(&self, at: Avma) -> Option<Avma> {
        let Some(map) = self.of(at) else { return Some(at) };
        let n = upto(map, at)?;
        let entries = map.entries().get(..n)?;
        if map.is_aside(n.checked_sub(1)?) {
            return entries.last().map(|e| e.original);
        }
        entries.iter().rev().find(|e| !matches!(e.link, Link::Extra | Link::Within)).map(|e| e.original)
    }
}

/// Returns how many entries there are up to the entry at `at`.
fn upto(map: &AddressMap, at: Avma) -> Option<usize> {
    let position = map.fragments().position(at)?;
    Some(map.entries().partition_point(|e| e.at <= position))
}

#[cfg(test)]
#[path = "stacks_tests.rs"]
mod tests;
