//! Execution counts of functions from branch stacks.
//!
//! A run counts each block whose first instruction it executes, and each fall-through edge from one of its
//! blocks to the next. A taken branch counts the edge that leads to its destination. If no edge leads there,
//! control leaves the branch's block and enters the destination from outside. A return to the address behind
//! a call that ends a block counts that block's edge to the next block.
//!
//! Stacks begin and end anywhere, so these counts are consistent only on average. They are replaced by the
//! nearest consistent counts.

use crate::branch_stacks::{BranchStacks, Run, Taken};
use crate::counts::Counts;
use crate::links::{Link, links_of};
use crate::mend::{Measured, Price, mend};
use crate::samples::BlockIndex;
use addr::Avma;
use code::{Block, BlockId, Cfg, Dest, Inst, Term};
use iced_x86::{Code, FlowControl};
use std::collections::{BTreeMap, HashMap};

/// Cost of one execution more or less of a link that was seen to run.
const SEEN: i64 = 2;
/// Cost of one execution more of a link that was not seen to run.
const NEVER_SEEN: i64 = 3;
/// Cost of control that enters or leaves a block unseen. The CPU records every taken branch, so only
/// exceptions and signals do this.
const UNSEEN: i64 = 9;

/// The counts of some functions, from branch stacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BranchProfile {
    /// By function: consistent counts ([`Counts::is_consistent`]), up to a factor common to all functions.
    pub functions: Vec<Counts>,
    /// Executions of each call, and of each jump from elsewhere to a function's entry. At least one of the
    /// two functions is among those given. On the scale of the counts.
    pub calls: BTreeMap<Taken, u64>,
    /// The runs and branches that were left out.
    pub rejected: Rejected,
}

/// Numbers of runs and branches that were left out. Each counts as often as it was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rejected {
    /// Runs whose last instruction lies before their first.
    pub backward: u64,
    /// Runs that begin in one function and end in another, or that begin or end in unknown code.
    pub crossing: u64,
    /// Runs that begin or end inside an instruction, or that pass an instruction after which control does not
    /// continue.
    pub broken: u64,
    /// Branches whose instruction does not exist or cannot go to their destination.
    pub branches: u64,
    /// Runs that begin and end outside the given functions. This is no error.
    pub elsewhere: u64,
}

impl BranchStacks {
    /// Returns the counts of these functions.
    #[must_use]
    pub fn counts(&self, cfgs: &[&Cfg]) -> BranchProfile {
        let mut tally = Tally::new(cfgs);
        for (run, n) in self.runs() {
            tally.run(run, n);
        }
        for (taken, n) in self.taken() {
            tally.taken(taken, n);
        }
        let functions = tally.functions.iter().map(consistent).collect();
        BranchProfile { functions, calls: tally.calls, rejected: tally.rejected }
    }
}

/// Returns the consistent counts nearest to the recorded ones.
fn consistent(function: &Recorded<'_>) -> Counts {
    let measured = |link: Link| {
        let seen = link.of(&function.counts);
        let price = Price { more: if seen > 0 { SEEN } else { NEVER_SEEN }, less: SEEN };
        Measured { link, flow: seen.into(), price }
    };
    let links: Vec<Measured> = links_of(function.cfg).into_iter().map(measured).collect();
    mend(function.cfg.blocks.len(), &links, UNSEEN)
}

/// A function, by its index, and one of its blocks.
type Place = (usize, BlockId);

/// A function with its counts as recorded, not yet consistent.
struct Recorded<'a> {
    cfg: &'a Cfg,
    counts: Counts,
}

struct Tally<'a> {
    index: BlockIndex,
    /// Blocks that end in a call after which control falls into the next block, by the address behind the
    /// call.
    calls_end: HashMap<Avma, Place>,
    functions: Vec<Recorded<'a>>,
    calls: BTreeMap<Taken, u64>,
    rejected: Rejected,
}

impl<'a> Tally<'a> {
    fn new(cfgs: &'a [&'a Cfg]) -> Self {
        let mut calls_end = HashMap::new();
        for (f, cfg) in cfgs.iter().enumerate() {
            for (b, block) in blocks(cfg) {
                if ends_in_call(cfg, b, block) {
                    calls_end.entry(block.range.end).or_insert((f, b));
                }
            }
        }
        Self {
            index: BlockIndex::new(cfgs),
            calls_end,
            functions: cfgs.iter().map(|&cfg| Recorded { cfg, counts: Counts::zero(cfg) }).collect(),
            calls: BTreeMap::new(),
            rejected: Rejected::default(),
        }
    }

    fn run(&mut self, run: Run, n: u64) {
        let (begins, ends) = (self.index.find(run.first), self.index.find(run.last));
        let reason = match (begins, ends) {
            (None, None) => &mut self.rejected.elsewhere,
            _ if run.last < run.first => &mut self.rejected.backward,
            (Some((f, b)), Some((g, e))) if f == g => {
                match way(self.functions[f].cfg, (b, run.first), (e, run.last)) {
                    Some(way) => return self.passes(f, &way, run.first, n),
                    None => &mut self.rejected.broken,
                }
            }
            _ => &mut self.rejected.crossing,
        };
        *reason = reason.saturating_add(n);
    }

    /// Counts blocks of function `f` that ran one after the other, each falling into the next. `first` is the
    /// address at which the run began.
    fn passes(&mut self, f: usize, way: &[BlockId], first: Avma, n: u64) {
        let Recorded { cfg, counts } = &mut self.functions[f];
        for (i, &b) in way.iter().enumerate() {
            let block = &cfg.blocks[b.index()];
            if i > 0 || block.range.start == first {
                add(&mut counts.blocks[b.index()].count, n);
            }
            // The fall-through is the last of a block's edges.
            if i + 1 < way.len()
                && let Some(edge) = counts.blocks[b.index()].edges.last_mut()
            {
                add(edge, n);
            }
        }
    }

    fn taken(&mut self, taken: Taken, n: u64) {
        let (from, to) = (self.index.find(taken.from), self.index.find(taken.to));
        let (mut returns, mut calls, mut arrived) = (from.is_none(), false, false);
        if let Some((f, b)) = from {
            let inst = inst_at(self.functions[f].cfg, b, taken.from);
            let left = inst.and_then(|inst| Some((inst, self.leaves((f, b), inst, taken.to, n)?)));
            let Some((inst, inside)) = left else { return add(&mut self.rejected.branches, n) };
            returns = inst.decoded.flow_control() == FlowControl::Return;
            (calls, arrived) = (is_call(inst), inside);
        }
        let entered = to.is_some_and(|(g, _)| self.functions[g].cfg.entry == taken.to);
        if calls || (entered && !arrived) {
            add(self.calls.entry(taken).or_default(), n);
        }
        if arrived {
            return;
        }
        match (self.calls_end.get(&taken.to), to) {
            (Some(&(g, b)), _) if returns => add(&mut self.functions[g].counts.blocks[b.index()].edges[0], n),
            (_, Some((g, c))) if self.functions[g].cfg.blocks[c.index()].range.start == taken.to => {
                add(&mut self.functions[g].counts.blocks[c.index()].inflow, n);
            }
            _ => {}
        }
    }

    /// Counts that the instruction `inst` of a block branched to `to`, `n` times. Returns whether control
    /// followed an edge to a block of the same function. Returns `None` if the instruction cannot go there.
    fn leaves(&mut self, (f, b): Place, inst: &Inst, to: Avma, n: u64) -> Option<bool> {
        let Recorded { cfg, counts } = &mut self.functions[f];
        let block = &cfg.blocks[b.index()];
        let is_last = cfg.insts_of(b).last().is_some_and(|last| last.at == inst.at);
        if !is_last || ends_in_call(cfg, b, block) {
            return is_call(inst).then_some(false);
        }
        let (mut index, mut edge) = (0, None);
        cfg.successors(b, |dest| {
            if edge.is_none() && start_of(cfg, dest) == to {
                edge = Some((index, dest));
            }
            index += 1;
        });
        match (edge, &block.term) {
            (Some((index, dest)), _) => {
                add(&mut counts.blocks[b.index()].edges[index], n);
                Some(matches!(dest, Dest::Block(_)))
            }
            (
                None,
                Term::Return | Term::Indirect | Term::Switch { .. } | Term::NoReturnCall { .. } | Term::Trap,
            ) => {
                add(&mut counts.blocks[b.index()].outflow, n);
                Some(false)
            }
            (None, Term::Fall { .. } | Term::Jump { .. } | Term::Cond { .. } | Term::CondShort { .. }) => {
                None
            }
        }
    }
}

/// Returns the blocks that a run passes; `None` if the run is impossible.
fn way(cfg: &Cfg, first: (BlockId, Avma), last: (BlockId, Avma)) -> Option<Vec<BlockId>> {
    inst_at(cfg, first.0, first.1)?;
    inst_at(cfg, last.0, last.1)?;
    let mut way = vec![first.0];
    let (mut b, mut at) = first;
    loop {
        let passed = |i: &&Inst| i.at >= at && (b != last.0 || i.at < last.1);
        let insts = cfg.insts_of(b);
        if b == last.0 {
            return insts.iter().filter(passed).all(goes_on).then_some(way);
        }
        let next = match cfg.blocks[b.index()].term {
            Term::Fall { next } if insts.iter().filter(passed).all(goes_on) => next,
            Term::Cond { fall, .. } | Term::CondShort { fall, .. } => {
                let (_, before) = insts.split_last()?;
                before.iter().filter(passed).all(goes_on).then_some(fall)?
            }
            _ => return None,
        };
        let end = cfg.blocks[b.index()].range.end;
        let Dest::Block(next) = next else { return None };
        let block = cfg.blocks.get(next.index()).filter(|block| block.range.start == end)?;
        (b, at) = (next, block.range.start);
        way.push(next);
    }
}

fn blocks(cfg: &Cfg) -> impl Iterator<Item = (BlockId, &Block)> {
    cfg.block_ids().zip(&cfg.blocks)
}

fn inst_at(cfg: &Cfg, b: BlockId, at: Avma) -> Option<&Inst> {
    let insts = cfg.insts_of(b);
    insts.binary_search_by_key(&at, |i| i.at).ok().and_then(|i| insts.get(i))
}

fn is_call(inst: &Inst) -> bool {
    let flow = inst.decoded.flow_control();
    matches!(flow, FlowControl::Call | FlowControl::IndirectCall) && inst.decoded.code() != Code::Syscall
}

/// Returns whether control can continue behind an instruction without a taken branch of user code. The kernel
/// returns to the address behind a system call or an interrupt instruction, so these count.
fn goes_on(inst: &Inst) -> bool {
    match inst.decoded.flow_control() {
        FlowControl::Next | FlowControl::Interrupt | FlowControl::XbeginXabortXend => true,
        FlowControl::Call => inst.decoded.code() == Code::Syscall,
        _ => false,
    }
}

/// Returns whether a block ends in a call because the address behind the call begins another block.
fn ends_in_call(cfg: &Cfg, b: BlockId, block: &Block) -> bool {
    matches!(block.term, Term::Fall { .. }) && cfg.insts_of(b).last().is_some_and(is_call)
}

fn start_of(cfg: &Cfg, dest: Dest) -> Avma {
    match dest {
        Dest::Block(b) => cfg.blocks.get(b.index()).map_or(Avma(u64::MAX), |b| b.range.start),
        Dest::Outside(at) => at,
    }
}

fn add(sum: &mut u64, n: u64) {
    *sum = sum.saturating_add(n);
}

#[cfg(test)]
mod tests;
