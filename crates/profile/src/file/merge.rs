//! Merging of several profiles.

use super::{BlockProfile, FunctionProfile, Looks, Profile};
use std::collections::BTreeMap;

/// The limit for the sum of all counts of one profile. Larger counts are scaled down, so sums of them, in any
/// combination, stay far below 2^64. A double holds counts below the limit exactly.
const TAME: u128 = 1 << 52;

impl Profile {
    /// Adds another profile, as if one long run had observed both. Counts are summed, so a profile taken for
    /// twice as long weighs twice as much. If one profile has counted a function and the other only inferred
    /// it, the counted values stay, because inferred values have a unit of their own. Samples and
    /// destinations of indirect calls are summed in every case. The result does not depend on the order of
    /// merging.
    pub fn merge(&mut self, other: Profile) {
        self.exes.extend(other.exes);
        add(&mut self.runs, other.runs);
        self.when = self.when.max(other.when);
        add(&mut self.sampled, other.sampled);
        add(&mut self.counted, other.counted);
        add(&mut self.samples, other.samples);
        add(&mut self.left_out, other.left_out);
        for (id, theirs) in other.modules {
            let ours = self.modules.entry(id).or_default();
            better(&mut ours.name, theirs.name);
            for (key, f) in theirs.functions {
                match ours.functions.entry(key) {
                    std::collections::btree_map::Entry::Vacant(e) => _ = e.insert(f),
                    std::collections::btree_map::Entry::Occupied(e) => function(e.into_mut(), f),
                }
            }
        }
    }

    /// Scales all counts down together if they are so large that sums of them might overflow. Their ratios
    /// stay the same, except for rounding.
    pub fn tame(&mut self) {
        let mut total = u128::from(self.samples);
        self.each_count(&mut |n| total += u128::from(*n));
        let mut shift = 0;
        while total >> shift >= TAME {
            shift += 1;
        }
        if shift > 0 {
            self.samples >>= shift;
            self.each_count(&mut |n| *n >>= shift);
        }
        // Observations are scaled apart from the counts, because there are usually few of them.
        self.modules.values_mut().flat_map(|m| m.functions.values_mut()).for_each(|f| {
            f.sites.values_mut().flat_map(|s| [&mut s.callees, &mut s.tables]).for_each(tame);
        });
    }

    fn each_count(&mut self, tell: &mut dyn FnMut(&mut u64)) {
        for f in self.modules.values_mut().flat_map(|m| m.functions.values_mut()) {
            tell(&mut f.samples);
            tell(&mut f.entered);
            for b in f.blocks.values_mut() {
                tell(&mut b.count);
                b.edges.values_mut().for_each(&mut *tell);
            }
            f.hits.values_mut().for_each(&mut *tell);
            f.calls.values_mut().for_each(&mut *tell);
        }
    }
}

/// Makes sure that there are at least as many observations as the places were seen in, and that their sum
/// does not overflow.
fn tame(looks: &mut Looks) {
    let sum: u128 = looks.saw.values().map(|&n| u128::from(n)).sum();
    let all = sum.max(u128::from(looks.all));
    let mut shift = 0;
    while all >> shift >= TAME {
        shift += 1;
    }
    looks.all = u64::try_from(all >> shift).unwrap_or(u64::MAX);
    looks.saw.values_mut().for_each(|n| *n >>= shift);
}

fn add(to: &mut u64, n: u64) {
    *to = to.saturating_add(n);
}

/// Picks one of two names, independently of the order of merging. Any name is better than none.
fn better(name: &mut String, other: String) {
    if other > *name {
        *name = other;
    }
}

fn function(ours: &mut FunctionProfile, theirs: FunctionProfile) {
    let counted = (ours.is_counted(), theirs.is_counted());
    let name = (ours.binding, std::mem::take(&mut ours.name)).max((theirs.binding, theirs.name));
    (ours.binding, ours.name) = name;
    ours.size = ours.size.max(theirs.size);
    ours.shape = ours.shape.max(theirs.shape);
    add(&mut ours.samples, theirs.samples);
    sum(&mut ours.hits, theirs.hits);
    for (at, site) in theirs.sites {
        let own = ours.sites.entry(at).or_default();
        look(&mut own.callees, site.callees);
        look(&mut own.tables, site.tables);
    }
    match counted {
        (true, false) => return,
        (false, true) => {
            ours.entered = 0;
            ours.blocks = BTreeMap::new();
            ours.calls = BTreeMap::new();
        }
        _ => {}
    }
    ours.origin = ours.origin.max(theirs.origin);
    add(&mut ours.entered, theirs.entered);
    for (at, b) in theirs.blocks {
        block(ours.blocks.entry(at).or_default(), b);
    }
    sum(&mut ours.calls, theirs.calls);
}

fn block(ours: &mut BlockProfile, theirs: BlockProfile) {
    // The same function has the same last instruction here; a new default block has 0.
    ours.last = ours.last.max(theirs.last);
    add(&mut ours.count, theirs.count);
    sum(&mut ours.edges, theirs.edges);
}

fn look(ours: &mut Looks, theirs: Looks) {
    add(&mut ours.all, theirs.all);
    sum(&mut ours.saw, theirs.saw);
}

fn sum<K: Ord>(ours: &mut BTreeMap<K, u64>, theirs: BTreeMap<K, u64>) {
    for (key, n) in theirs {
        add(ours.entry(key).or_default(), n);
    }
}
