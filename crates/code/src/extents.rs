//! Finds the fragments of code that make up one function.
//!
//! A compiler splits a function: its cold blocks go to a distant `.cold` fragment with its own FDE, which
//! looks like another function's. A fragment is joined to a parent only if all evidence says so. A fragment
//! that is not joined costs only speed: it stays a function of its own, and jumps between the two go to the
//! original.
//!
//! A fragment F is a cold part of P if
//! - nothing calls into it, and it is no PLT;
//! - all jumps into it (to its start or its middle) come from P or from another cold part of P. The same
//!   holds for all its landing pads that another fragment's exception table lists;
//! - it cannot be entered in another way: the frame at its start is not that of a function just called, or F
//!   has no name and nothing holds its address. A symbol `P.cold` is equally good evidence;
//! - P and F have the same personality routine, so one exception table can serve both.

use crate::{Branches, Ranges};
use addr::{Avma, AvmaRange};
use std::fmt;
use unwind::Fde;

/// The input of [`merge`].
#[derive(Clone, Copy)]
pub struct MergeInput<'a> {
    /// All FDEs of a module, sorted by start.
    pub fdes: &'a [Fde],
    /// Returns whether, at the start of this FDE (by index), CFA is rsp + 8 and no register is saved. This is
    /// the frame of a function that was just called.
    pub starts_like_entry: &'a dyn Fn(usize) -> bool,
    /// All direct branches of the module.
    pub branches: &'a Branches,
    /// Returns the function symbol that starts exactly at this address.
    pub name: &'a dyn Fn(Avma) -> Option<&'a str>,
    /// Returns whether data holds this address or other modules can look it up: a relocation, an exported
    /// symbol, an initializer. (Addresses that instructions compute are in `branches`.)
    pub is_address_taken: &'a dyn Fn(Avma) -> bool,
    /// Returns the starts of the function symbols in a range.
    pub symbols_in: &'a dyn Fn(AvmaRange) -> Vec<Avma>,
    /// Landing pads outside the FDE (by index) whose exception table lists them.
    pub far_pads: &'a [(usize, Avma)],
    /// The module's procedure linkage tables.
    pub plt: &'a [AvmaRange],
}

impl fmt::Debug for MergeInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergeInput")
            .field("fdes", &self.fdes.len())
            .field("far_pads", &self.far_pads)
            .field("plt", &self.plt)
            .finish_non_exhaustive()
    }
}

/// One function and all of its fragments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The address at which it is entered.
    pub entry: Avma,
    /// Its parts: the part with the entry first, then cold parts by address.
    pub parts: Vec<AvmaRange>,
    /// The FDE of each part, by index in the input.
    pub fdes: Vec<usize>,
    /// Further entries: function symbols inside a part, and addresses inside a part that other code calls.
    pub other_entries: Vec<Avma>,
    /// Whether it is (a part of) a procedure linkage table, not a function.
    pub plt: bool,
}

impl Extent {
    /// Returns whether several functions seem to share one FDE (hand-written assembly).
    #[must_use]
    pub fn multiple_entries(&self) -> bool {
        !self.other_entries.is_empty()
    }
}

/// The functions of a module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extents {
    /// The functions, by rising entry.
    pub functions: Vec<Extent>,
    /// FDEs that share bytes with another FDE. None of them is trusted, and all are left out.
    pub overlapping: usize,
    /// Empty FDEs, left out.
    pub empty: usize,
}

/// The state of one FDE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Not trusted.
    Dropped,
    Plt,
    Function,
    /// A cold part of this FDE.
    ColdOf(usize),
    /// May be a cold part.
    Open,
}

/// A fragment whose parent is not known yet.
struct Candidate {
    fde: usize,
    /// The FDEs that jump into it.
    sources: Vec<usize>,
}

/// Joins cold fragments to their functions.
#[must_use]
pub fn merge(input: &MergeInput) -> Extents {
    let mut merger = Merger { input, states: Vec::new(), overlapping: 0, empty: 0 };
    merger.drop_unsound();
    let open = merger.candidates();
    merger.decide(open);
    merger.finish()
}

struct Merger<'m, 'a> {
    input: &'m MergeInput<'a>,
    states: Vec<State>,
    overlapping: usize,
    empty: usize,
}

impl Merger<'_, '_> {
    fn drop_unsound(&mut self) {
        let fdes = self.input.fdes;
        self.states = vec![State::Function; fdes.len()];
        let plt: Ranges = self.input.plt.iter().copied().collect();
        // The FDE that reaches furthest so far.
        let mut widest: Option<usize> = None;
        for (i, fde) in fdes.iter().enumerate() {
            if fde.range.is_empty() {
                self.states[i] = State::Dropped;
                self.empty += 1;
                continue;
            }
            if let Some(w) = widest
                && fdes[w].range.overlaps(&fde.range)
            {
                for j in [w, i] {
                    if self.states[j] != State::Dropped {
                        self.states[j] = State::Dropped;
                        self.overlapping += 1;
                    }
                }
            } else if plt.overlaps(fde.range) {
                self.states[i] = State::Plt;
            }
            if widest.is_none_or(|w| fdes[w].range.end < fde.range.end) {
                widest = Some(i);
            }
        }
    }

    /// Returns the trusted FDE that covers an address.
    fn owner(&self, at: Avma) -> Option<usize> {
        let after = self.input.fdes.partition_point(|f| f.range.start <= at);
        // Nothing overlaps a trusted FDE, so only dropped ones can be between.
        let i = (0..after).rev().find(|&i| self.states[i] != State::Dropped)?;
        let known = matches!(self.states[i], State::Function | State::Open | State::ColdOf(_));
        (known && self.input.fdes[i].range.contains(at)).then_some(i)
    }

    fn candidates(&mut self) -> Vec<Candidate> {
        let mut far_pads: Vec<(usize, usize)> = self
            .input
            .far_pads
            .iter()
            .filter_map(|&(from, pad)| Some((self.owner(pad)?, from)))
            .filter(|(in_fde, from)| in_fde != from)
            .collect();
        far_pads.sort_unstable();
        let mut open = Vec::new();
        for fde in 0..self.states.len() {
            if self.states[fde] != State::Function {
                continue;
            }
            let pads_from = far_pads.partition_point(|p| p.0 < fde);
            let pads = far_pads.get(pads_from..).unwrap_or_default();
            let pads = pads.iter().take_while(|p| p.0 == fde).map(|p| p.1);
            if let Some(sources) = self.sources(fde, pads)
                && self.may_be_cold(fde)
            {
                open.push(Candidate { fde, sources });
            }
        }
        for c in &open {
            self.states[c.fde] = State::Open;
        }
        open
    }

    /// Returns the other FDEs that send control into this one. Returns `None` if something calls into it,
    /// nothing jumps into it, or a jump comes from code that belongs to no FDE.
    fn sources(&self, fde: usize, pads: impl Iterator<Item = usize>) -> Option<Vec<usize>> {
        let range = self.input.fdes[fde].range;
        if self.input.branches.calls_into(range).len() > 0 {
            return None;
        }
        let mut sources: Vec<usize> = pads.collect();
        for (from, _) in self.input.branches.jumps_into(range) {
            if !range.contains(from) {
                let source = self.owner(from)?;
                if sources.last() != Some(&source) {
                    sources.push(source);
                }
            }
        }
        sources.sort_unstable();
        sources.dedup();
        let known = sources
            .iter()
            .all(|&s| self.states.get(s).is_some_and(|s| !matches!(s, State::Dropped | State::Plt)));
        (known && !sources.is_empty()).then_some(sources)
    }

    fn may_be_cold(&self, fde: usize) -> bool {
        let start = self.input.fdes[fde].range.start;
        let name = (self.input.name)(start);
        if name.is_some_and(|n| cold_base(n).is_some()) {
            return true;
        }
        let other_entry =
            name.is_some() || self.input.branches.is_taken(start) || (self.input.is_address_taken)(start);
        !other_entry || !(self.input.starts_like_entry)(fde)
    }

    /// Finds the parents. Each round decides the fragments whose sources are all decided. Some fragments wait
    /// for each other in a ring. If only one function enters the ring, they belong to this function. Else the
    /// fragments most like functions become functions.
    fn decide(&mut self, mut open: Vec<Candidate>) {
        while !open.is_empty() {
            let before = open.len();
            open.retain(|c| match self.parent(c) {
                Some(state) => {
                    self.states[c.fde] = state;
                    false
                }
                None => true,
            });
            if open.len() < before {
                continue;
            }
            if let Some((fde, state)) = self.through_others(&open) {
                self.states[fde] = state;
                open.retain(|c| c.fde != fde);
                continue;
            }
            let settled_source = |c: &Candidate| c.sources.iter().any(|&s| self.states[s] != State::Open);
            let entry_like: Vec<bool> = open.iter().map(|c| (self.input.starts_like_entry)(c.fde)).collect();
            let mut chosen: Vec<bool> =
                open.iter().zip(&entry_like).map(|(c, &like)| like && settled_source(c)).collect();
            if !chosen.contains(&true) {
                chosen = entry_like;
            }
            if !chosen.contains(&true) {
                chosen = vec![true; open.len()];
            }
            for (c, _) in open.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
                self.states[c.fde] = State::Function;
            }
            let mut chosen = chosen.into_iter();
            open.retain(|_| !chosen.next().unwrap_or(true));
        }
    }

    /// Decides one fragment of a group of fragments that jump into each other and that only one function
    /// enters.
    fn through_others(&self, open: &[Candidate]) -> Option<(usize, State)> {
        for c in open {
            let mut group = vec![c];
            let mut roots: Vec<usize> = Vec::new();
            let mut next = 0;
            while let Some(member) = group.get(next) {
                next += 1;
                for &s in &member.sources {
                    match self.states[s] {
                        State::ColdOf(p) => roots.push(p),
                        State::Open => {
                            if let Some(other) = open.iter().find(|o| o.fde == s)
                                && !group.iter().any(|g| g.fde == s)
                            {
                                group.push(other);
                            }
                        }
                        _ => roots.push(s),
                    }
                    roots.dedup();
                }
            }
            if let Some(&root) = roots.first()
                && roots.iter().all(|r| *r == root)
            {
                // A fragment that cannot be joined is a function; the others are then entered by two
                // functions.
                let odd = group.iter().find(|g| self.joined(g.fde, root) == State::Function);
                let fde = odd.unwrap_or(&c).fde;
                return Some((fde, self.joined(fde, root)));
            }
        }
        None
    }

    /// Returns a cold part of `parent`, unless one exception table cannot serve both.
    fn joined(&self, fde: usize, parent: usize) -> State {
        let (a, b) = (&self.input.fdes[fde], &self.input.fdes[parent]);
        let same = a.personality == b.personality && a.signal_frame == b.signal_frame;
        if same { State::ColdOf(parent) } else { State::Function }
    }

    /// Returns the state of a fragment; `None` if it is not known yet.
    fn parent(&self, c: &Candidate) -> Option<State> {
        let fdes = self.input.fdes;
        let mut roots: Vec<usize> = Vec::new();
        let mut waiting = false;
        for &s in &c.sources {
            match self.states[s] {
                State::Open => waiting = true,
                State::ColdOf(p) => roots.push(p),
                _ => roots.push(s),
            }
        }
        roots.sort_unstable();
        roots.dedup();
        match (&roots[..], waiting) {
            ([parent], false) => Some(self.joined(c.fde, *parent)),
            ([], _) | (_, true) if roots.len() < 2 => None,
            // Two functions jump here. Only a name can decide between them.
            _ => {
                let base = (self.input.name)(fdes[c.fde].range.start).and_then(cold_base);
                let mut named = roots
                    .iter()
                    .filter(|&&r| base.is_some() && (self.input.name)(fdes[r].range.start) == base);
                match (named.next(), named.next()) {
                    (Some(&parent), None) => Some(self.joined(c.fde, parent)),
                    _ => Some(State::Function),
                }
            }
        }
    }

    fn finish(self) -> Extents {
        let fdes = self.input.fdes;
        let is_function = |s: &&State| matches!(s, State::Function | State::Plt);
        let mut functions: Vec<Extent> = Vec::with_capacity(self.states.iter().filter(is_function).count());
        let mut place = vec![usize::MAX; fdes.len()];
        for (i, state) in self.states.iter().enumerate() {
            if is_function(&state) {
                place[i] = functions.len();
                functions.push(Extent {
                    entry: fdes[i].range.start,
                    parts: vec![fdes[i].range],
                    fdes: vec![i],
                    other_entries: Vec::new(),
                    plt: *state == State::Plt,
                });
            }
        }
        for (i, state) in self.states.iter().enumerate() {
            if let State::ColdOf(parent) = *state
                && let Some(f) = functions.get_mut(place[parent])
            {
                f.parts.push(fdes[i].range);
                f.fdes.push(i);
            }
        }
        for f in functions.iter_mut().filter(|f| !f.plt) {
            f.other_entries = other_entries(self.input, &f.parts);
        }
        Extents { functions, overlapping: self.overlapping, empty: self.empty }
    }
}

fn other_entries(input: &MergeInput, parts: &[AvmaRange]) -> Vec<Avma> {
    let mut found = Vec::new();
    for part in parts {
        found.extend((input.symbols_in)(*part).into_iter().filter(|at| part.contains(*at)));
        found.extend(input.branches.calls_into(*part).map(|(_, to)| to));
        found.retain(|at| *at != part.start);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the function whose cold part a symbol names: `f.cold` (gcc, clang), `f.cold.7` (old gcc).
fn cold_base(name: &str) -> Option<&str> {
    let (base, rest) = name.rsplit_once(".cold")?;
    let counted = rest.strip_prefix('.').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    (!base.is_empty() && (rest.is_empty() || counted)).then_some(base)
}

#[cfg(test)]
#[path = "extents_tests.rs"]
mod tests;
