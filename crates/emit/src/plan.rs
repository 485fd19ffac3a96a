//! Chooses the instructions of a clone.
//!
//! The state problem: a block's last branch depends on what follows the block. In the original that is always
//! the next address; in the clone it depends on the order. So each way out of a block is planned again:
//!
//! | original | follows in the clone | clone |
//! |---|---|---|
//! | no branch, or a call | its successor | nothing |
//! | | other | `jmp` (extra) |
//! | `jmp d` | d | nothing (dropped) |
//! | | other | `jmp d` |
//! | `jcc t` else f | f | `jcc t` |
//! | | t | `jncc f` (inverted) |
//! | | other | `jcc t`, `jmp f` (extra) |
//! | `loop t`, `jrcxz t` else f | t | `loop .+n`, `jmp f` (extra of n bytes) |
//! | | other | the same, then `jmp t` (extra) |
//! | no known successor | anything | the same, then `jmp` to the original's next |
//!
//! The last row does not rely on "does not return". If a call does return, or a debugger steps over a trap,
//! control continues as in the original.
//!
//! A counter on a way out runs on that way only. It stands before the jump, or behind a conditional jump that
//! is inverted to skip it (`jcc t` becomes `jncc .+n`, the counter, `jmp t`). A counter of a block stands
//! before the instruction that its spot names. It never stands before an `endbr64`, as direct calls enter
//! behind it.
//!
//! A loop may be unrolled ([`crate::unroll`]).
//!
//! Everything but branches has its final size here; `relax` sizes those.

use crate::count;
use crate::inline::OutOfLine;
use crate::items::{
    FragmentPlan, Kind, Op, Place, Plan, PlannedBlock, PlannedTable, Target, Zone, branch_len,
};
use crate::request::{Counter, Function, Stubs};
use crate::table;
use addr::Avma;
use code::{Block, BlockId, Dest, InstId, Point, Refusal, TableId, Term};
use iced_x86::{Code, ConditionCode, Decoder, DecoderOptions, Instruction, OpKind};
use rustc_hash::FxHashMap;

/// Plans a clone. `original_tables` are the jump tables that must not be cloned although they could be.
///
/// # Errors
/// A refusal if the graph has a branch that is not understood, or that does not end its block as the graph
/// says.
pub(crate) fn plan(f: &Function<'_>, original_tables: &[TableId], stubs: &Stubs) -> Result<Plan, Refusal> {
    let counters = f.counters.iter().map(|c| (c.at, *c)).collect();
    let mut b = Builder { f, counters, stubs, out_of_line: Vec::new(), plan: Plan::default() };
    b.plan.places = vec![None; f.cfg.blocks.len()];
    for (place, id) in (0u32..).map(Place).zip(&f.order) {
        b.plan.places[id.index()] = Some(place);
    }
    b.plan.items.reserve(f.order.iter().map(|&id| f.cfg.insts_of(id).len() + 1).sum());
    b.plan_tables(original_tables);
    let mut place = 0;
    while place < f.order.len() {
        place += b.loop_at(place)?;
    }
    b.plan_out_of_line()?;
    Ok(b.plan)
}

pub(crate) struct Builder<'a> {
    pub(crate) f: &'a Function<'a>,
    counters: FxHashMap<Point, Counter>,
    stubs: &'a Stubs,
    /// Out-of-line code to be planned behind the blocks.
    pub(crate) out_of_line: Vec<OutOfLine>,
    pub(crate) plan: Plan,
}

/// A conditional branch at the end of a block.
#[derive(Clone, Copy)]
struct Conditional {
    from: BlockId,
    last: InstId,
    /// The condition's number in the opcode.
    number: u8,
    taken: Dest,
    fall: Dest,
}

impl Builder<'_> {
    /// Chooses the tables to clone: their reader and jump are cloned, and they lead to a cloned block.
    fn plan_tables(&mut self, original_tables: &[TableId]) {
        let cfg = self.f.cfg;
        if cfg.tables.iter().all(|t| t.cloneable.is_none()) {
            return;
        }
        let mut cloned = vec![false; cfg.insts.len()];
        for &id in &self.f.order {
            let r = &cfg.blocks[id.index()].insts;
            cloned[r.start as usize..r.end as usize].fill(true);
        }
        for (id, t) in cfg.numbered_tables() {
            let Some(load) = t.cloneable else { continue };
            let differs = load.differs.0.index()..load.differs.1.index();
            let all_cloned = cloned.get(load.inst.index()) == Some(&true)
                && cloned.get(differs.clone()).is_some_and(|c| c.iter().all(|&c| c));
            let pays = t.targets.iter().any(|&d| matches!(self.target(d), Target::Place(_)));
            if !all_cloned || !pays || original_tables.contains(&id) {
                continue;
            }
            // A reader that cannot have a disp32 reads the original table.
            if let Some((bytes, disp_at)) = table::with_disp32(&cfg.insts[load.inst.index()]) {
                let at = self.plan.tables_len;
                self.plan.tables.push(PlannedTable { id, at, bytes, disp_at });
                self.plan.tables_len += table::table_len(t);
                // INVARIANT(movable)
                self.plan.fixed.extend(cfg.insts[differs].iter().map(|i| i.at));
            }
        }
        self.plan.fixed.sort_unstable();
    }

    /// Returns the zone of the block at a place of the order.
    fn zone(&self, place: usize) -> Zone {
        if place < self.f.hot { Zone::Hot } else { Zone::Warm }
    }

    /// Plans the block at a place of the order, or all copies of the loop that begins there. Returns how many
    /// blocks of the order that covers.
    fn loop_at(&mut self, first: usize) -> Result<usize, Refusal> {
        let (blocks, copies) = self.f.unrolled(first);
        let mut again = None;
        for copy in 1..=copies {
            for place in first..first + blocks {
                let id = self.f.order[place];
                if copy == 1 {
                    self.begin(id, place)?;
                }
                let goes_round = place + 1 == first + blocks && copy < copies;
                self.block(id, if goes_round { Some(self.f.order[first]) } else { self.behind(place) })?;
            }
            again = again.or(Some(self.plan.next_item()?));
        }
        let end = self.plan.next_item()?;
        let further = again.map(|from| from..end);
        self.plan.again.extend(further.filter(|r| !r.is_empty()));
        Ok(blocks)
    }

    /// Returns the block that follows the block at a place of the order, in the same fragment.
    fn behind(&self, place: usize) -> Option<BlockId> {
        self.f.order.get(place + 1).copied().filter(|_| self.zone(place) == self.zone(place + 1))
    }

    /// Plans the start of a block, before its first copy, and of its fragment if it is the first there.
    fn begin(&mut self, id: BlockId, place: usize) -> Result<(), Refusal> {
        self.begin_fragment(place)?;
        self.plan.blocks.push(PlannedBlock { id, first: self.plan.next_item()? });
        Ok(())
    }

    /// Begins a fragment if the block at a place of the order is the first of its zone.
    fn begin_fragment(&mut self, place: usize) -> Result<(), Refusal> {
        let zone = self.zone(place);
        if self.plan.fragments.last().is_none_or(|f| f.zone != zone) {
            let first = self.plan.next_item()?;
            self.plan.fragments.push(FragmentPlan { zone, first });
        }
        Ok(())
    }

    /// Plans a block that is followed by `next`.
    fn block(&mut self, id: BlockId, next: Option<BlockId>) -> Result<(), Refusal> {
        let block = &self.f.cfg.blocks[id.index()];
        let insts = &block.insts;
        let first = self.f.cfg.insts.get(insts.start as usize).ok_or(Refusal::RoundTrip)?;
        let last = block.last_inst().filter(|l| l.0 >= insts.start).ok_or(Refusal::RoundTrip)?;
        // Direct calls enter behind an `endbr64`.
        let marked = first.decoded.code() == Code::Endbr64 && insts.len() > 1;
        let skip = self.counters.get(&Point::Block(id)).map_or(0, |c| c.spot.skip).max(u32::from(marked));
        let counted = insts.start.checked_add(skip).map(InstId).filter(|&i| i <= last);
        let counted = counted.ok_or(Refusal::RoundTrip)?;
        for i in block.inst_ids() {
            let is_new = !self.plan.entrances.iter().any(|e| e.0 == i);
            if is_new && self.f.entrances.contains(&i) {
                let item = self.plan.next_item()?;
                self.plan.entrances.push((i, item));
            }
            if i == counted {
                self.count(Point::Block(id), self.f.cfg.insts[i.index()].at);
            }
            if i < last {
                self.copy(i)?;
            }
        }
        match block.term {
            Term::Jump { .. } | Term::Cond { .. } | Term::CondShort { .. } => {}
            _ => self.copy(last)?,
        }
        self.leave(id, last, next)
    }

    /// Plans an instruction that is not a direct jump.
    fn copy(&mut self, id: InstId) -> Result<(), Refusal> {
        let inst = &self.f.cfg.insts[id.index()];
        for w in self.f.watches.iter().filter(|w| w.inst == id) {
            let step = count::Step::Store(w.register);
            let kind = Kind::Count { step, offset: w.offset };
            self.plan.push(kind, count::len(step), None, inst.at);
        }
        match self.f.inline_sites.iter().find(|s| s.call == id) {
            Some(s) if self.inline_call(s)? => Ok(()),
            _ => self.copy_as_it_is(id),
        }
    }

    /// Plans an instruction that is not a direct jump and is not an inlined or guarded call.
    pub(crate) fn copy_as_it_is(&mut self, id: InstId) -> Result<(), Refusal> {
        let inst = &self.f.cfg.insts[id.index()];
        let i = &inst.decoded;
        let bytes = inst.bytes.as_slice();
        let mut len = bytes.len();
        let kind = if let Some(t) = self.table_read_by(id) {
            len = t.bytes.as_slice().len();
            Kind::TableLoad { table: t.id }
        } else if let Some(slot) = self.slot(i).filter(|_| i.code() == Code::Call_rel32_64 && len == CALL_LEN)
        {
            len = THROUGH_LEN as usize;
            Kind::Through { slot, call: true }
        } else if i.code() == Code::Call_rel32_64 {
            let through_redirect = self.through_redirect(id);
            Kind::Call { to: Avma(i.near_branch_target()), through_redirect }
        } else if has_code_operand(i) {
            // `xbegin` and other instructions relative to their own address; a direct jump inside a block
            // breaks the graph.
            return Err(Refusal::ReadsOwnAddress);
        } else if i.is_ip_rel_memory_operand() {
            Kind::RipRelative { disp_at: disp32_at(bytes).ok_or(Refusal::RoundTrip)? }
        } else {
            Kind::Verbatim
        };
        let len = u32::try_from(len).map_err(|_| Refusal::TooLarge)?;
        self.plan.push(kind, len, Some(id), inst.at);
        Ok(())
    }

    fn table_read_by(&self, inst: InstId) -> Option<&PlannedTable> {
        let reads = |t: &&PlannedTable| {
            self.f.cfg.tables[t.id.index()].cloneable.is_some_and(|load| load.inst == inst)
        };
        self.plan.tables.iter().find(reads)
    }

    /// Plans the end of a block: see the table above.
    fn leave(&mut self, id: BlockId, last: InstId, next: Option<BlockId>) -> Result<(), Refusal> {
        let block: &Block = &self.f.cfg.blocks[id.index()];
        let is_next = |to| matches!(to, Dest::Block(b) if next == Some(b));
        let way = |index| Point::Edge { from: id, index };
        let inst = &self.f.cfg.insts[last.index()];
        let i = &inst.decoded;
        match block.term {
            Term::Fall { next } => {
                self.count(way(0), self.start_of(next));
                if !is_next(next) {
                    self.extra_jump(next)?;
                }
            }
            Term::Jump { to } => {
                if !i.is_jmp_short_or_near() {
                    return Err(Refusal::RoundTrip);
                }
                self.count(way(0), inst.at);
                if is_next(to) {
                    self.plan.push(Kind::Dropped, 0, Some(last), inst.at);
                } else if let Some(slot) = self.slot(i) {
                    let kind = Kind::Through { slot, call: false };
                    self.plan.push(kind, THROUGH_LEN, Some(last), inst.at);
                } else {
                    let to = self.target(to);
                    self.branch(Op::Jump, to, Some(last), inst.at)?;
                }
            }
            Term::Cond { cc, taken, fall } => {
                let number = condition_number(cc).ok_or(Refusal::RoundTrip)?;
                if !i.is_jcc_short_or_near() {
                    return Err(Refusal::RoundTrip);
                }
                self.conditional(Conditional { from: id, last, number, taken, fall }, next)?;
            }
            Term::CondShort { taken, fall } => {
                if !(i.is_jcx_short() || i.is_loop() || i.is_loopcc()) {
                    return Err(Refusal::RoundTrip);
                }
                let len = u32::try_from(inst.bytes.as_slice().len()).map_err(|_| Refusal::TooLarge)?;
                let kind = Kind::Skip { over: self.counter_items(way(1)) + 1 };
                self.plan.push(kind, len, Some(last), inst.at);
                self.count(way(1), self.start_of(fall));
                self.extra_jump(fall)?;
                self.count(way(0), self.start_of(taken));
                if !is_next(taken) {
                    self.extra_jump(taken)?;
                }
            }
            Term::NoReturnCall { next } => self.extra_jump_to_original(next)?,
            Term::Trap => self.extra_jump_to_original(block.range.end)?,
            Term::Switch { .. } | Term::Indirect | Term::Return => {}
        }
        Ok(())
    }

    /// Plans a conditional branch at the end of a block, before the block `next`.
    fn conditional(&mut self, branch: Conditional, next: Option<BlockId>) -> Result<(), Refusal> {
        let Conditional { from, last, number, taken, fall } = branch;
        let is_next = |to| matches!(to, Dest::Block(b) if next == Some(b));
        let way = |index| Point::Edge { from, index };
        let at = self.f.cfg.insts[last.index()].at;
        let counted = |index| self.counters.contains_key(&way(index));
        if counted(0) {
            let over = self.counter_items(way(0)) + 1;
            let kind = Kind::Over { cond: number ^ 1, over };
            self.plan.push(kind, 2, Some(last), at);
            self.count(way(0), self.start_of(taken));
            self.extra_jump(taken)?;
        } else if is_next(taken) && !is_next(fall) && !counted(1) {
            // If both arms lead to the next block, the branch keeps its condition.
            self.plan.inverted += 1;
            let to = self.target(fall);
            return self.branch(Op::Cond(number ^ 1), to, Some(last), at);
        } else {
            let to = self.target(taken);
            self.branch(Op::Cond(number), to, Some(last), at)?;
        }
        self.count(way(1), self.start_of(fall));
        if !is_next(fall) {
            self.extra_jump(fall)?;
        }
        Ok(())
    }

    /// Returns the slot of the stub to which an instruction branches.
    fn slot(&self, i: &Instruction) -> Option<Avma> {
        self.stubs.get(&Avma(i.near_branch_target())).copied()
    }

    /// Returns whether a call goes through the redirect at its callee's original.
    pub(crate) fn through_redirect(&self, call: InstId) -> bool {
        self.f.through_redirects.binary_search(&call).is_ok()
    }

    fn target(&self, to: Dest) -> Target {
        match to {
            Dest::Outside(at) => Target::Outside(at),
            Dest::Block(b) => match self.plan.places[b.index()] {
                Some(place) => Target::Place(place),
                None => Target::Original(self.f.cfg.blocks[b.index()].range.start),
            },
        }
    }

    /// Returns the original address of a destination.
    fn start_of(&self, to: Dest) -> Avma {
        match to {
            Dest::Block(b) => self.f.cfg.blocks[b.index()].range.start,
            Dest::Outside(at) => at,
        }
    }

    fn extra_jump(&mut self, to: Dest) -> Result<(), Refusal> {
        self.branch(Op::Jump, self.target(to), None, self.start_of(to))
    }

    /// Plans the counter of a point, if it has one. It stands for the original instruction at `original`.
    fn count(&mut self, at: Point, original: Avma) {
        for (c, step) in
            self.counters.get(&at).into_iter().flat_map(|c| count::steps(c.spot.by).map(move |s| (c, s)))
        {
            let kind = Kind::Count { step, offset: c.offset };
            self.plan.push(kind, count::len(step), None, original);
        }
    }

    /// Returns the number of items in a point's counter.
    fn counter_items(&self, at: Point) -> u32 {
        self.counters
            .get(&at)
            .map_or(0, |c| (1u32..).zip(count::steps(c.spot.by)).last().map_or(0, |(n, _)| n))
    }

    fn extra_jump_to_original(&mut self, next: Avma) -> Result<(), Refusal> {
        self.branch(Op::Jump, Target::Original(next), None, next)
    }

    fn branch(&mut self, op: Op, to: Target, inst: Option<InstId>, original: Avma) -> Result<(), Refusal> {
        // The distance between fragments is not known here.
        let here = self.plan.fragments.last().map(|f| f.zone);
        let long = !matches!(to, Target::Place(p) if here == Some(self.zone(p.index())));
        self.plan.push(Kind::Branch { op, to, long }, branch_len(op, long), inst, original);
        Ok(())
    }
}

/// Size of a direct call without prefixes. Bytes.
const CALL_LEN: usize = 5;
/// Size of a call or jump through a slot. Bytes.
const THROUGH_LEN: u32 = 6;

/// Returns a condition's number in the opcodes of `jcc`. Its inverse differs in the lowest bit (Intel SDM
/// volume 2, B.1.4.7).
pub(crate) fn condition_number(cc: ConditionCode) -> Option<u8> {
    Some(match cc {
        ConditionCode::None => return None,
        ConditionCode::o => 0,
        ConditionCode::no => 1,
        ConditionCode::b => 2,
        ConditionCode::ae => 3,
        ConditionCode::e => 4,
        ConditionCode::ne => 5,
        ConditionCode::be => 6,
        ConditionCode::a => 7,
        ConditionCode::s => 8,
        ConditionCode::ns => 9,
        ConditionCode::p => 10,
        ConditionCode::np => 11,
        ConditionCode::l => 12,
        ConditionCode::ge => 13,
        ConditionCode::le => 14,
        ConditionCode::g => 15,
    })
}

/// Returns whether an operand is a code address relative to the instruction.
pub(crate) fn has_code_operand(i: &Instruction) -> bool {
    i.op_kinds().any(|k| matches!(k, OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64))
}

/// Returns the offset of an instruction's disp32, if it has one.
pub(crate) fn disp32_at(bytes: &[u8]) -> Option<u8> {
    let mut d = Decoder::new(64, bytes, DecoderOptions::NONE);
    let i = d.decode();
    let offsets = d.get_constant_offsets(&i);
    (offsets.displacement_size() == 4).then(|| u8::try_from(offsets.displacement_offset()).ok()).flatten()
}
