//! What a layout makes the CPU do: how often the counted functions branch, jump and call, and how much code
//! they execute.
//!
//! The figures follow from exact counts and from the bytes before and after; nothing is measured. Names are
//! those of BOLT's dyno-stats where BOLT has the figure. Taken branches are taken conditional branches and
//! direct jumps; calls, returns and indirect jumps are counted separately. The instructions of a function are
//! visited in the order of addresses. Each runs as often as the original instruction that it copies. An extra
//! jump runs as often as the edge that it stands for. A block without a clone counts as it runs in the
//! original. A model (`loop_copies`) distributes the iterations of an unrolled loop over its copies.

use crate::analyse::program::Program;
use crate::build::caches::BuiltCache;
use crate::build::map_store;
use crate::plan::candidate::SiteTargets;
use crate::plan::inlining;
use crate::plan::laid_out::LaidOut;
use crate::plan::loop_copies::{Flows, LoopCopies};
use addr::{Addr, Avma};
use code::{BlockId, Cfg, Dest, Term};
use emit::{AddressMap, Link};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use layout::{Footprint, Span};
use profile::Counts;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use splice::{CachePlan, RedirectKind};

/// How often events happened. All figures except lines and pages count executions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DynoStats {
    /// Executed instructions.
    pub instructions: u64,
    /// Bytes of these instructions.
    pub bytes: u64,
    /// Conditional branches.
    pub conditional_branches: u64,
    /// Conditional branches that were taken.
    pub taken_conditional_branches: u64,
    /// Conditional branches that were not taken.
    pub non_taken_conditional_branches: u64,
    /// Direct jumps, including tail calls, and jumps through a slot at a fixed address.
    pub unconditional_branches: u64,
    /// All direct branches.
    pub total_branches: u64,
    /// Direct branches that were taken: taken conditional branches and all jumps.
    pub taken_branches: u64,
    /// How often control went from one block to the next without a taken branch.
    pub fall_throughs: u64,
    /// Indirect jumps: jump tables, and tail calls by pointer.
    pub indirect_jumps: u64,
    /// Calls, direct and indirect.
    pub calls: u64,
    /// Calls through a pointer; a call through a slot at a fixed address is not counted here.
    pub indirect_calls: u64,
    /// Direct calls of stubs of the procedure linkage table.
    pub plt_calls: u64,
    /// Returns.
    pub returns: u64,
    /// Jumps that only the clones have, and redirects at entries that calls from clones pass. Calls through
    /// pointers pass the redirects of their observed callees.
    pub inserted_jumps: u64,
    /// Jumps that only the originals have.
    pub dropped_jumps: u64,
    /// How often control left a clone for its original in the middle of the function.
    pub exits_to_original: u64,
    /// Cache lines of 64 bytes that hold executed code. Not executions.
    pub lines: u64,
    /// Pages of 4096 bytes that hold executed code. Not executions.
    pub pages: u64,
    /// The fewest cache lines that hold 99% of the executed bytes. Not executions.
    pub hot_lines: u64,
    /// The fewest pages that hold 99% of the executed bytes. Not executions.
    pub hot_pages: u64,
}

/// The same functions before and after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DynoReport {
    /// How many functions were counted and cloned.
    pub functions: usize,
    /// The functions as the program has them.
    pub before: DynoStats,
    /// The functions with their clones.
    pub after: DynoStats,
}

/// A function's counts, its clone's address map, and the text that holds the clone.
#[derive(Clone, Debug)]
pub(crate) struct Counted<'a> {
    pub(crate) cfg: &'a Cfg,
    pub(crate) counts: &'a Counts,
    pub(crate) map: &'a AddressMap,
    pub(crate) text: &'a [u8],
    /// The address where `text` starts.
    pub(crate) text_at: Avma,
    /// How often clones of callers run the function inlined, and the inlined path.
    pub(crate) inlined: (u64, &'a [BlockId]),
    /// The callees of its calls through pointers, by the call's address: each callee with its share of the
    /// calls. Thousandths.
    pub(crate) pointers: FxHashMap<Avma, Vec<(Avma, u64)>>,
}

impl Counted<'_> {
    /// Decodes the clone's instruction at `at`.
    fn decode(&self, at: Avma) -> Instruction {
        let from = at.since(self.text_at).and_then(|n| usize::try_from(n).ok());
        let bytes = from.and_then(|n| self.text.get(n..)).unwrap_or_default();
        Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode()
    }

    /// Returns the jumps to clones that `n` executions of a call run in its callees' originals, each with its
    /// executions. `call` is the address of the original call.
    fn jumps_of_callees<'j>(
        &self,
        i: &Instruction,
        call: Avma,
        n: u64,
        jumps: &'j Jumps,
    ) -> Vec<(&'j Instruction, u64)> {
        let part = |share: u64| u64::try_from(u128::from(n) * u128::from(share) / 1000).unwrap_or(u64::MAX);
        match i.flow_control() {
            FlowControl::IndirectCall => {
                let callees = self.pointers.get(&call).into_iter().flatten();
                callees.filter_map(|(to, share)| Some((jumps.get(to)?, part(*share)))).collect()
            }
            _ if i.is_call_near() => {
                target(i).and_then(|to| jumps.get(&to)).map(|jump| (jump, n)).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Computes the figures of the functions in `chosen` that were counted and have a clone in `caches`. Returns
/// `None` if there is none.
pub(crate) fn of_caches(
    program: &Program<'_>,
    chosen: &[LaidOut],
    caches: &[BuiltCache],
) -> Option<DynoReport> {
    let counted: FxHashMap<Avma, &LaidOut> =
        chosen.iter().filter(|c| c.is_counted()).map(|c| (c.analysed.cfg.entry, c)).collect();
    let caches = || caches.iter().map(|c| &c.plan);
    let clones: Vec<(&CachePlan, &LaidOut, AddressMap)> = caches()
        .flat_map(|cache| {
            map_store::read(&cache.map).into_iter().map(move |(entry, map)| (cache, entry, map))
        })
        .filter_map(|(cache, entry, map)| Some((cache, *counted.get(&entry)?, map)))
        .collect();
    let inlined = inlining::inlined_runs(chosen);
    let in_tables: FxHashSet<Avma> = program.vtables().iter().map(|v| v.function).collect();
    let functions: Vec<Counted<'_>> = clones
        .iter()
        .map(|(cache, c, map)| Counted {
            cfg: &c.analysed.cfg,
            counts: &c.counts,
            map,
            text: &cache.text,
            text_at: cache.text_at,
            inlined: (
                inlined.get(&c.analysed.cfg.entry).copied().unwrap_or(0),
                c.way.as_deref().unwrap_or_default(),
            ),
            pointers: pointers(c, &in_tables),
        })
        .collect();
    let mut jumps = Jumps::default();
    for r in caches().flat_map(|cache| &cache.records).filter(|r| r.kind == RedirectKind::Entry) {
        let jump = Decoder::with_ip(64, r.new_bytes(), r.at.0, DecoderOptions::NONE).decode();
        let Some(function) = program.find(r.at).filter(|_| jump.is_jmp_near()) else { continue };
        // If there are several, use the jump nearest to the entry.
        let nearest = jumps.entry(program.extent(function).entry).or_insert(jump);
        if jump.ip() < nearest.ip() {
            *nearest = jump;
        }
    }
    (!functions.is_empty()).then(|| dyno(&functions, &jumps, &|at| program.bound(at).is_some()))
}

/// Returns the callees of a function's calls through pointers that hold the entries of originals. Slots of
/// virtual tables lead to clones.
fn pointers(c: &LaidOut, in_tables: &FxHashSet<Avma>) -> FxHashMap<Avma, Vec<(Avma, u64)>> {
    let of_site = |s: &SiteTargets| {
        let call = c.analysed.cfg.insts.get(s.inst.index())?;
        Some((call.at, s.parts(1000).filter(|(callee, _)| !in_tables.contains(callee)).collect()))
    };
    c.targets.iter().filter_map(of_site).collect()
}

/// The jump that leads from an original to its clone, by the original's entry.
pub(crate) type Jumps = FxHashMap<Avma, Instruction>;

/// Sums up all functions. `is_stub` recognises the stubs of the procedure linkage table.
pub(crate) fn dyno(functions: &[Counted<'_>], jumps: &Jumps, is_stub: &dyn Fn(Avma) -> bool) -> DynoReport {
    let (mut before, mut after) = (Tally::default(), Tally::default());
    for f in functions {
        before.original(f.cfg, f.counts, is_stub, &|_| true);
        after.clone(f, jumps, is_stub);
    }
    DynoReport { functions: functions.len(), before: before.finish(), after: after.finish() }
}

#[derive(Debug, Default)]
struct Tally {
    stats: DynoStats,
    spans: Vec<Span>,
}

/// The control flow of a function, with its counts.
struct Flow<'a> {
    cfg: &'a Cfg,
    counts: &'a Counts,
    /// How often the function runs inlined in other clones, and its inlined path.
    less: (u64, &'a [BlockId]),
}

impl Flow<'_> {
    fn block(&self, b: BlockId) -> u64 {
        let less = if self.less.1.contains(&b) { self.less.0 } else { 0 };
        self.counts.block(b).saturating_sub(less)
    }

    /// Returns how often an edge out of a block is taken, by its index among the block's edges and its
    /// destination.
    fn edge(&self, b: BlockId, index: usize, dest: Dest) -> u64 {
        let all = self.all(b, index);
        let along = |w: &[BlockId]| w[0] == b && Dest::Block(w[1]) == dest;
        let less = if self.less.1.windows(2).any(along) { self.less.0 } else { 0 };
        all.saturating_sub(less)
    }

    /// Same as [`Flow::edge`], including executions in other clones.
    fn all(&self, b: BlockId, index: usize) -> u64 {
        self.counts.edges(b).get(index).copied().unwrap_or(0)
    }

    /// Returns how often a block's edge to the place accepted by `is` was taken. If two edges lead there, the
    /// first counts.
    fn to(&self, b: BlockId, is: impl Fn(Avma) -> bool) -> u64 {
        let (mut index, mut found) = (0, None);
        self.cfg.successors(b, |dest| {
            if found.is_none() && is(self.start(dest)) {
                found = Some(self.edge(b, index, dest));
            }
            index += 1;
        });
        found.unwrap_or(0)
    }

    fn start(&self, dest: Dest) -> Avma {
        match dest {
            Dest::Block(b) => self.cfg.blocks.get(b.index()).map_or(Avma(0), |b| b.range.start),
            Dest::Outside(at) => at,
        }
    }
}

impl Tally {
    /// Adds `n` executions of an instruction. `taken` is how often a conditional branch jumped. Returns how
    /// often control continued behind the instruction.
    fn executed(&mut self, i: &Instruction, n: u64, taken: u64, is_stub: &dyn Fn(Avma) -> bool) -> u64 {
        let s = &mut self.stats;
        let (at, len) = (i.ip(), i.len() as u64);
        add(&mut s.instructions, n);
        add(&mut s.bytes, n.saturating_mul(len));
        match self.spans.last_mut().filter(|last| last.at + last.size == at && last.count == n) {
            Some(last) => last.size += len,
            None => self.spans.push(Span { at, size: len, count: n }),
        }
        match i.flow_control() {
            FlowControl::ConditionalBranch => {
                let taken = taken.min(n);
                add(&mut s.conditional_branches, n);
                add(&mut s.taken_conditional_branches, taken);
                add(&mut s.non_taken_conditional_branches, n - taken);
                n - taken
            }
            FlowControl::UnconditionalBranch => {
                add(&mut s.unconditional_branches, n);
                0
            }
            FlowControl::IndirectBranch => {
                // A jump through a slot at a fixed address: its destination is known.
                let known = i.is_ip_rel_memory_operand();
                add(if known { &mut s.unconditional_branches } else { &mut s.indirect_jumps }, n);
                0
            }
            FlowControl::Return => {
                add(&mut s.returns, n);
                0
            }
            FlowControl::Call => {
                add(&mut s.calls, n);
                if i.op0_kind() == OpKind::NearBranch64 && is_stub(Avma(i.near_branch64())) {
                    add(&mut s.plt_calls, n);
                }
                n
            }
            FlowControl::IndirectCall => {
                add(&mut s.calls, n);
                // Same as for jumps above.
                if !i.is_ip_rel_memory_operand() {
                    add(&mut s.indirect_calls, n);
                }
                n
            }
            _ => n,
        }
    }

    /// Adds the blocks of the original that `wanted` accepts.
    fn original(
        &mut self,
        cfg: &Cfg,
        counts: &Counts,
        is_stub: &dyn Fn(Avma) -> bool,
        wanted: &dyn Fn(BlockId) -> bool,
    ) {
        let flow = Flow { cfg, counts, less: (0, &[]) };
        for b in cfg.block_ids().filter(|&b| wanted(b)) {
            let mut through = flow.block(b);
            for inst in cfg.insts_of(b) {
                let taken = match inst.decoded.flow_control() {
                    FlowControl::ConditionalBranch => flow.all(b, 0),
                    _ => 0,
                };
                through = self.executed(&inst.decoded, flow.block(b), taken, is_stub);
            }
            if matches!(
                cfg.blocks[b.index()].term,
                Term::Fall { .. } | Term::Cond { .. } | Term::CondShort { .. }
            ) {
                add(&mut self.stats.fall_throughs, through);
            }
        }
    }

    /// Adds a clone, and the blocks of its function that ran without a clone.
    fn clone(&mut self, f: &Counted<'_>, jumps: &Jumps, is_stub: &dyn Fn(Avma) -> bool) {
        let flow = Flow { cfg: f.cfg, counts: f.counts, less: f.inlined };
        let places = Places::new(&flow, f.map);
        let mut loops = LoopCopies::new(f.map, &places);
        let mut copy = None;
        let mut cloned = vec![false; f.cfg.blocks.len()];
        // The current block, and how often control continues to the next instruction.
        let (mut block, mut through) = (BlockId(0), 0);
        // Assume that guards hold and inlined paths are not left; then the code for other cases never runs.
        for (place, e) in f.map.in_line().iter().enumerate() {
            let is_extra = e.link == Link::Extra && !f.map.is_guard(place);
            let own = (!is_extra).then(|| places.block_at(e.original)).flatten();
            if let Some(b) = own {
                // This holds also from one copy of a loop to the next.
                if b != block || e.link == Link::Again && places.starts(e.original) {
                    add(&mut self.stats.fall_throughs, through);
                }
                block = b;
                if let Some(c) = cloned.get_mut(b.index()) {
                    *c = true;
                }
            }
            if e.link == Link::Dropped {
                through = flow.block(block);
                if !places.direct.contains(&e.original) {
                    add(&mut self.stats.dropped_jumps, through);
                }
                continue;
            }
            let i = f.decode(f.map.fragments().address(e.at));
            if !is_extra {
                copy = loops.next(e.original);
            }
            let part = |n: u64| copy.map_or(n, |c| c.part(n));
            let n = match (is_extra, i.mnemonic()) {
                (true, Mnemonic::Jmp) => {
                    let n = extra_jumps(&flow, block, e.original, through, &part);
                    add(&mut self.stats.inserted_jumps, n);
                    n
                }
                (true, _) => through,
                _ => part(flow.block(block)),
            };
            let (taken, exits) = places.jumps(block, &i, n, &part);
            add(&mut self.stats.exits_to_original, exits);
            through = self.executed(&i, n, taken, is_stub);
            for (jump, n) in f.jumps_of_callees(&i, e.original, n, jumps) {
                self.executed(jump, n, n, is_stub);
                add(&mut self.stats.inserted_jumps, n);
            }
        }
        self.original(f.cfg, f.counts, is_stub, &|b| !cloned.get(b.index()).copied().unwrap_or(true));
    }

    fn finish(mut self) -> DynoStats {
        let s = &mut self.stats;
        s.total_branches = s.conditional_branches.saturating_add(s.unconditional_branches);
        s.taken_branches = s.taken_conditional_branches.saturating_add(s.unconditional_branches);
        let touched = Footprint::of(&self.spans);
        (s.lines, s.pages) = (touched.lines, touched.pages);
        s.hot_lines = layout::hottest(&self.spans, layout::LINE_BYTES, HOT_PER_10K);
        s.hot_pages = layout::hottest(&self.spans, layout::PAGE_BYTES, HOT_PER_10K);
        self.stats
    }
}

/// The share of executed bytes that hot lines and pages hold.
const HOT_PER_10K: u64 = 9900;

fn add(to: &mut u64, n: u64) {
    *to = to.saturating_add(n);
}

fn target(i: &Instruction) -> Option<Avma> {
    (i.op0_kind() == OpKind::NearBranch64).then(|| Avma(i.near_branch64()))
}

/// Returns how often a jump that only the clone has runs: as often as the edge for which it stands. `through`
/// is how often control reached the jump by falling through. `part` scales the block's counts to the current
/// copy of a loop.
fn extra_jumps(flow: &Flow<'_>, block: BlockId, to: Avma, through: u64, part: &dyn Fn(u64) -> u64) -> u64 {
    match flow.cfg.blocks.get(block.index()).map(|b| &b.term) {
        // The jump follows the branch that was not taken.
        Some(Term::Cond { .. }) => through,
        // A short branch may be followed by two jumps, one for each edge. If both lead to one place, they
        // cannot be distinguished.
        _ => part(flow.to(block, |start| start == to)),
    }
}

/// A function with its clone, by address.
struct Places<'a> {
    flow: &'a Flow<'a>,
    map: &'a AddressMap,
    /// Start, end and number of each block, by address.
    blocks: Vec<(Avma, Avma, BlockId)>,
    /// Direct calls.
    direct: FxHashSet<Avma>,
}

impl Flows for Places<'_> {
    fn block_of(&self, at: Avma) -> Option<Avma> {
        self.block_at(at).map(|b| self.flow.start(Dest::Block(b)))
    }

    fn ran(&self, block: Avma) -> u64 {
        self.block_at(block).map_or(0, |b| self.flow.block(b))
    }

    fn goes(&self, from: Avma, to: Avma) -> u64 {
        self.block_at(from).map_or(0, |b| self.flow.to(b, |at| at == to))
    }
}

impl<'a> Places<'a> {
    fn new(flow: &'a Flow<'a>, map: &'a AddressMap) -> Self {
        let cfg = flow.cfg;
        let mut blocks: Vec<_> =
            cfg.blocks.iter().zip(cfg.block_ids()).map(|(b, id)| (b.range.start, b.range.end, id)).collect();
        blocks.sort_unstable_by_key(|p| p.0);
        let direct = cfg.insts.iter().filter(|i| i.decoded.is_call_near()).map(|i| i.at).collect();
        Self { flow, map, blocks, direct }
    }

    fn block_at(&self, at: Avma) -> Option<BlockId> {
        let after = self.blocks.partition_point(|p| p.0 <= at);
        self.blocks.get(after.checked_sub(1)?).filter(|p| at < p.1).map(|p| p.2)
    }

    /// Returns whether a block of the original starts at `at`.
    fn starts(&self, at: Avma) -> bool {
        self.blocks.binary_search_by_key(&at, |p| p.0).is_ok()
    }

    /// Returns whether the clone's branch to `to` stands for a branch to `start`. The branch may lead to a
    /// dropped jump, or to a jump that leads there.
    fn is(&self, start: Avma, to: Avma) -> bool {
        if !self.map.fragments().contains(to) {
            return start == to;
        }
        self.map.to_clone(start) == Some(to) || self.map.to_original(to) == Some(start)
    }

    /// Returns how often an instruction of the clone that ran `n` times jumped, and how often to the original.
    /// `part` scales the counts of the block to the current copy of a loop.
    fn jumps(&self, block: BlockId, i: &Instruction, n: u64, part: &dyn Fn(u64) -> u64) -> (u64, u64) {
        let to = target(i);
        let taken = match (i.flow_control(), to) {
            (FlowControl::ConditionalBranch, Some(to)) => {
                part(self.flow.to(block, |start| self.is(start, to)))
            }
            (FlowControl::UnconditionalBranch, _) => n,
            _ => 0,
        };
        let original = to.is_some_and(|to| !self.map.fragments().contains(to) && self.starts(to));
        let exits = match i.flow_control() {
            FlowControl::IndirectBranch => self.exits(block),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch if original => taken,
            _ => 0,
        };
        (taken, exits)
    }

    /// Returns how often a jump through a table leads to the original.
    fn exits(&self, block: BlockId) -> u64 {
        let flow = self.flow;
        let Some(Term::Switch { table }) = flow.cfg.blocks.get(block.index()).map(|b| &b.term) else {
            return 0;
        };
        if flow.cfg.tables.get(table.index()).is_none_or(|t| t.cloneable.is_none()) {
            return flow.block(block);
        }
        let (mut index, mut exits) = (0, 0);
        flow.cfg.successors(block, |dest| {
            if let Dest::Block(b) = dest
                && self.map.to_clone(flow.start(Dest::Block(b))).is_none()
            {
                add(&mut exits, flow.edge(block, index, dest));
            }
            index += 1;
        });
        exits
    }
}

#[cfg(test)]
#[path = "dyno_tests.rs"]
mod tests;
