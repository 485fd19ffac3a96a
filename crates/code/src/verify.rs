//! Checks the invariants of a graph.
//!
//! [`verify`] compares every invariant of [`Cfg`] with the original's bytes. It shares no code with the
//! analysis: it decodes again and derives everything that it compares. The invariants, by the [`Rule`] that
//! names each:
//!
//! - **Parts**: there is at least one part, none is empty, no two overlap, and the first holds the entry.
//! - **Entry**: there is at least one block, and block 0 starts at the entry.
//! - **Partition**: the instruction ranges of the blocks, in the order of blocks, follow each other without
//!   gaps, from 0 to the number of instructions; none is empty.
//! - **Contiguous**: a block's instructions follow each other by address from the start of its range to the
//!   end.
//! - **InPart**: a block lies inside one part.
//! - **Disjoint**: no two blocks share a byte.
//! - **Decoded**: an instruction is valid, states its own address and size, and equals the decoding of its
//!   bytes there.
//! - **Original**: its bytes are those of the original.
//! - **Transfer**: only a block's last instruction transfers control; a call that returns may stand anywhere.
//! - **Terminator**: the end of a block matches its last instruction: kind, condition, and table.
//! - **Destination**: a block named as a destination exists and starts exactly at the branch's destination.
//!   An outside destination is the branch's destination. A fall-through destination is the end of the block.
//! - **Table**: a table has entries, and a switch names it. If its bytes can be read, they hold its targets.
//! - **TableLoad**, for a table that may be cloned: exactly one switch reads it. The reading instruction
//!   reads memory there, and reaches the table with the stated base. The registers differ from behind this
//!   instruction up to its jump, in one block.
//! - **Reachable**: each block is reached from the entry or from a landing pad.

use crate::{Cfg, Dest, JumpTable, TableForm, Term};
use addr::{Addr, Avma, AvmaRange};
use fixedbitset::FixedBitSet;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpAccess, OpKind, Register};
use std::fmt;

/// An invariant; the head of this module defines each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[expect(missing_docs, reason = "each is stated at the head of the module")]
pub enum Rule {
    Parts,
    Entry,
    Partition,
    Contiguous,
    InPart,
    Disjoint,
    Decoded,
    Original,
    Transfer,
    Terminator,
    Destination,
    Table,
    TableLoad,
    Reachable,
}

/// A place in a graph, by index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The graph as a whole.
    Graph,
    /// One of [`Cfg::parts`].
    Part(usize),
    /// One of [`Cfg::blocks`].
    Block(usize),
    /// One of [`Cfg::insts`].
    Inst(usize),
    /// One of [`Cfg::tables`].
    Table(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Graph => write!(f, "graph"),
            Place::Part(i) => write!(f, "part {i}"),
            Place::Block(i) => write!(f, "block b{i}"),
            Place::Inst(i) => write!(f, "instruction {i}"),
            Place::Table(i) => write!(f, "table t{i}"),
        }
    }
}

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {rule:?}: {message}")]
pub struct Violation {
    /// The place of the violation.
    pub place: Place,
    /// The violated invariant.
    pub rule: Rule,
    /// The observed difference.
    pub message: String,
}

/// Checks all invariants. `bytes` returns the original's bytes. Missing bytes of code are a violation; the
/// entries of a jump table without bytes are not compared.
///
/// # Errors
/// All violations found, in the order of blocks, then tables.
pub fn verify(cfg: &Cfg, bytes: &dyn Fn(AvmaRange) -> Option<Vec<u8>>) -> Result<(), Vec<Violation>> {
    let mut v = Verifier { cfg, bytes, found: Vec::new() };
    v.parts();
    v.partition();
    for b in 0..cfg.blocks.len() {
        v.block(b);
        v.terminator(b);
    }
    v.disjoint();
    for t in 0..cfg.tables.len() {
        v.table(t);
    }
    v.reachable();
    if v.found.is_empty() { Ok(()) } else { Err(v.found) }
}

struct Verifier<'a> {
    cfg: &'a Cfg,
    bytes: &'a dyn Fn(AvmaRange) -> Option<Vec<u8>>,
    found: Vec<Violation>,
}

impl Verifier<'_> {
    fn fail(&mut self, place: Place, rule: Rule, message: impl Into<String>) {
        self.found.push(Violation { place, rule, message: message.into() });
    }

    fn parts(&mut self) {
        let parts = &self.cfg.parts;
        if !parts.first().is_some_and(|p| p.contains(self.cfg.entry)) {
            self.fail(Place::Graph, Rule::Parts, "the entry is not in the first part");
        }
        for (i, p) in parts.iter().enumerate() {
            if p.is_empty() {
                self.fail(Place::Part(i), Rule::Parts, "is empty");
            }
            if let Some(other) = parts.iter().take(i).find(|o| o.overlaps(p)) {
                self.fail(Place::Part(i), Rule::Parts, format!("{p:?} overlaps {other:?}"));
            }
        }
        match self.cfg.blocks.first() {
            Some(b) if b.range.start == self.cfg.entry => {}
            Some(b) => {
                let message = format!("starts at {}, the entry is {}", b.range.start, self.cfg.entry);
                self.fail(Place::Block(0), Rule::Entry, message);
            }
            None => self.fail(Place::Graph, Rule::Entry, "no blocks"),
        }
    }

    fn partition(&mut self) {
        let mut next = 0;
        for (i, b) in self.cfg.blocks.iter().enumerate() {
            let r = &b.insts;
            if r.start != next || r.end <= r.start {
                self.fail(Place::Block(i), Rule::Partition, format!("has {r:?}, expected {next}.."));
            }
            next = r.end;
        }
        if usize::try_from(next) != Ok(self.cfg.insts.len()) {
            let message = format!("blocks have {next} of {} instructions", self.cfg.insts.len());
            self.fail(Place::Graph, Rule::Partition, message);
        }
    }

    /// Returns the indices of a block's instructions, as far as they exist.
    fn inst_range(&self, block: usize) -> std::ops::Range<usize> {
        let all = self.cfg.insts.len();
        let index = |i: u32| usize::try_from(i).unwrap_or(all).min(all);
        let r = &self.cfg.blocks[block].insts;
        index(r.start)..index(r.end)
    }

    fn block(&mut self, b: usize) {
        let range = self.cfg.blocks[b].range;
        let insts = self.inst_range(b);
        if !self.cfg.parts.iter().any(|p| p.covers(&range)) {
            self.fail(Place::Block(b), Rule::InPart, format!("{range:?} is in no part"));
        }
        let original = (self.bytes)(range);
        if original.is_none() {
            self.fail(Place::Block(b), Rule::Original, format!("{range:?} cannot be read"));
        }
        let mut at = range.start;
        for i in insts.clone() {
            let inst = &self.cfg.insts[i];
            if inst.at != at {
                self.fail(Place::Inst(i), Rule::Contiguous, format!("is at {}, expected {at}", inst.at));
            }
            at = inst.end();
            self.instruction(i);
            if let Some(original) = &original {
                let from = self.cfg.insts[i].at.since(range.start).and_then(|o| usize::try_from(o).ok());
                let bytes = self.cfg.insts[i].bytes.as_slice();
                let there = from.and_then(|f| original.get(f..)?.get(..bytes.len()));
                if there != Some(bytes) {
                    self.fail(Place::Inst(i), Rule::Original, format!("{bytes:x?}, original {there:x?}"));
                }
            }
            if i + 1 < insts.end && !runs_on(&self.cfg.insts[i].decoded) {
                self.fail(Place::Inst(i), Rule::Transfer, "sends control elsewhere but is not the last");
            }
        }
        if at != range.end {
            let message = format!("its instructions end at {at}, its range at {}", range.end);
            self.fail(Place::Block(b), Rule::Contiguous, message);
        }
    }

    fn instruction(&mut self, i: usize) {
        let inst = &self.cfg.insts[i];
        let bytes = inst.bytes.as_slice();
        let again = Decoder::with_ip(64, bytes, inst.at.raw(), DecoderOptions::NONE).decode();
        let message = if inst.decoded.ip() != inst.at.raw() {
            format!("decoded at {:#x}, stands at {}", inst.decoded.ip(), inst.at)
        } else if again.is_invalid() || again.len() != bytes.len() {
            format!("{bytes:x?} is not one instruction")
        } else if inst.decoded.len() != bytes.len() || inst.decoded != again {
            format!("{bytes:x?} is {again}, not {}", inst.decoded)
        } else {
            return;
        };
        self.fail(Place::Inst(i), Rule::Decoded, message);
    }

    fn terminator(&mut self, b: usize) {
        let cfg = self.cfg;
        let Some(last) = self.inst_range(b).next_back() else { return };
        let inst = &cfg.insts[last].decoded;
        let flow = inst.flow_control();
        let target = Avma(inst.near_branch_target());
        let end = cfg.blocks[b].range.end;
        let term = &cfg.blocks[b].term;
        let fits = match term {
            Term::Fall { .. } => runs_on(inst),
            Term::Jump { .. } => inst.is_jmp_short_or_near(),
            Term::Cond { cc, .. } => inst.is_jcc_short_or_near() && inst.condition_code() == *cc,
            Term::CondShort { .. } => inst.is_loop() || inst.is_loopcc() || inst.is_jcx_short(),
            Term::Switch { .. } | Term::Indirect => {
                inst.is_jmp_near_indirect() || (*term == Term::Indirect && inst.is_jmp_far_indirect())
            }
            Term::Return => flow == FlowControl::Return,
            Term::NoReturnCall { next } => is_call(inst) && *next == end,
            Term::Trap => {
                matches!(flow, FlowControl::Exception | FlowControl::Interrupt)
                    || inst.mnemonic() == Mnemonic::Hlt
            }
        };
        if !fits {
            self.fail(Place::Block(b), Rule::Terminator, format!("ends in {inst}, not as {term:?}"));
        }
        match term {
            Term::Fall { next } => self.dest(Place::Block(b), *next, end),
            Term::Jump { to } => self.dest(Place::Block(b), *to, target),
            Term::Cond { taken, fall, .. } | Term::CondShort { taken, fall } => {
                self.dest(Place::Block(b), *taken, target);
                self.dest(Place::Block(b), *fall, end);
            }
            Term::Switch { table } => {
                if cfg.tables.get(table.index()).is_none() {
                    self.fail(Place::Block(b), Rule::Terminator, format!("there is no table t{}", table.0));
                }
            }
            Term::Indirect | Term::Return | Term::NoReturnCall { .. } | Term::Trap => {}
        }
    }

    /// Returns the address of a destination, if it exists.
    fn address(&self, dest: Dest) -> Option<Avma> {
        match dest {
            Dest::Block(b) => self.cfg.blocks.get(b.index()).map(|b| b.range.start),
            Dest::Outside(at) => Some(at),
        }
    }

    fn dest(&mut self, place: Place, dest: Dest, expected: Avma) {
        if self.address(dest) != Some(expected) {
            self.fail(place, Rule::Destination, format!("goes to {expected}, not to {dest:?}"));
        }
    }

    fn disjoint(&mut self) {
        let mut order: Vec<usize> = (0..self.cfg.blocks.len()).collect();
        order.sort_unstable_by_key(|&b| self.cfg.blocks[b].range);
        for (&a, &b) in order.iter().zip(order.iter().skip(1)) {
            let (ra, rb) = (self.cfg.blocks[a].range, self.cfg.blocks[b].range);
            if rb.start < ra.end {
                self.fail(Place::Block(b), Rule::Disjoint, format!("{rb:?} overlaps b{a} at {ra:?}"));
            }
        }
    }

    fn table(&mut self, t: usize) {
        let cfg = self.cfg;
        let table = &cfg.tables[t];
        let readers: Vec<usize> = (0..cfg.blocks.len())
            .filter(|&b| matches!(cfg.blocks[b].term, Term::Switch { table } if table.index() == t))
            .collect();
        if table.targets.is_empty() {
            self.fail(Place::Table(t), Rule::Table, "has no entries");
        }
        if readers.is_empty() {
            self.fail(Place::Table(t), Rule::Table, "no switch reads it");
        }
        let entries = read_table(table, self.bytes);
        for (i, &target) in table.targets.iter().enumerate() {
            let Some(to) = self.address(target) else {
                self.fail(Place::Table(t), Rule::Destination, format!("entry {i}: no block {target:?}"));
                continue;
            };
            let there = entries.as_ref().map(|e| e.get(i).copied());
            if there.is_some_and(|there| there != Some(to)) {
                self.fail(Place::Table(t), Rule::Table, format!("entry {i} is {there:?}, not {to}"));
            }
        }
        self.table_load(t, &readers);
    }

    fn table_load(&mut self, t: usize, readers: &[usize]) {
        let cfg = self.cfg;
        let table = &cfg.tables[t];
        let Some(load) = table.cloneable else { return };
        let &[reader] = readers else {
            self.fail(Place::Table(t), Rule::TableLoad, format!("{} switches read it", readers.len()));
            return;
        };
        let insts = &cfg.blocks[reader].insts;
        let Some(inst) = cfg.insts.get(load.inst.index()) else {
            self.fail(Place::Table(t), Rule::TableLoad, format!("there is no instruction {}", load.inst.0));
            return;
        };
        if !insts.contains(&load.inst.0) {
            self.fail(Place::Table(t), Rule::TableLoad, format!("the load is not in b{reader}, the jump is"));
        }
        let (from, to) = load.differs;
        if (from, to.0) != (load.inst.next(), insts.end) {
            let message = format!("registers differ in {}..{}, the jump ends {insts:?}", from.0, to.0);
            self.fail(Place::Table(t), Rule::TableLoad, message);
        }
        let decoded = &inst.decoded;
        let reads = decoded.op_kinds().any(|k| k == OpKind::Memory)
            && decoded.mnemonic() != Mnemonic::Lea
            && !writes_memory(decoded);
        // iced reports a RIP-relative displacement as the address itself, and sign-extends all others.
        let displacement = Avma(decoded.memory_displacement64());
        let by_register = !matches!(decoded.memory_base(), Register::None | Register::RIP);
        let reaches = match load.base_value {
            Some(base) => by_register && base.add(displacement.raw()) == table.at,
            None => displacement == table.at,
        };
        if !reads || !reaches {
            let message = format!("{decoded} with base {:?} does not read {}", load.base_value, table.at);
            self.fail(Place::Table(t), Rule::TableLoad, message);
        }
    }

    fn reachable(&mut self) {
        let cfg = self.cfg;
        let mut seen = FixedBitSet::with_capacity(cfg.blocks.len());
        let mut todo: Vec<usize> = (0..cfg.blocks.len().min(1)).collect();
        todo.extend(cfg.blocks.iter().enumerate().filter(|(_, b)| b.landing_pad).map(|(i, _)| i));
        while let Some(b) = todo.pop() {
            if seen.put(b) {
                continue;
            }
            let mut go = |dest: Dest| {
                if let Dest::Block(to) = dest
                    && to.index() < cfg.blocks.len()
                {
                    todo.push(to.index());
                }
            };
            match &cfg.blocks[b].term {
                Term::Fall { next: to } | Term::Jump { to } => go(*to),
                Term::Cond { taken, fall, .. } | Term::CondShort { taken, fall } => {
                    go(*taken);
                    go(*fall);
                }
                Term::Switch { table } => {
                    let table = cfg.tables.get(table.index());
                    table.into_iter().flat_map(|t| &t.targets).for_each(|d| go(*d));
                }
                Term::Indirect | Term::Return | Term::NoReturnCall { .. } | Term::Trap => {}
            }
        }
        for b in seen.zeroes() {
            self.fail(Place::Block(b), Rule::Reachable, "nothing reaches it");
        }
    }
}

/// Returns the addresses in the bytes of a table.
fn read_table(table: &JumpTable, bytes: &dyn Fn(AvmaRange) -> Option<Vec<u8>>) -> Option<Vec<Avma>> {
    let size: usize = match table.form {
        TableForm::Absolute8 => 8,
        TableForm::Relative4 { .. } => 4,
    };
    let len = table.targets.len().checked_mul(size)?;
    let data = bytes(AvmaRange::with_len(table.at, u64::try_from(len).ok()?))?;
    let entry = |e: &[u8]| match table.form {
        TableForm::Absolute8 => Some(Avma(u64::from_le_bytes(e.try_into().ok()?))),
        TableForm::Relative4 { base } => Some(base.offset(i32::from_le_bytes(e.try_into().ok()?).into())),
    };
    data.chunks_exact(size).map(entry).collect()
}

/// Returns whether the next instruction runs after this one, unless a call does not return: this one is no
/// jump and no end.
fn runs_on(inst: &iced_x86::Instruction) -> bool {
    match inst.flow_control() {
        FlowControl::Next => inst.mnemonic() != Mnemonic::Hlt,
        FlowControl::Call | FlowControl::IndirectCall => true,
        FlowControl::Interrupt => !matches!(inst.mnemonic(), Mnemonic::Int3 | Mnemonic::Int1),
        FlowControl::XbeginXabortXend => inst.mnemonic() == Mnemonic::Xend,
        FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::ConditionalBranch
        | FlowControl::Return
        | FlowControl::Exception => false,
    }
}

fn is_call(inst: &iced_x86::Instruction) -> bool {
    matches!(inst.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// Returns whether the memory operand is written.
fn writes_memory(inst: &iced_x86::Instruction) -> bool {
    iced_x86::InstructionInfoFactory::new()
        .info(inst)
        .used_memory()
        .iter()
        .any(|m| m.base() != Register::RSP && !matches!(m.access(), OpAccess::Read | OpAccess::CondRead))
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
