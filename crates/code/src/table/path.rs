//! Resolves one indirect jump by symbolic evaluation of the paths that lead to it.
//!
//! A path is a chain of blocks that ends with the jump. A proof for a chain from any state at its start holds
//! for every execution along the chain. If a chain proves too little, it is extended backwards: each of the
//! longer chains must give a proof.

use super::eval::Machine;
use super::flow::Facts;
use super::value::{Node, V};
use crate::{BlockId, Cfg, Dest, InstId, TableForm, Term};
use addr::{Addr, Avma, AvmaRange};

/// The largest length of a chain, in blocks and in instructions.
const MAX_BLOCKS: usize = 16;
const MAX_INSTS: usize = 1500;
/// The most chains that are evaluated for one jump.
const MAX_CHAINS: u32 = 64;
/// The most entries of a table.
pub(super) const MAX_ENTRIES: u64 = 1 << 14;

/// The table read that was found at an indirect jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// The address of the table.
    pub(super) at: Avma,
    pub(super) form: TableForm,
    /// The instruction that reads the table.
    pub(super) load: InstId,
}

/// A resolved jump.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolved {
    pub(super) shape: Shape,
    /// The greatest index, if it is proven.
    pub(super) bound: Option<u64>,
    /// Whether the entry was read in the jump's own block, on the same pass through it.
    pub(super) local: bool,
    /// Whether the bound relies on [`Machine::trusting`].
    pub(super) trusting: bool,
    /// Whether the bound comes from a compare and a branch, like that of a `switch`. A table of label values
    /// is usually read with a masked or narrow index.
    pub(super) checked: bool,
}

/// The bound that one chain proves.
#[derive(Clone, Copy)]
struct Bound {
    max: u64,
    /// Whether a longer chain would hardly improve it.
    tight: bool,
    /// Whether the bound comes from a compare; `None` for a constant index, which is no evidence.
    checked: Option<bool>,
}

/// Returns the predecessors of each block.
pub(super) fn predecessors(cfg: &Cfg) -> Vec<Vec<BlockId>> {
    let mut preds = vec![Vec::new(); cfg.blocks.len()];
    for b in cfg.block_ids() {
        cfg.successors(b, |d| {
            if let Dest::Block(to) = d {
                let p: &mut Vec<BlockId> = &mut preds[to.index()];
                if p.last() != Some(&b) {
                    p.push(b);
                }
            }
        });
    }
    preds
}

/// The search for the destinations of one jump.
pub(super) struct Search<'a> {
    pub(super) cfg: &'a Cfg,
    pub(super) preds: &'a [Vec<BlockId>],
    pub(super) facts: &'a Facts,
    pub(super) machine: &'a mut Machine,
    constant: &'a dyn Fn(AvmaRange) -> Option<Vec<u8>>,
    shape: Option<Shape>,
    conflict: bool,
    local: bool,
    trusting: bool,
    checked: bool,
    compared: bool,
    chains: u32,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        cfg: &'a Cfg,
        preds: &'a [Vec<BlockId>],
        facts: &'a Facts,
        machine: &'a mut Machine,
        constant: &'a dyn Fn(AvmaRange) -> Option<Vec<u8>>,
    ) -> Self {
        Self {
            cfg,
            preds,
            facts,
            machine,
            constant,
            shape: None,
            conflict: false,
            local: true,
            trusting: false,
            checked: true,
            compared: false,
            chains: 0,
        }
    }

    /// Resolves the indirect jump at the end of `block`.
    pub(super) fn resolve(mut self, block: BlockId) -> Option<Resolved> {
        let mut chain = vec![block];
        let bound = self.prove(&mut chain, self.cfg.insts_of(block).len());
        let shape = self.shape.filter(|_| !self.conflict)?;
        let checked = self.checked && self.compared;
        Some(Resolved { shape, bound, local: self.local, trusting: self.trusting, checked })
    }

    /// Returns the greatest index over all executions along `chain` (its last block first); `None` without a
    /// proof.
    fn prove(&mut self, chain: &mut Vec<BlockId>, insts: usize) -> Option<u64> {
        self.chains += 1;
        let own = self.evaluate(chain);
        if let Some(own) = own
            && own.tight
        {
            self.checked &= own.checked.unwrap_or(true);
            self.compared |= own.checked == Some(true);
            return Some(own.max);
        }
        let weak = own.map(|o| o.max);
        let first = *chain.last()?;
        let root = first.0 == 0 || self.cfg.blocks[first.index()].landing_pad;
        let preds = self.preds;
        let before = &preds[first.index()];
        if root || before.is_empty() || chain.len() >= MAX_BLOCKS || self.conflict {
            self.checked = false;
            return weak;
        }
        let mut max = 0;
        for &p in before {
            let insts = insts + self.cfg.insts_of(p).len();
            if self.chains >= MAX_CHAINS || insts > MAX_INSTS {
                self.checked = false;
                return weak;
            }
            chain.push(p);
            let b = self.prove(chain, insts);
            chain.pop();
            match b {
                Some(b) => max = b.max(max),
                None => {
                    self.checked = false;
                    return weak;
                }
            }
        }
        Some(weak.map_or(max, |w| w.min(max)))
    }

    /// Returns the greatest index that this chain alone proves.
    fn evaluate(&mut self, chain: &[BlockId]) -> Option<Bound> {
        let (&jump, &first) = (chain.first()?, chain.last()?);
        self.facts.begin(self.machine, first);
        for pair in chain.windows(2).rev() {
            let (to, from) = (pair[0], pair[1]);
            let block = &self.cfg.blocks[from.index()];
            for n in block.inst_ids() {
                self.machine.step(&self.cfg.insts[n.index()].decoded, n);
            }
            if let Term::Cond { cc, taken, fall } = block.term
                && taken != fall
            {
                self.machine.assume(cc, taken == Dest::Block(to));
            }
        }
        let block = &self.cfg.blocks[jump.index()];
        let last = block.last_inst()?;
        let loads_before = self.machine.loads.len();
        for n in block.inst_ids().take_while(|n| *n < last) {
            self.machine.step(&self.cfg.insts[n.index()].decoded, n);
        }
        let v = self.machine.destination(&self.cfg.insts[last.index()].decoded, last);
        let (shape, index, load) = shape(self.machine, v, self.shape)?;
        self.trusting |= self.machine.trusting;
        self.local &= load as usize >= loads_before;
        if *self.shape.get_or_insert(shape) != shape {
            self.conflict = true;
            return None;
        }
        if let Some(max) = self.machine.values.as_const(index) {
            return (max < MAX_ENTRIES).then_some(Bound { max, tight: true, checked: None });
        }
        let width = self.machine.values.width_bound(index);
        let checked = Some(self.machine.values.bound(index) < width);
        self.look_up(index);
        let max = self.machine.values.bound(index);
        (max < MAX_ENTRIES).then_some(Bound { max, tight: max < width || width < 255, checked })
    }
}

impl Search<'_> {
    /// Bounds an index that comes from a constant table of bytes (gcc's two-step switches, `printf`). It is
    /// at most the greatest byte that can be read.
    fn look_up(&mut self, index: V) {
        let Node::Load(id, 1) = self.machine.values.node(index) else { return };
        let Some(load) = self.machine.loads.get(id as usize) else { return };
        let Node::Add(i, at) = self.machine.values.node(load.addr) else { return };
        let last = self.machine.values.bound(i);
        if last < MAX_ENTRIES
            && let Some(bytes) = (self.constant)(AvmaRange::with_len(Avma(at), last + 1))
            && let Some(&max) = bytes.iter().max()
        {
            self.machine.values.learn(index, u64::from(max));
        }
    }
}

/// Parses a destination as an entry of a table at a constant address. An address with a constant index does
/// not show where the table begins. Then the table is the known one, or begins at the base of its entries.
fn shape(m: &mut Machine, v: V, known: Option<Shape>) -> Option<(Shape, V, u32)> {
    let known = |form| known.filter(|s| s.form == form).map(|s| s.at);
    match m.values.node(v) {
        Node::Load(id, 8) => {
            let load = *m.loads.get(id as usize)?;
            let (at, index) = indexed(m, load.addr, 3, known(TableForm::Absolute8))?;
            Some((Shape { at, form: TableForm::Absolute8, load: load.inst }, index, id))
        }
        Node::Add(x, base) => {
            let Node::Sext(entry, 32) = m.values.node(x) else { return None };
            let Node::Load(id, 4) = m.values.node(entry) else { return None };
            let load = *m.loads.get(id as usize)?;
            let form = TableForm::Relative4 { base: Avma(base) };
            let (at, index) = indexed(m, load.addr, 2, known(form).or(Some(Avma(base))))?;
            Some((Shape { at, form, load: load.inst }, index, id))
        }
        _ => None,
    }
}

/// Parses an address as `table + (index << shift)`; a constant address as an entry of the table at `known`.
fn indexed(m: &mut Machine, addr: V, shift: u8, known: Option<Avma>) -> Option<(Avma, V)> {
    match m.values.node(addr) {
        Node::Const(c) => {
            let (at, size) = (known?, 1u64 << shift);
            let distance = Avma(c).since(at).filter(|d| d % size == 0)?;
            Some((at, m.values.constant(distance / size)))
        }
        Node::Add(x, at) => {
            let Node::Shl(index, k) = m.values.node(x) else { return None };
            (k == shift).then_some((Avma(at), index))
        }
        _ => None,
    }
}
