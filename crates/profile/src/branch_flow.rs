//! From branch stacks to the counts of functions.
//!
//! A run passes the blocks it begins with and comes to, and the edges by which one falls into the next. A branch passes
//! the edge that leads where it went; where no edge does, its block is left, and where it went is entered from outside.
//! A return to behind a call that ends a block passes that block's edge to there.
//!
//! Stacks begin and end anywhere, so that these counts are consistent only on average; they are mended to the nearest ones
//! that are.

use crate::branch_stacks::{BranchStacks, Run, Taken};
use crate::counts::Counts;
use crate::links::links_of;
use crate::mend::{Price, mend};
use crate::samples::BlockIndex;
use addr::Avma;
use code::{Block, BlockId, Cfg, Dest, Inst, Term};
use iced_x86::{Code, FlowControl};
use std::collections::{BTreeMap, HashMap};

/// Cost of one execution more of what was seen to run, or one less.
const SEEN: i64 = 2;
/// Cost of one execution of what was not.
const NEVER_SEEN: i64 = 3;
/// Cost of a thread that came to a block, or left one, unseen: the CPU sees them all, but for exceptions and signals.
const UNSEEN: i64 = 9;

/// What branch stacks say of some functions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BranchProfile {
    /// By function: consistent counts ([`Counts::is_consistent`]), up to a factor common to all functions.
    pub functions: Vec<Counts>,
    /// How often each call, or jump from one function to another's entry, was taken, where at least one of the two functions
    /// is known. On the scale of the counts.
    pub calls: BTreeMap<Taken, u64>,
    /// What could not be.
    pub rejected: Rejected,
}

/// Runs and branches that were left out, by how often they were recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rejected {
    /// Runs that end before they begin.
    pub backward: u64,
    /// Runs that begin in one function and end in another, or in code of which nothing is known.
    pub crossing: u64,
    /// Runs that begin or end inside an instruction, or pass one after which control does not go on.
    pub broken: u64,
    /// Branches that are not at an instruction that can go where they went.
    pub branches: u64,
    /// Runs that have nothing to do with the functions. Nothing is wrong with those.
    pub elsewhere: u64,
}

impl BranchStacks {
    /// What they say of these functions.
    #[must_use]
    pub fn counts(&self, cfgs: &[&Cfg]) -> BranchProfile {
        let mut tally = Tally::new(cfgs);
        for (run, n) in self.runs() {
            tally.run(run, n);
        }
        for (taken, n) in self.taken() {
            tally.taken(taken, n);
        }
        let functions = cfgs.iter().zip(&tally.functions).map(|(cfg, raw)| consistent(cfg, raw)).collect();
        BranchProfile { functions, calls: tally.calls, rejected: tally.rejected }
    }
}

/// The nearest consistent counts.
fn consistent(cfg: &Cfg, raw: &Counts) -> Counts {
    let links = links_of(cfg);
    let flows: Vec<i128> = links.iter().map(|l| l.of(raw).into()).collect();
    let price = |link: usize| {
        let seen = flows.get(link).is_some_and(|&n| n > 0);
        Price { more: if seen { SEEN } else { NEVER_SEEN }, less: SEEN }
    };
    mend(cfg.blocks.len(), &links, &flows, &price, UNSEEN)
}

/// A function, by its place, and one of its blocks.
type Place = (usize, BlockId);

struct Tally<'a> {
    cfgs: &'a [&'a Cfg],
    index: BlockIndex,
    /// Blocks that end in a call and go on behind it, by where that is.
    calls_end: HashMap<Avma, Place>,
    /// Not consistent.
    functions: Vec<Counts>,
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
            cfgs,
            index: BlockIndex::new(cfgs),
            calls_end,
            functions: cfgs.iter().map(|cfg| Counts::zero(cfg)).collect(),
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
                match way(self.cfgs[f], (b, run.first), (e, run.last)) {
                    Some(way) => return self.passes(f, &way, run.first, n),
                    None => &mut self.rejected.broken,
                }
            }
            _ => &mut self.rejected.crossing,
        };
        *reason = reason.saturating_add(n);
    }

    /// Blocks of a function ran, one falling into the next.
    fn passes(&mut self, f: usize, way: &[BlockId], first: Avma, n: u64) {
        let (cfg, counts) = (self.cfgs[f], &mut self.functions[f]);
        for (i, &b) in way.iter().enumerate() {
            let block = &cfg.blocks[b.index()];
            if i > 0 || block.range.start == first {
                add(&mut counts.blocks[b.index()], n);
            }
            // The fall-through is the last way out.
            if i + 1 < way.len()
                && let Some(edge) = counts.edges[b.index()].last_mut()
            {
                add(edge, n);
            }
        }
    }

    fn taken(&mut self, taken: Taken, n: u64) {
        let (from, to) = (self.index.find(taken.from), self.index.find(taken.to));
        let (mut returns, mut calls, mut arrived) = (from.is_none(), false, false);
        if let Some((f, b)) = from {
            let inst = inst_at(self.cfgs[f], b, taken.from);
            let left = inst.and_then(|inst| Some((inst, self.leaves(f, b, inst, taken.to, n)?)));
            let Some((inst, inside)) = left else { return add(&mut self.rejected.branches, n) };
            returns = inst.decoded.flow_control() == FlowControl::Return;
            (calls, arrived) = (is_call(inst), inside);
        }
        let entered = to.is_some_and(|(g, _)| self.cfgs[g].entry == taken.to);
        if calls || (entered && !arrived) {
            add(self.calls.entry(taken).or_default(), n);
        }
        if arrived {
            return;
        }
        match (self.calls_end.get(&taken.to), to) {
            (Some(&(g, b)), _) if returns => add(&mut self.functions[g].edges[b.index()][0], n),
            (_, Some((g, c))) if self.cfgs[g].blocks[c.index()].range.start == taken.to => {
                add(&mut self.functions[g].inflow[c.index()], n);
            }
            _ => {}
        }
    }

    /// A block is left by a branch of its own instruction, to `to`; whether that is an edge to another of its function's
    /// blocks. `None` where the instruction cannot go there.
    fn leaves(&mut self, f: usize, b: BlockId, inst: &Inst, to: Avma, n: u64) -> Option<bool> {
        let cfg = self.cfgs[f];
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
                add(&mut self.functions[f].edges[b.index()][index], n);
                Some(matches!(dest, Dest::Block(_)))
            }
            (
                None,
                Term::Return | Term::Indirect | Term::Switch { .. } | Term::NoReturnCall { .. } | Term::Trap,
            ) => {
                add(&mut self.functions[f].outflow[b.index()], n);
                Some(false)
            }
            (None, Term::Fall { .. } | Term::Jump { .. } | Term::Cond { .. } | Term::CondShort { .. }) => {
                None
            }
        }
    }
}

/// The blocks that a run comes through, if it can be.
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

/// Whether control may go on behind an instruction without a branch of user code having been taken. What is handed to
/// the kernel comes back so.
fn goes_on(inst: &Inst) -> bool {
    match inst.decoded.flow_control() {
        FlowControl::Next | FlowControl::Interrupt | FlowControl::XbeginXabortXend => true,
        FlowControl::Call => inst.decoded.code() == Code::Syscall,
        _ => false,
    }
}

/// Whether a block ends since its call's return is a place of its own.
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
