//! A path through code, drawn by how often its edges and calls ran.
//!
//! Where there is no recorded path this is the next best thing: every block goes on to each of its successors as often as was
//! counted, a callee returns to where it was called from, and the same seed always gives the same path. Where counts do not say how
//! it goes on (an exception, a jump table behind which nothing is counted) it returns to the caller. What counts do not tell
//! is drawn by chance: that a branch goes the way it went last time, how often a loop runs in one visit, what a callee does
//! for one caller and not for another. So directions come out harder to foresee than they are, on both sides alike; which lines and pages
//! are fetched in which mixture does not depend on it as much.

mod graph;

use crate::direction::mix;
use crate::step::{Flow, Pointer, Step};
use addr::Avma;
use code::Cfg;
use graph::{Away, Block, Graph, Out, To};
use profile::Counts;

/// Where control is when it is in none of the routines, and comes from.
pub const OUTSIDE: Avma = Avma(0);
/// So many calls deep a path goes; those in there are passed by.
const DEEPEST: usize = 512;

/// A function that the path can go through.
#[derive(Clone, Copy, Debug)]
pub struct Routine<'a> {
    /// Its graph.
    pub cfg: &'a Cfg,
    /// How often its edges ran.
    pub counts: &'a Counts,
    /// Where its indirect calls and jumps led.
    pub leads: &'a [Leads],
}

/// Where an indirect call or jump led.
#[derive(Clone, Debug)]
pub struct Leads {
    /// Which, by its place in [`Cfg::insts`].
    pub inst: u32,
    /// How often where.
    pub to: Vec<(Avma, u64)>,
    /// How often to places that are not known.
    pub others: u64,
}

/// What is around the routines.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// What is executed from a stub of the procedure linkage table to where it leads; nothing where there is no stub.
    pub stub: &'a dyn Fn(Avma) -> Vec<Step>,
    /// The word at an address, if it holds where code is.
    pub word: &'a dyn Fn(Avma) -> Option<Avma>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// A path without end.
#[derive(Debug)]
pub struct DrawnPath {
    graph: Graph,
    random: u64,
    /// Where it is: a block, and an instruction of it.
    at: Option<(u32, u32)>,
    stack: Vec<Frame>,
    /// Whether it has come back to where it was called from outside.
    came_back: bool,
}

/// Where a call goes on behind.
#[derive(Clone, Copy, Debug)]
struct Frame {
    block: u32,
    inst: u32,
    address: Avma,
}

impl DrawnPath {
    /// A path through these routines; `None` where nothing of them ran.
    #[must_use]
    pub fn new(routines: &[Routine<'_>], around: &Surroundings<'_>, seed: u64) -> Option<Self> {
        let graph = Graph::new(routines, around);
        graph.has_roots().then(|| Self { graph, random: seed, at: None, stack: Vec::new(), came_back: false })
    }

    /// Goes on until so many instructions are executed, or a few more.
    pub fn go(&mut self, instructions: u64, tell: &mut dyn FnMut(&Step)) {
        let mut told = 0;
        while told < instructions {
            self.next(&mut |step| {
                told += 1;
                tell(&step);
            });
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }

    /// Executes one instruction, with what is passed by behind it.
    fn next(&mut self, tell: &mut dyn FnMut(Step)) {
        let Some((block, inst)) = self.at else { return self.enter(tell) };
        let random = self.random();
        let b = self.graph.block(block);
        let Some(node) = self.graph.inst(inst).filter(|_| inst < b.end) else {
            // Behind a call that ends the block.
            return match self.graph.leaves(b.out, random) {
                Some(To::Block(next)) => self.at = Some((next, self.graph.block(next).first)),
                Some(To::Away(away)) => self.away(away, tell),
                Some(To::Nowhere) | None => self.give_up(b.end_at, 1, tell),
            };
        };
        let step = |next| Step { at: node.at, len: node.len, flow: node.flow, next };
        if node.flow.is_call() {
            let address = step(OUTSIDE).after();
            let away = self.graph.callee(node, random);
            self.stack.push(Frame { block, inst: inst + 1, address });
            tell(step(self.graph.away(away).first()));
            return self.away(away, tell);
        }
        if inst + 1 < b.end {
            self.at = Some((block, inst + 1));
            return tell(step(step(OUTSIDE).after()));
        }
        match self.graph.leaves(b.out, random) {
            Some(To::Block(next)) => {
                let to = self.graph.block(next);
                self.at = Some((next, to.first));
                tell(step(to.at));
            }
            Some(To::Away(away)) => {
                tell(step(self.graph.away(away).first()));
                self.away(away, tell);
            }
            None if b.out == Out::Returns => {
                let next = self.back();
                tell(step(next));
            }
            Some(To::Nowhere) | None => self.give_up(node.at, node.len, tell),
        }
    }

    /// Somebody outside calls one of the routines, in a loop.
    fn enter(&mut self, tell: &mut dyn FnMut(Step)) {
        if std::mem::take(&mut self.came_back) {
            let at = Avma(OUTSIDE.0 + u64::from(OUTSIDE_CALL));
            return tell(Step { at, len: 2, flow: Flow::Jump, next: OUTSIDE });
        }
        let random = self.random();
        let root = self.graph.root(random);
        let Block { first, at: next, .. } = self.graph.block(root);
        self.at = Some((root, first));
        tell(Step { at: OUTSIDE, len: OUTSIDE_CALL, flow: Flow::IndirectCall(Pointer::Other), next });
    }

    /// Control has left the routine for another; there is a frame for where it comes back, if it does.
    fn away(&mut self, away: u32, tell: &mut dyn FnMut(Step)) {
        let Away { to, ref via, entry } = *self.graph.away(away);
        via.iter().for_each(|step| tell(*step));
        match entry.filter(|_| self.stack.len() < DEEPEST) {
            Some(entry) => self.at = Some((entry, self.graph.block(entry).first)),
            // Of what is not known there is but the return.
            None => self.give_up(to, 1, tell),
        }
    }

    /// What comes now is not known: a return stands for it.
    fn give_up(&mut self, at: Avma, len: u8, tell: &mut dyn FnMut(Step)) {
        let next = self.back();
        tell(Step { at, len, flow: Flow::Return, next });
    }

    /// Goes back to the caller; where that is.
    fn back(&mut self) -> Avma {
        match self.stack.pop() {
            Some(frame) => {
                self.at = Some((frame.block, frame.inst));
                frame.address
            }
            None => {
                self.at = None;
                self.came_back = true;
                Avma(OUTSIDE.0 + u64::from(OUTSIDE_CALL))
            }
        }
    }
}

/// Bytes of the call that leads in from outside.
const OUTSIDE_CALL: u8 = 5;

#[cfg(test)]
mod tests;
