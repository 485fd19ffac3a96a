//! A random path through code, drawn from the counts of its edges and calls.
//!
//! Such a path is used if no path is recorded. Each block continues to each of its successors as often as was
//! counted. A callee returns to its caller. The same seed always gives the same path. If counts do not say
//! how control continues (an exception, a jump table behind which nothing is counted), the path returns to
//! the caller. Counts have no history. So three things are drawn at random: whether a branch repeats its last
//! direction, how often a loop iterates in one visit, and how a callee's path depends on its caller. So
//! directions are harder to predict than in truth, on both sides alike. The mixture of fetched lines and
//! pages depends less on this.

mod graph;

use crate::direction::mix;
use crate::step::{Flow, Pointer, Step};
use addr::Avma;
use code::{Cfg, InstId};
use graph::{Away, Block, Graph, Out, To};
use profile::Counts;

/// The address that stands for all code outside the routines. Control comes from there and returns there.
pub const OUTSIDE: Avma = Avma(0);
/// Deepest nesting of calls on a path. The path does not enter deeper callees; they only return.
const DEEPEST: usize = 512;

/// A function that the path can go through.
#[derive(Clone, Copy, Debug)]
pub struct Routine<'a> {
    /// Its graph.
    pub cfg: &'a Cfg,
    /// How often its edges ran.
    pub counts: &'a Counts,
    /// The destinations of its indirect calls and jumps.
    pub leads: &'a [Leads],
}

/// The destinations of an indirect call or jump.
#[derive(Clone, Debug)]
pub struct Leads {
    /// The call or jump.
    pub inst: InstId,
    /// Known destinations, each with how often it was taken.
    pub to: Vec<(Avma, u64)>,
    /// How often control went to unknown destinations.
    pub others: u64,
}

/// The code and data around the routines.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Returns the steps from a stub of the procedure linkage table to its destination; none if no stub
    /// begins at the address.
    pub stub: &'a dyn Fn(Avma) -> Vec<Step>,
    /// Returns the word at an address, if it can be read. Used for pointers to code.
    pub word: &'a dyn Fn(Avma) -> Option<Avma>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// A path without an end.
#[derive(Debug)]
pub struct DrawnPath {
    graph: Graph,
    random: u64,
    /// The block and the instruction that are executed next.
    at: Option<(u32, u32)>,
    stack: Vec<Frame>,
    /// True after the path has returned to the call outside the routines.
    came_back: bool,
}

/// The place behind a call, to which its callee returns.
#[derive(Clone, Copy, Debug)]
struct Frame {
    block: u32,
    inst: u32,
    address: Avma,
}

impl DrawnPath {
    /// Makes a path through these routines. Returns `None` if none of them was entered.
    #[must_use]
    pub fn new(routines: &[Routine<'_>], around: &Surroundings<'_>, seed: u64) -> Option<Self> {
        let graph = Graph::new(routines, around);
        graph.has_roots().then(|| Self { graph, random: seed, at: None, stack: Vec::new(), came_back: false })
    }

    /// Continues the path by at least `instructions` instructions, and passes each to `tell`.
    pub fn go(&mut self, instructions: u64, tell: &mut dyn FnMut(&Step)) {
        let mut reported = 0;
        while reported < instructions {
            self.next(&mut |step| {
                reported += 1;
                tell(&step);
            });
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }

    /// Executes one instruction. If the instruction leaves the routine, also executes the stub on the way,
    /// and the return that stands for an unknown callee.
    fn next(&mut self, tell: &mut dyn FnMut(Step)) {
        let Some((block, inst)) = self.at else { return self.enter(tell) };
        let random = self.random();
        let b = self.graph.block(block);
        let Some(node) = self.graph.inst(inst).filter(|_| inst < b.end) else {
            // The path is behind a call that ends the block.
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

    /// Executes the code outside, which calls one of the routines in a loop: the call, or after a return the
    /// jump back to the call.
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

    /// Continues the path where control has left the routine for another. If control came by a call, the
    /// frame for its return is on the stack already.
    fn away(&mut self, away: u32, tell: &mut dyn FnMut(Step)) {
        let Away { to, ref via, entry } = *self.graph.away(away);
        via.iter().for_each(|step| tell(*step));
        match entry.filter(|_| self.stack.len() < DEEPEST) {
            Some(entry) => self.at = Some((entry, self.graph.block(entry).first)),
            // For unknown code, the path contains only its return.
            None => self.give_up(to, 1, tell),
        }
    }

    /// Executes a return at `at`, which stands for all code that the counts do not describe.
    fn give_up(&mut self, at: Avma, len: u8, tell: &mut dyn FnMut(Step)) {
        let next = self.back();
        tell(Step { at, len, flow: Flow::Return, next });
    }

    /// Removes the innermost frame. Returns the address at which the caller continues.
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

/// Size of the call in the code outside. Bytes.
const OUTSIDE_CALL: u8 = 5;

#[cfg(test)]
mod tests;
