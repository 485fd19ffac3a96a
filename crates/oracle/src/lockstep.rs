//! Compares two executions side by side.

use crate::Error;
use crate::atlas::Atlas;
use crate::decoded::{Access, Code, Decoded, GPR_NAMES, State};
use crate::differ::{Cause, DEAD_FLAGS, DEAD_MEMORY, Inputs, REST, Stains, whole_words};
use crate::report::{Difference, End, Mismatch, Report};
use crate::twin::Side;
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use emit::Link;
use iced_x86::{Code as InstCode, Formatter, GasFormatter, Instruction};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use tracee::Stepped;

/// How many pairs of instructions a mismatch shows.
const TRAIL: usize = 12;
/// State that all comparisons of one target share.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// Decoded instructions of the originals' world and of the clones' world.
    pub(crate) code: (Code, Code),
    /// Functions whose clones had instructions compared, by the original's entry.
    pub(crate) run: FxHashSet<Avma>,
    /// Clone instructions that were compared.
    pub(crate) seen: FxHashSet<Avma>,
    /// How often the stack was unwound at each clone instruction.
    pub(crate) unwound: FxHashMap<Avma, u8>,
}

pub(crate) enum Verdict {
    End(End),
    Mismatch(Box<Mismatch>),
}

/// Which frames the two sides are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// Both sides are in the same frames.
    Same,
    /// The originals' side is in a called function that is inlined on the clones' side.
    Inlined,
}

impl Depth {
    /// Returns how many more frames the originals' side has.
    pub(crate) fn frames(self) -> usize {
        usize::from(self == Depth::Inlined)
    }

    /// Returns the state of the originals' side as it is without the return addresses that only this side
    /// has.
    fn level(self, state: State) -> State {
        let mut level = state;
        level.gprs[4] = state.sp().wrapping_add(8 * self.frames() as u64);
        level
    }
}

/// The memory that a pair of instructions is about to use.
#[derive(Default)]
struct Touched {
    all: Vec<Access>,
    /// What the original's instruction writes, and what the clone's instruction writes.
    writes: (Vec<AvmaRange>, Vec<AvmaRange>),
}

/// How a dead value is moved elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carried {
    Push,
    Pop,
}

impl Carried {
    /// Returns what both instructions do with a general register.
    fn by(da: &Decoded, db: &Decoded) -> Option<Self> {
        match (da.inst.code(), db.inst.code()) {
            (InstCode::Push_r64, InstCode::Push_r64) => Some(Self::Push),
            (InstCode::Pop_r64, InstCode::Pop_r64) => Some(Self::Pop),
            _ => None,
        }
    }
}

/// One comparison.
pub(crate) struct Lockstep<'a> {
    pub(crate) atlas: &'a Atlas,
    pub(crate) memo: &'a mut Memo,
    pub(crate) report: &'a mut Report,
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) stains: Stains,
    /// Memory that twins share with the target.
    shared: Vec<AvmaRange>,
    /// The stack pointer at the entry; `home` is the address to which the function returns.
    pub(crate) entry_sp: u64,
    home: Option<u64>,
    original: Avma,
    done: u64,
    trail: VecDeque<(Instruction, Instruction)>,
}

impl<'a> Lockstep<'a> {
    /// Makes a comparison. Both sides are at the entry of the same function.
    pub(crate) fn new(
        atlas: &'a Atlas,
        memo: &'a mut Memo,
        report: &'a mut Report,
        (a, b): (Side, Side),
        shared: Vec<AvmaRange>,
        original: Avma,
    ) -> Result<Self, Error> {
        let entry_sp = a.now.sp();
        let home = a.memory().u64(Avma(entry_sp)).ok();
        let mut stains = Stains::default();
        for old in atlas.data_olds() {
            for at in crate::differ::words(&AvmaRange::with_len(old.at, old.bytes.len() as u64)) {
                let (a, b) = (a.memory().u64(Avma(at))?, b.memory().u64(Avma(at))?);
                if a != b {
                    stains.begin_with(at);
                }
            }
        }
        let trail = VecDeque::with_capacity(TRAIL);
        let mut new =
            Self { atlas, memo, report, a, b, stains, shared, entry_sp, home, original, done: 0, trail };
        // Reads the extended states of both sides before the first comparison.
        new.a.xsave()?;
        new.b.xsave()?;
        Ok(new)
    }

    /// Compares until the end.
    pub(crate) fn run(mut self, max_steps: u64) -> Result<Verdict, Error> {
        if let Some(end) = self.align()? {
            return Ok(end);
        }
        loop {
            if let Some(end) = self.at_end() {
                return Ok(Verdict::End(end));
            }
            if self.done >= max_steps {
                return Ok(Verdict::End(End::Limit));
            }
            if let Some(end) = self.next()? {
                return Ok(end);
            }
        }
    }

    /// Compares one instruction of both sides, or the code for one call.
    fn next(&mut self) -> Result<Option<Verdict>, Error> {
        if self.atlas.is_dropped(self.a.now.ip(), self.b.now.ip()) {
            self.inlined()
        } else if self.is_guard()? {
            self.guard()
        } else {
            self.pair(Depth::Same)
        }
    }

    /// Executes and compares one instruction of both sides.
    pub(crate) fn pair(&mut self, depth: Depth) -> Result<Option<Verdict>, Error> {
        let (da, db) = self.decode()?;
        self.note(da.inst, db.inst);
        if da.stops || db.stops {
            return Ok(Some(stop(if da.stops { &da } else { &db })));
        }
        let mut touched = match self.touched(&da, &db) {
            Ok(touched) => touched,
            Err(end) => return Ok(Some(end)),
        };
        let inputs = self.inputs(&da, &db, &touched.all);
        let in_window = self.in_window();
        let carried = inputs.dead.and_then(|_| Carried::by(&da, &db));
        if let Some(n) = inputs.dead.filter(|&n| carried.is_none() && (n == DEAD_MEMORY || !in_window)) {
            return Ok(Some(self.dead(n)));
        }
        self.report.unmovable += u64::from(in_window);
        self.count();

        let before = (self.a.now, self.b.now);
        match (self.a.step()?, self.b.step()?) {
            (Stepped::Done, Stepped::Done) => {}
            (Stepped::Ended, _) | (_, Stepped::Ended) => return Ok(Some(Verdict::End(End::Lost))),
            (Stepped::Signal(a), Stepped::Signal(b)) if a == b => {
                return Ok(Some(Verdict::End(End::Signal(a))));
            }
            (a, b) => {
                let signal = |s| if let Stepped::Signal(s) = s { Some(s) } else { None };
                return Ok(Some(self.mismatch(Difference::Signals { values: (signal(a), signal(b)) })));
            }
        }
        self.done += 1;
        self.report.instructions += 1;
        if carried == Some(Carried::Push) {
            touched.writes.0.iter().for_each(|range| self.stains.abandon(range));
            touched.all.iter_mut().for_each(|access| access.overwrites = false);
        }
        if let Some(difference) = self.written(&touched, da.is_call(), inputs) {
            return Ok(Some(self.mismatch(difference)));
        }
        // In inlined code, the caller of this function checks where both sides are.
        if depth == Depth::Same
            && let Some(end) = self.path(&da, inputs)?
        {
            return Ok(Some(end));
        }
        let flags = da.writes_flags | db.writes_flags;
        let cause = Cause { inputs, flags, dead: self.in_window() || carried.is_some() };
        let difference = self.compare(depth, before, cause, da.vector || db.vector)?;
        Ok(difference.map(|d| self.mismatch(d)))
    }

    /// Compares all state except memory with its values before an instruction.
    fn compare(
        &mut self,
        depth: Depth,
        before: (State, State),
        cause: Cause,
        vector: bool,
    ) -> Result<Option<Difference>, Error> {
        let atlas = self.atlas;
        let before = (&depth.level(before.0), &before.1);
        let now = (&depth.level(self.a.now), &self.b.now);
        let bad = self.stains.registers(before, now, cause, &|a, b| atlas.same(a, b));
        if let Some(n) = bad {
            let values = (now.0.gprs[n], now.1.gprs[n]);
            return Ok(Some(Difference::Register { name: GPR_NAMES[n], values }));
        }
        if !self.stains.flags(now, cause) {
            return Ok(Some(Difference::Flags { values: (now.0.flags, now.1.flags) }));
        }
        if (now.0.fs_base, now.0.gs_base) != (now.1.fs_base, now.1.gs_base) {
            return Ok(Some(Difference::Segments));
        }
        let at = if vector { self.vectors(cause)? } else { None };
        Ok(at.map(|at| Difference::Vectors { at }))
    }

    /// Returns the stained inputs of a pair of instructions.
    fn inputs(&self, da: &Decoded, db: &Decoded, memory: &[Access]) -> Inputs {
        let vectors = da.vector.then_some(da.reads_vectors | db.reads_vectors);
        let (gprs, flags) = (da.reads | db.reads, da.reads_flags | db.reads_flags);
        let mut inputs = self.stains.inputs(gprs, flags, vectors, memory);
        if inputs.dead.is_some() {
            // If only the lowest byte is read, and that byte is equal again, no dead value is read.
            let low = (da.reads_low | !da.reads) & (db.reads_low | !db.reads);
            let (a, b) = (&self.a.now.gprs, &self.b.now.gprs);
            let written = |n: &usize| low >> n & 1 == 1 && (a[*n] ^ b[*n]) & 0xff == 0;
            let alive = (0..16).filter(written).fold(0, |mask, n| mask | 1u16 << n);
            inputs.dead = self.stains.inputs(gprs & !alive, flags, vectors, memory).dead;
        }
        inputs.derived |= da.reads_x87_place;
        inputs
    }

    /// Returns the memory that both instructions are about to use. Returns the end if this memory cannot be
    /// compared.
    fn touched(&self, da: &Decoded, db: &Decoded) -> Result<Touched, Verdict> {
        let mut touched = Touched::default();
        for (d, regs, writes) in
            [(da, &self.a.now, &mut touched.writes.0), (db, &self.b.now, &mut touched.writes.1)]
        {
            for access in self.accesses(d, regs)? {
                touched.all.push(access);
                if access.writes {
                    writes.push(access.range);
                }
            }
        }
        Ok(touched)
    }

    /// Returns the memory that one instruction is about to use. Returns the end if this memory cannot be
    /// compared.
    pub(crate) fn accesses(&self, d: &Decoded, regs: &State) -> Result<Vec<Access>, Verdict> {
        // `None` means a gather from many places or a scatter to many places.
        let all = d.accesses(regs).collect::<Option<Vec<Access>>>().ok_or_else(|| stop(d))?;
        let shared = all.iter().any(|access| self.shared.iter().any(|s| s.overlaps(&access.range)));
        if shared { Err(Verdict::End(End::SharedMemory)) } else { Ok(all) }
    }

    pub(crate) fn decode(&mut self) -> Result<(std::rc::Rc<Decoded>, std::rc::Rc<Decoded>), Error> {
        Ok((self.a.next(&mut self.memo.code.0, self.atlas)?, self.b.next(&mut self.memo.code.1, self.atlas)?))
    }

    /// Compares the memory that was written.
    fn written(&mut self, touched: &Touched, pushed: bool, inputs: Inputs) -> Option<Difference> {
        let (wa, wb) = &touched.writes;
        if wa != wb && !inputs.explain() {
            let at = |w: &[AvmaRange]| w.first().map_or(Avma(0), |r| r.start);
            return Some(Difference::Place { values: (at(wa), at(wb)) });
        }
        for access in touched.all.iter().filter(|access| access.overwrites) {
            self.stains.overwrite(&access.range);
        }
        for range in wa.iter().chain(wb.iter().filter(|r| !wa.contains(r))) {
            let whole = whole_words(range);
            let (va, vb) = (self.a.words(whole), self.b.words(whole));
            for ((at, a), b) in crate::differ::words(range).zip(va).zip(vb) {
                // A masked store covers more memory than it writes.
                let (Some(a), Some(b)) = (a, b) else { continue };
                if (a ^ b) & self.stains.live_bits(at) == 0 {
                    self.stains.equal(at);
                } else if !self.stains.word(at, self.atlas.same(a, b), pushed, inputs) {
                    return Some(Difference::Memory { at: Avma(at), values: (a, b) });
                }
            }
        }
        None
    }

    /// Compares the word that the clones' side has pushed with the word that the originals' side had pushed
    /// before.
    pub(crate) fn pushed(&mut self, accesses: Vec<Access>) -> Option<Verdict> {
        let writes: Vec<AvmaRange> = accesses.iter().filter(|a| a.writes).map(|a| a.range).collect();
        let touched = Touched { all: accesses, writes: (writes.clone(), writes) };
        let difference = self.written(&touched, true, Inputs::default())?;
        Some(self.mismatch(difference))
    }

    /// Brings both sides to the next pair of instructions, and checks that these belong together.
    fn path(&mut self, last: &Decoded, inputs: Inputs) -> Result<Option<Verdict>, Error> {
        // A side that has returned is at the address from the snapshot's stack, whether in a clone or not.
        // The code there is not compared.
        if self.at_end().is_some() {
            return Ok(None);
        }
        let end = self.align()?;
        // A code address decides only where it is compared. Where a jump leads to the address, both forms of
        // it are right.
        let by_address = inputs.derived || inputs.address && !last.is_indirect();
        match end {
            Some(Verdict::Mismatch(m)) if by_address && m.difference == Difference::Path => {
                self.report.by_code_address.push(*m);
                Ok(Some(Verdict::End(End::ByCodeAddress)))
            }
            end => Ok(end),
        }
    }

    /// Executes the instructions that only one world has, up to a pair of instructions or to the code for a
    /// call.
    pub(crate) fn align(&mut self) -> Result<Option<Verdict>, Error> {
        loop {
            let (a, b) = (self.a.now.ip(), self.b.now.ip());
            let end = if self.atlas.is_dropped(a, b) {
                if self.a.next(&mut self.memo.code.0, self.atlas)?.is_call() {
                    // If the inlined code is empty, the instruction at `b` belongs to the code that follows.
                    let begins = self.atlas.is_within(b, a);
                    return Ok(begins.then(|| self.unwind(Depth::Same)).flatten());
                }
                self.pass_by()?
            } else if self.atlas.is_passed_by(a, b) || self.atlas.is_behind_mark(a, b) {
                self.pass_by()?
            } else if self.is_only_in_b()? {
                if !self.atlas.stands_for(b, a) {
                    return Ok(Some(self.mismatch(Difference::Path)));
                }
                if let Some(end) = self.unwind(Depth::Same) {
                    return Ok(Some(end));
                }
                if self.is_guard()? {
                    return Ok(None);
                }
                self.report.extra += 1;
                self.only_b()?
            } else if self.atlas.stands_for(b, a) {
                return Ok(self.unwind(Depth::Same));
            } else {
                return Ok(Some(self.mismatch(Difference::Path)));
            };
            if end.is_some() {
                return Ok(end);
            }
        }
    }

    /// Executes an instruction that only the originals' side has: a jump, an instruction of a stub, an
    /// `endbr64`.
    pub(crate) fn pass_by(&mut self) -> Result<Option<Verdict>, Error> {
        self.report.dropped += 1;
        self.only_a()
    }

    /// Executes one instruction on the originals' side.
    pub(crate) fn only_a(&mut self) -> Result<Option<Verdict>, Error> {
        self.a.next(&mut self.memo.code.0, self.atlas)?;
        Ok(match self.a.step()? {
            Stepped::Done => None,
            Stepped::Ended => Some(Verdict::End(End::Lost)),
            Stepped::Signal(s) => Some(self.mismatch(Difference::Signals { values: (Some(s), None) })),
        })
    }

    /// Executes one instruction on the clones' side. It must not change anything that is alive.
    pub(crate) fn only_b(&mut self) -> Result<Option<Verdict>, Error> {
        let before = self.b.now;
        match self.b.step()? {
            Stepped::Done => {}
            Stepped::Ended => return Ok(Some(Verdict::End(End::Lost))),
            Stepped::Signal(s) => {
                return Ok(Some(self.mismatch(Difference::Signals { values: (None, Some(s)) })));
            }
        }
        if self.stains.extra(&self.a.now, &before, &self.b.now) {
            return Ok(None);
        }
        let values = (self.a.now.sp(), self.b.now.sp());
        Ok(Some(self.mismatch(Difference::Register { name: GPR_NAMES[4], values })))
    }

    /// Returns whether the clones' side is about to execute an instruction without a counterpart: an extra
    /// jump or nop, or the redirect of an original.
    fn is_only_in_b(&mut self) -> Result<bool, Error> {
        let b = self.b.now.ip();
        if self.atlas.clone_of(b).is_some() {
            return Ok(self.atlas.is_extra(b));
        }
        let inst = self.b.next(&mut self.memo.code.1, self.atlas)?.inst;
        // The first byte of a redirect stays.
        let changed = AvmaRange::new(b.add(1), Avma(inst.next_ip()));
        if !self.atlas.olds_in(changed).iter().any(|o| changed.contains(o.at)) {
            return Ok(false);
        }
        let to = if inst.is_jmp_near_indirect() && inst.is_ip_rel_memory_operand() {
            Avma(self.b.memory().u64(Avma(inst.ip_rel_memory_address()))?)
        } else {
            Avma(inst.near_branch_target())
        };
        let jumps = inst.is_jmp_near() || inst.is_jmp_near_indirect();
        Ok(jumps && self.atlas.clone_of(to).is_some() && self.atlas.stands_for(to, b))
    }

    /// Returns the end if both sides have returned, or have left the frame in another way, or are in the
    /// vDSO. Returns `None` inside the function.
    fn at_end(&self) -> Option<End> {
        let (a, b) = (&self.a.now, &self.b.now);
        if a.sp() <= self.entry_sp || b.sp() <= self.entry_sp {
            return (self.atlas.in_vdso(a.ip()) && a.ip == b.ip).then(|| End::Instruction("vdso".to_owned()));
        }
        let home = |s: u64| Some(s) == self.home;
        Some(if home(a.ip) && home(b.ip) { End::Returned } else { End::Left })
    }

    /// Returns whether the clones' side is between the read of a cloned jump table and its jump.
    fn in_window(&self) -> bool {
        self.atlas.entry_of(self.b.now.ip()).is_some_and(|(_, e)| !e.movable && e.link != Link::Within)
    }

    fn count(&mut self) {
        let b = self.b.now.ip();
        if let Some((clone, entry)) = self.atlas.entry_of(b) {
            self.report.clone_instructions += 1;
            self.report.again += u64::from(entry.link == Link::Again);
            self.memo.run.insert(clone.original);
            self.memo.seen.insert(b);
        }
    }

    fn vectors(&mut self, cause: Cause) -> Result<Option<usize>, Error> {
        self.a.xsave()?;
        self.b.xsave()?;
        let (differ, first) = differences(self.a.last_xsave(), self.b.last_xsave());
        Ok(if self.stains.vectors(differ, cause) { None } else { Some(first) })
    }

    pub(crate) fn note(&mut self, a: Instruction, b: Instruction) {
        if self.trail.len() == TRAIL {
            self.trail.pop_front();
        }
        self.trail.push_back((a, b));
    }

    /// Returns the mismatch for a dead value that was read.
    pub(crate) fn dead(&self, n: usize) -> Verdict {
        let name = match n {
            DEAD_FLAGS => "flags",
            DEAD_MEMORY => "memory",
            n => GPR_NAMES.get(n).copied().unwrap_or("?"),
        };
        self.mismatch(Difference::Dead { name })
    }

    pub(crate) fn mismatch(&self, difference: Difference) -> Verdict {
        let (a, b) = (self.a.now, self.b.now);
        let differ = (0..16).filter(|&n| a.gprs[n] != b.gprs[n]);
        Verdict::Mismatch(Box::new(Mismatch {
            original: self.original,
            name: self.atlas.name(self.original),
            difference,
            at: (a.ip(), b.ip()),
            after: self.done,
            trail: self.trail.iter().map(|(a, b)| (text(a), text(b))).collect(),
            registers: differ.map(|n| (GPR_NAMES[n], a.gprs[n], b.gprs[n])).collect(),
        }))
    }
}

/// Returns the end for an instruction past which a comparison cannot continue.
fn stop(d: &Decoded) -> Verdict {
    Verdict::End(End::Instruction(format!("{:?}", d.inst.mnemonic()).to_lowercase()))
}

fn text(inst: &Instruction) -> String {
    let mut out = format!("{:x} ", inst.ip());
    GasFormatter::new().format(inst, &mut out);
    out
}

/// Returns the parts of two extended states that differ, as bits (see [`REST`]), and the offset of the first
/// difference.
fn differences(a: &[u8], b: &[u8]) -> (u64, usize) {
    // Two ranges of the XSAVE area (Intel SDM volume 1, 13.4) are no state of the program. These are the code
    // and data addresses of the last x87 instruction, and the bytes for software with the header.
    const SKIPPED: [std::ops::Range<usize>; 2] = [8..24, 464..576];
    let mut bits = 0;
    let mut first = None;
    if a == b {
        return (0, 0);
    }
    for at in (0..a.len().max(b.len())).filter(|&at| a.get(at) != b.get(at)) {
        if SKIPPED.iter().any(|s| s.contains(&at)) {
            continue;
        }
        first = first.or(Some(at));
        bits |= 1
            << match at {
                160..416 => (at - 160) / 16,
                _ => REST as usize,
            };
    }
    (bits, first.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_extended_state() {
        let a = vec![0u8; 1000];
        let with = |at: usize| {
            let mut b = a.clone();
            b[at] = 1;
            differences(&a, &b)
        };
        assert_eq!(with(8), (0, 0), "the place of an instruction");
        assert_eq!(with(520), (0, 0), "the header");
        assert_eq!(with(24), (1 << REST, 24));
        assert_eq!(with(160), (1, 160));
        assert_eq!(with(415), (1 << 15, 415));
        assert_eq!(with(416), (1 << REST, 416));
        assert_eq!(with(999), (1 << REST, 999));
    }
}
