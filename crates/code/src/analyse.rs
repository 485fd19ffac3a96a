//! Builds a function's graph from its bytes, or refuses.

use crate::decode::Surroundings;
use crate::explore::Explorer;
use crate::table::{self, Known};
use crate::{Cfg, Dest, Refusal, graph, stack_check};
use addr::{Avma, AvmaRange};
use rustc_hash::{FxHashMap, FxHashSet};
use unwind::Row;

/// The largest size of a function. Bytes.
const MAX_BYTES: u64 = 1 << 20;
/// The most rounds of finding tables in code that other tables lead to. Nested switches in real code need
/// under ten.
const MAX_ROUNDS: usize = 64;

/// One fragment of a function.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The fragment's addresses.
    pub range: AvmaRange,
    /// Its bytes, as many as the range has.
    pub bytes: &'a [u8],
}

/// The callee of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// Code at this address (or a PLT stub).
    Direct(Avma),
    /// The function whose address is in this memory slot.
    Slot(Avma),
}

/// The known behaviour of a callee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalleeKind {
    /// Nothing special.
    Ordinary,
    /// It never returns.
    NoReturn,
    /// It may return twice (setjmp, vfork, getcontext).
    ReturnsTwice,
    /// It reads its return address (dlsym, dlopen).
    CallerSensitive,
}

/// A function to analyse.
pub struct Input<'a> {
    /// The address at which it is entered; inside the first part.
    pub entry: Avma,
    /// Its fragments, the main one first, none overlapping.
    pub parts: &'a [Part<'a>],
    /// The unwind rows of all parts, rising by address.
    pub rows: &'a [Row],
    /// The addresses of its landing pads.
    pub landing_pads: &'a [Avma],
    /// Returns the bytes of a range if they are read-only for the life of the process.
    pub constant: &'a dyn Fn(AvmaRange) -> Option<Vec<u8>>,
    /// Returns the known behaviour of a called function.
    pub callee: &'a dyn Fn(Callee) -> CalleeKind,
    /// Returns whether calls certainly enter a function at an address outside the parts, so it is not a
    /// fragment that only jumps lead to. Such a function expects no status flags (System V psABI 3.2.1).
    pub is_function: &'a dyn Fn(Avma) -> bool,
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// Builds a function's graph.
///
/// The graph holds all code that is reached from the entry and the landing pads over direct branches and the
/// jump tables that were found. The graph is closed: control that follows its edges from the entry reaches
/// only its blocks. Everything that was not understood is an outside destination or a
/// [`crate::Term::Indirect`]. A proof about a jump table holds for control that came along the graph's edges.
///
/// # Errors
/// The reason why a copy of the function could be wrong.
pub fn analyse(input: &Input<'_>) -> Result<Cfg, Refusal> {
    check_parts(input)?;
    let ranges: Vec<AvmaRange> = input.parts.iter().map(|p| p.range).collect();
    let around = Surroundings { entry: input.entry, parts: &ranges, callee: input.callee };
    let mut ex = Explorer::new(around, input.parts, input.rows);
    ex.explore(input.entry)?;
    if !ex.is_start(input.entry) {
        // The function begins with an instruction that stays in the original.
        return Err(Refusal::ReadsOwnAddress);
    }
    for &pad in input.landing_pads {
        if ex.inside(pad) {
            ex.explore(pad)?;
        }
    }

    let mut known: FxHashMap<Avma, Known> = FxHashMap::default();
    let mut dropped: FxHashSet<Avma> = FxHashSet::default();
    let mut cfg = graph::build(input.entry, input.landing_pads, &ex, &known);
    let mut complete = !table::has_candidates(&cfg);
    let mut rounds = 0;
    while !complete && rounds < MAX_ROUNDS {
        rounds += 1;
        complete = table::round(&cfg, input, &mut ex, &mut known, &mut dropped)?;
        cfg = graph::build(input.entry, input.landing_pads, &ex, &known);
    }
    graph::prune(&mut cfg);
    // Without a fixpoint nothing is proven: an edge may be missing.
    if complete && !cfg.tables.is_empty() {
        table::prove(&mut cfg, &known);
    }
    stack_check(&cfg, input.rows)?;
    cfg.functions = functions(&cfg, input.is_function);
    Ok(cfg)
}

/// Returns the outside destinations that are functions.
fn functions(cfg: &Cfg, is_function: &dyn Fn(Avma) -> bool) -> Vec<Avma> {
    let mut outside = Vec::new();
    for b in cfg.block_ids() {
        cfg.successors(b, |d| {
            if let Dest::Outside(at) = d {
                outside.push(at);
            }
        });
    }
    outside.sort_unstable();
    outside.dedup();
    outside.retain(|&at| !cfg.parts.iter().any(|p| p.contains(at)) && is_function(at));
    outside
}

fn check_parts(input: &Input<'_>) -> Result<(), Refusal> {
    let mut total = 0u64;
    for (n, p) in input.parts.iter().enumerate() {
        if p.range.is_empty() || p.bytes.len() as u64 != p.range.len() {
            return Err(Refusal::Unreadable);
        }
        if input.parts[..n].iter().any(|q| q.range.overlaps(&p.range)) {
            return Err(Refusal::OverlappingCode);
        }
        total = total.saturating_add(p.range.len());
    }
    if total > MAX_BYTES {
        return Err(Refusal::TooLarge);
    }
    if !input.parts.first().is_some_and(|p| p.range.contains(input.entry)) {
        return Err(Refusal::Unreadable);
    }
    Ok(())
}
