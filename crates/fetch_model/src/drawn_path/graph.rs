//! All routines as one graph of blocks. Each block has its successors with their counts.

use super::{Leads, OUTSIDE, Routine, Surroundings};
use crate::step::{Flow, Inst, Pointer, Step};
use addr::{Avma, AvmaRange};
use code::{Dest, InstId, Term};
use rustc_hash::FxHashMap;

/// No callee.
const NONE: u32 = u32::MAX;

/// A block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub at: Avma,
    /// The range of its instructions in [`Graph::insts`].
    pub first: u32,
    pub end: u32,
    /// The address behind its last byte.
    pub end_at: Avma,
    pub out: Out,
}

/// How a block is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Out {
    /// To one of several destinations, by their counts; an index into [`Graph::ways`].
    Ways(u32),
    /// By a return.
    Returns,
    /// To no known place: the block ends in a trap or in a call that does not return, it did not run, or none
    /// of its destinations has a count.
    Ends,
}

/// The destination of an edge, jump or call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum To {
    Block(u32),
    /// Out of the routine; an index into [`Graph::aways`].
    Away(u32),
    /// To no place that the counts give: the block was left by none of its edges.
    Nowhere,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub at: Avma,
    pub len: u8,
    pub flow: Flow,
    /// The callees of a call, as an index into [`Graph::ways`]; else [`NONE`].
    callees: u32,
}

/// A place outside a routine.
#[derive(Clone, Debug)]
pub(super) struct Away {
    pub to: Avma,
    /// The steps of the stub on the way there.
    pub via: Vec<Step>,
    /// The first block of the routine at `to`, if there is one.
    pub entry: Option<u32>,
}

impl Away {
    /// Returns the address of the first instruction: of the stub, or of the destination if there is no stub.
    pub fn first(&self) -> Avma {
        self.via.first().map_or(self.to, |s| s.at)
    }
}

/// Destinations, each with the sum of its count and the counts before it.
type Ways = Vec<(u64, To)>;

#[derive(Debug, Default)]
pub(super) struct Graph {
    blocks: Vec<Block>,
    insts: Vec<Node>,
    ways: Vec<Ways>,
    aways: Vec<Away>,
    /// First blocks of routines, by how often each routine is entered from outside the routines.
    roots: Ways,
}

/// The state of building a [`Graph`].
struct Builder<'a> {
    graph: Graph,
    around: &'a Surroundings<'a>,
    /// First blocks of routines, by the routine's entry.
    entries: FxHashMap<Avma, u32>,
    by_target: FxHashMap<Avma, u32>,
    /// How often routines call a routine, by the callee's first block.
    called: FxHashMap<u32, u64>,
}

impl Graph {
    pub fn new(routines: &[Routine<'_>], around: &Surroundings<'_>) -> Self {
        let mut entries = FxHashMap::default();
        let mut blocks = 0u32;
        for r in routines {
            if r.counts.block(code::BlockId(0)) > 0 {
                entries.insert(r.cfg.entry, blocks);
            }
            blocks = blocks.saturating_add(u32::try_from(r.cfg.blocks.len()).unwrap_or(u32::MAX));
        }
        let mut b = Builder {
            graph: Self::default(),
            around,
            entries,
            by_target: FxHashMap::default(),
            called: FxHashMap::default(),
        };
        for r in routines {
            b.routine(r);
        }
        b.roots(routines);
        b.graph
    }

    pub fn has_roots(&self) -> bool {
        !self.roots.is_empty()
    }

    pub fn block(&self, block: u32) -> Block {
        let none = Block { at: OUTSIDE, first: 0, end: 0, end_at: OUTSIDE, out: Out::Ends };
        self.blocks.get(block as usize).copied().unwrap_or(none)
    }

    pub fn inst(&self, inst: u32) -> Option<Node> {
        self.insts.get(inst as usize).copied()
    }

    pub fn away(&self, away: u32) -> &Away {
        static NOWHERE: Away = Away { to: OUTSIDE, via: Vec::new(), entry: None };
        self.aways.get(away as usize).unwrap_or(&NOWHERE)
    }

    /// Draws the destination to which a block is left.
    pub fn leaves(&self, out: Out, random: u64) -> Option<To> {
        match out {
            Out::Ways(ways) => self.draw(self.ways.get(ways as usize)?, random),
            Out::Returns | Out::Ends => None,
        }
    }

    /// Draws the callee of a call, as an index into [`Graph::aways`]; [`NONE`] if the call has none.
    pub fn callee(&self, call: Node, random: u64) -> u32 {
        match self.ways.get(call.callees as usize).and_then(|ways| self.draw(ways, random)) {
            Some(To::Away(away)) => away,
            _ => NONE,
        }
    }

    /// Draws the first block of a routine that is entered from outside.
    pub fn root(&self, random: u64) -> u32 {
        match self.draw(&self.roots, random) {
            Some(To::Block(b)) => b,
            _ => 0,
        }
    }

    fn draw(&self, ways: &[(u64, To)], random: u64) -> Option<To> {
        let (sum, _) = *ways.last()?;
        let drawn = u64::try_from((u128::from(random) * u128::from(sum)) >> 64).unwrap_or(0);
        ways.get(ways.partition_point(|(n, _)| *n <= drawn)).map(|w| w.1)
    }
}

impl Builder<'_> {
    fn routine(&mut self, r: &Routine<'_>) {
        let base = count(self.graph.blocks.len());
        let leads: FxHashMap<InstId, &Leads> = r.leads.iter().map(|l| (l.inst, l)).collect();
        for (id, block) in r.cfg.block_ids().zip(&r.cfg.blocks) {
            let ran = r.counts.block(id);
            let first = count(self.graph.insts.len());
            // The path never reaches a block that did not run.
            for n in block.inst_ids().filter(|_| ran > 0) {
                let Some(inst) = r.cfg.insts.get(n.index()) else { continue };
                let Inst { flow, target, .. } = Inst::of(&inst.decoded);
                let callees = match flow.is_call() {
                    true => self.callees(flow, target, leads.get(&n).copied(), ran),
                    false => NONE,
                };
                let len = u8::try_from(inst.bytes.as_slice().len()).unwrap_or(15);
                self.graph.insts.push(Node { at: inst.at, len, flow, callees });
            }
            let end = count(self.graph.insts.len());
            let out = if ran > 0 { self.out(r, id, base, &leads) } else { Out::Ends };
            let AvmaRange { start: at, end: end_at } = block.range;
            self.graph.blocks.push(Block { at, first, end, end_at, out });
        }
    }

    /// Adds the callees of a call with their counts. Returns their index in [`Graph::ways`].
    fn callees(&mut self, flow: Flow, target: Option<Avma>, leads: Option<&Leads>, ran: u64) -> u32 {
        let mut ways = Weighed::default();
        match (target, flow, leads) {
            (Some(to), ..) => self.calls(to, ran, &mut ways),
            (None, Flow::IndirectCall(Pointer::Slot(slot)), None) => {
                let to = (self.around.word)(slot).unwrap_or(OUTSIDE);
                self.calls(to, ran, &mut ways);
            }
            (None, _, Some(leads)) => self.indirect(leads, ran, &mut ways),
            (None, _, None) => self.calls(OUTSIDE, ran, &mut ways),
        }
        self.keep(ways)
    }

    fn indirect(&mut self, leads: &Leads, ran: u64, ways: &mut Weighed) {
        let known = leads.to.iter().fold(u128::from(leads.others), |sum, (_, n)| sum + u128::from(*n));
        let part = |n: u64| {
            let part = (u128::from(ran) * u128::from(n)).checked_div(known);
            part.and_then(|p| u64::try_from(p).ok()).unwrap_or(0)
        };
        for &(to, n) in &leads.to {
            self.calls(to, part(n), ways);
        }
        if leads.others > 0 || known == 0 {
            self.calls(OUTSIDE, part(leads.others).max(1), ways);
        }
    }

    fn calls(&mut self, to: Avma, n: u64, ways: &mut Weighed) {
        let away = self.away(to);
        if let Some(entry) = self.graph.away(away).entry {
            let sum = self.called.entry(entry).or_default();
            *sum = sum.saturating_add(n);
        }
        ways.add(To::Away(away), n);
    }

    fn away(&mut self, to: Avma) -> u32 {
        if let Some(&known) = self.by_target.get(&to) {
            return known;
        }
        let via = if to == OUTSIDE { Vec::new() } else { (self.around.stub)(to) };
        let lands = via.last().map_or(to, |s| s.next);
        let away = count(self.graph.aways.len());
        self.graph.aways.push(Away { to: lands, via, entry: self.entries.get(&lands).copied() });
        self.by_target.insert(to, away);
        away
    }

    fn out(
        &mut self,
        r: &Routine<'_>,
        id: code::BlockId,
        base: u32,
        leads: &FxHashMap<InstId, &Leads>,
    ) -> Out {
        let Some(block) = r.cfg.blocks.get(id.index()) else { return Out::Ends };
        let mut ways = Weighed::default();
        match &block.term {
            Term::Return => return Out::Returns,
            Term::NoReturnCall { .. } | Term::Trap => return Out::Ends,
            Term::Indirect => {
                let ran = r.counts.block(id);
                let last = block.last_inst();
                let inst = last.and_then(|n| r.cfg.insts.get(n.index())).map(|i| Inst::of(&i.decoded));
                match (last.and_then(|n| leads.get(&n)), inst.map(|i| i.flow)) {
                    (Some(leads), _) => self.indirect(leads, ran, &mut ways),
                    (None, Some(Flow::IndirectJump(Pointer::Slot(slot)))) => {
                        let to = (self.around.word)(slot).unwrap_or(OUTSIDE);
                        self.calls(to, ran, &mut ways);
                    }
                    _ => self.calls(OUTSIDE, ran, &mut ways),
                }
            }
            _ => self.edges(r, id, base, &mut ways),
        }
        if ways.0.is_empty() { Out::Ends } else { Out::Ways(self.keep(ways)) }
    }

    fn edges(&mut self, r: &Routine<'_>, id: code::BlockId, base: u32, ways: &mut Weighed) {
        let mut edges = r.counts.edges(id).iter().copied();
        let mut outside = Vec::new();
        r.cfg.successors(id, |dest| match (dest, edges.next().unwrap_or(0)) {
            (Dest::Block(to), n) => ways.add(To::Block(base.saturating_add(to.0)), n),
            (Dest::Outside(to), n) => outside.push((to, n)),
        });
        for (to, n) in outside.into_iter().filter(|(_, n)| *n > 0) {
            self.calls(to, n, ways);
        }
        ways.add(To::Nowhere, r.counts.blocks.get(id.index()).map_or(0, |b| b.outflow));
    }

    fn keep(&mut self, ways: Weighed) -> u32 {
        self.graph.ways.push(ways.0);
        count(self.graph.ways.len() - 1)
    }

    /// Sets the roots: a routine's entries that calls of routines do not account for come from outside.
    /// Counts of different functions are not taken at the same time. So the remainder of a routine is ignored
    /// unless it is larger than the calls that are accounted for. If no routine has a remainder (they call
    /// each other in a circle), all routines are roots, by their entries.
    fn roots(&mut self, routines: &[Routine<'_>]) {
        let mut all = Weighed::default();
        let mut from_outside = Weighed::default();
        for r in routines {
            let Some(&entry) = self.entries.get(&r.cfg.entry) else { continue };
            let called = self.called.get(&entry).copied().unwrap_or(0);
            all.add(To::Block(entry), r.counts.entry);
            let rest = r.counts.entry.saturating_sub(called);
            from_outside.add(To::Block(entry), if rest > called { rest } else { 0 });
        }
        self.graph.roots = if from_outside.0.is_empty() { all.0 } else { from_outside.0 };
    }
}

#[derive(Default)]
struct Weighed(Ways);

impl Weighed {
    fn add(&mut self, to: To, n: u64) {
        let before = self.0.last().map_or(0, |w| w.0);
        let sum = before.saturating_add(n);
        if sum > before {
            self.0.push((sum, to));
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
