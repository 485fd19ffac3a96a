//! Two executions side by side.

use crate::Error;
use crate::atlas::Atlas;
use crate::decoded::{Code, Decoded, GPR_NAMES};
use crate::differ::{Cause, Inputs, REST, Stains, whole_words};
use crate::frame::{SAVED, WalkEnd, World, walk};
use crate::report::{Difference, End, Mismatch, Report};
use crate::twin::Side;
use addr::{Avma, AvmaRange, ReadMemory};
use iced_x86::{Formatter, GasFormatter, Instruction};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use tracee::Stepped;

/// How many pairs of instructions a mismatch shows.
const TRAIL: usize = 12;
/// How often the stack is unwound at one instruction: the rule is the same each time.
const UNWINDS: u8 = 3;

/// What is known over all comparisons of one target.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// Instructions of the originals' world, and of the clones'.
    pub(crate) code: (Code, Code),
    /// Clones that had instructions compared, by the original's entry.
    pub(crate) run: FxHashSet<Avma>,
    /// Clone instructions that were compared.
    pub(crate) seen: FxHashSet<Avma>,
    /// How often the stack was unwound at a clone instruction.
    unwound: FxHashMap<Avma, u8>,
}

pub(crate) enum Verdict {
    End(End),
    Mismatch(Box<Mismatch>),
}

/// One comparison.
pub(crate) struct Lockstep<'a> {
    atlas: &'a Atlas,
    memo: &'a mut Memo,
    report: &'a mut Report,
    a: Side,
    b: Side,
    stains: Stains,
    /// Memory that twins share with the target.
    shared: Vec<AvmaRange>,
    /// The stack pointer at the entry, and where the function returns to.
    entry_sp: u64,
    home: Option<u64>,
    original: Avma,
    done: u64,
    trail: VecDeque<(Instruction, Instruction)>,
}

impl<'a> Lockstep<'a> {
    /// Both sides stand at the entry of the same function.
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
        // So that the first comparison of them has something to compare with.
        new.a.xsave()?;
        new.b.xsave()?;
        Ok(new)
    }

    /// Goes on until the end.
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
            if let Some(end) = self.pair()? {
                return Ok(end);
            }
        }
    }

    /// One instruction of both.
    fn pair(&mut self) -> Result<Option<Verdict>, Error> {
        let (da, db) = self.decode()?;
        self.note(da.inst, db.inst);
        if da.stops || db.stops {
            let what = format!("{:?}", if da.stops { da.inst.mnemonic() } else { db.inst.mnemonic() })
                .to_lowercase();
            return Ok(Some(Verdict::End(End::Instruction(what))));
        }
        let (before_a, before_b) = (self.a.now, self.b.now);
        let (mut reads, mut writes) = (Vec::new(), (Vec::new(), Vec::new()));
        for (d, regs, writes) in [(&da, &before_a, &mut writes.0), (&db, &before_b, &mut writes.1)] {
            for access in d.accesses(regs) {
                let Some(access) = access else {
                    // Gathered from many places, or scattered.
                    let what = format!("{:?}", d.inst.mnemonic()).to_lowercase();
                    return Ok(Some(Verdict::End(End::Instruction(what))));
                };
                if self.shared.iter().any(|s| s.overlaps(&access.range)) {
                    return Ok(Some(Verdict::End(End::SharedMemory)));
                }
                reads.push(access.range);
                if access.writes {
                    writes.push(access.range);
                }
            }
        }
        let vectors = da.vector.then_some(da.reads_vectors | db.reads_vectors);
        let (gprs, flags) = (da.reads | db.reads, da.reads_flags | db.reads_flags);
        let mut inputs = self.stains.inputs(gprs, flags, vectors, &reads);
        if inputs.dead.is_some() {
            // Where only the lowest byte is read, and it was written again, nothing dead is read.
            let low = (da.reads_low | !da.reads) & (db.reads_low | !db.reads);
            let written =
                |n: &usize| low >> n & 1 == 1 && (before_a.gprs[*n] ^ before_b.gprs[*n]) & 0xff == 0;
            let alive = (0..16).filter(written).fold(0, |mask, n| mask | 1u16 << n);
            inputs.dead = self.stains.inputs(gprs & !alive, flags, vectors, &reads).dead;
        }
        inputs.derived |= da.reads_x87_place;
        let movable = self.is_movable();
        if let Some(n) = inputs.dead.filter(|_| movable) {
            let name = GPR_NAMES.get(n).copied().unwrap_or("flags");
            return Ok(Some(self.mismatch(Difference::Dead { name })));
        }
        self.report.unmovable += u64::from(!movable);
        self.count();

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
        if let Some(difference) = self.written(&writes, da.is_call(), inputs) {
            return Ok(Some(self.mismatch(difference)));
        }
        if let Some(end) = self.path(&da, inputs)? {
            return Ok(Some(end));
        }
        let cause = Cause { inputs, flags: da.writes_flags | db.writes_flags, unmovable: !self.is_movable() };
        let atlas = self.atlas;
        let now = (&self.a.now, &self.b.now);
        let bad = self.stains.registers((&before_a, &before_b), now, cause, &|a, b| atlas.same(a, b));
        if let Some(n) = bad {
            let values = (now.0.gprs[n], now.1.gprs[n]);
            return Ok(Some(self.mismatch(Difference::Register { name: GPR_NAMES[n], values })));
        }
        if !self.stains.flags(now, cause) {
            let values = (now.0.flags, now.1.flags);
            return Ok(Some(self.mismatch(Difference::Flags { values })));
        }
        if (now.0.fs_base, now.0.gs_base) != (now.1.fs_base, now.1.gs_base) {
            return Ok(Some(self.mismatch(Difference::Segments)));
        }
        if (da.vector || db.vector)
            && let Some(at) = self.vectors(cause)?
        {
            return Ok(Some(self.mismatch(Difference::Vectors { at })));
        }
        Ok(None)
    }

    fn decode(&mut self) -> Result<(std::rc::Rc<Decoded>, std::rc::Rc<Decoded>), Error> {
        Ok((self.a.next(&mut self.memo.code.0, self.atlas)?, self.b.next(&mut self.memo.code.1, self.atlas)?))
    }

    /// Compares what was written.
    fn written(
        &mut self,
        (wa, wb): &(Vec<AvmaRange>, Vec<AvmaRange>),
        pushed: bool,
        inputs: Inputs,
    ) -> Option<Difference> {
        if wa != wb && !inputs.explain() {
            let at = |w: &[AvmaRange]| w.first().map_or(Avma(0), |r| r.start);
            return Some(Difference::Place { values: (at(wa), at(wb)) });
        }
        for range in wa.iter().chain(wb.iter().filter(|r| !wa.contains(r))) {
            let whole = whole_words(range);
            let (va, vb) = (self.a.words(whole), self.b.words(whole));
            for ((at, a), b) in crate::differ::words(range).zip(va).zip(vb) {
                // A masked store reaches further than it writes.
                let (Some(a), Some(b)) = (a, b) else { continue };
                if !self.stains.word(at, a == b, self.atlas.same(a, b), pushed, inputs) {
                    return Some(Difference::Memory { at: Avma(at), values: (a, b) });
                }
            }
        }
        None
    }

    /// Brings both to where they belong together, and sees that they do.
    fn path(&mut self, last: &Decoded, inputs: Inputs) -> Result<Option<Verdict>, Error> {
        // Whoever is home is where the snapshot says, clone or not; what lies there is not ours to compare.
        if self.at_end().is_some() {
            return Ok(None);
        }
        let end = self.align()?;
        // An address decides by being compared; where a jump goes to one, both forms of it were right.
        let by_address = inputs.derived || inputs.address && !last.is_indirect();
        match end {
            Some(Verdict::Mismatch(m)) if by_address && m.difference == Difference::Path => {
                self.report.by_code_address.push(*m);
                Ok(Some(Verdict::End(End::ByCodeAddress)))
            }
            end => Ok(end),
        }
    }

    /// Executes what only one of the worlds has.
    fn align(&mut self) -> Result<Option<Verdict>, Error> {
        loop {
            let (a, b) = (self.a.now.ip(), self.b.now.ip());
            let done = if self.atlas.is_dropped(a, b) || self.atlas.is_passed_by(a, b) {
                self.a.next(&mut self.memo.code.0, self.atlas)?;
                self.report.dropped += 1;
                self.a.step()?
            } else if self.is_only_in_b()? {
                if !self.atlas.stands_for(b, a) {
                    return Ok(Some(self.mismatch(Difference::Path)));
                }
                if let Some(end) = self.unwind() {
                    return Ok(Some(end));
                }
                self.report.extra += 1;
                let before = self.b.now;
                let done = self.b.step()?;
                if !self.stains.extra(&self.a.now, &before, &self.b.now) {
                    let values = (self.a.now.sp(), self.b.now.sp());
                    let difference = Difference::Register { name: GPR_NAMES[4], values };
                    return Ok(Some(self.mismatch(difference)));
                }
                done
            } else if self.atlas.stands_for(b, a) {
                return Ok(self.unwind());
            } else {
                return Ok(Some(self.mismatch(Difference::Path)));
            };
            match done {
                Stepped::Done => {}
                Stepped::Ended => return Ok(Some(Verdict::End(End::Lost))),
                Stepped::Signal(s) => {
                    return Ok(Some(self.mismatch(Difference::Signals { values: (None, Some(s)) })));
                }
            }
        }
    }

    /// Whether the clones' side is about to execute what has no counterpart: an extra jump or nop, or the redirect of an
    /// original.
    fn is_only_in_b(&mut self) -> Result<bool, Error> {
        let b = self.b.now.ip();
        if self.atlas.clone_of(b).is_some() {
            return Ok(self.atlas.is_extra(b));
        }
        if self.atlas.olds_in(AvmaRange::with_len(b, 1)).iter().all(|o| o.at != b) {
            return Ok(false);
        }
        let inst = self.b.next(&mut self.memo.code.1, self.atlas)?.inst;
        let to = Avma(inst.near_branch_target());
        Ok(inst.is_jmp_near() && self.atlas.clone_of(to).is_some() && self.atlas.stands_for(to, b))
    }

    /// Both at home, or both gone from the frame; `None` inside.
    fn at_end(&self) -> Option<End> {
        let (a, b) = (&self.a.now, &self.b.now);
        if a.sp() <= self.entry_sp || b.sp() <= self.entry_sp {
            return (self.atlas.in_vdso(a.ip()) && a.ip == b.ip).then(|| End::Instruction("vdso".to_owned()));
        }
        let home = |s: u64| Some(s) == self.home;
        Some(if home(a.ip) && home(b.ip) { End::Returned } else { End::Left })
    }

    fn is_movable(&self) -> bool {
        self.atlas.entry_of(self.b.now.ip()).is_none_or(|(_, e)| e.movable)
    }

    fn count(&mut self) {
        let b = self.b.now.ip();
        if let Some(clone) = self.atlas.clone_of(b) {
            self.report.clone_instructions += 1;
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

    /// Unwinds both stacks where the one is in a clone, and compares their frames.
    fn unwind(&mut self) -> Option<Verdict> {
        let b = self.b.now.ip();
        self.atlas.clone_of(b)?;
        let times = self.memo.unwound.entry(b).or_default();
        if *times >= UNWINDS {
            return None;
        }
        *times += 1;
        let until = self.entry_sp;
        let (fa, ea) = walk(self.atlas, World::Originals, &self.a.now, self.a.memory(), until);
        let (fb, eb) = walk(self.atlas, World::Clones, &self.b.now, self.b.memory(), until);
        let wrong = |what: String| Some(Difference::Frames { what });
        let mut difference = None;
        for (i, (a, b)) in fa.iter().zip(&fb).enumerate() {
            let same = |x: Option<u64>, y: Option<u64>| match (x, y) {
                (Some(x), Some(y)) => self.atlas.same(x, y),
                (x, y) => x == y,
            };
            if a.cfa != b.cfa {
                difference =
                    wrong(format!("frame {i} at {} and {}: {:#x} and {:#x}", a.pc, b.pc, a.cfa, b.cfa));
            } else if !same(a.caller[16], b.caller[16]) {
                let (x, y) = (a.caller[16], b.caller[16]);
                difference =
                    wrong(format!("frame {i} at {} and {} returns to {x:x?} and {y:x?}", a.pc, b.pc));
            } else if let Some(n) = SAVED.into_iter().find(|&n| {
                !same(a.caller[n], b.caller[n]) && !self.stains.is_stained(if n == 6 { 5 } else { n })
            }) {
                let (x, y) = (a.caller[n], b.caller[n]);
                difference = wrong(format!(
                    "register {n} of the caller of frame {i} at {} and {}: {x:x?} and {y:x?}",
                    a.pc, b.pc
                ));
            }
            if difference.is_some() {
                break;
            }
        }
        if difference.is_none() && fa.len() != fb.len() {
            difference = wrong(format!("{} and {} frames: {ea:?} and {eb:?}", fa.len(), fb.len()));
        }
        if ea == WalkEnd::Reached && eb == WalkEnd::Reached {
            self.report.unwound += 1;
        } else if fa.is_empty() {
            // The original says nothing here, so the clone may say anything.
            self.report.not_unwound += 1;
            difference = None;
        } else {
            self.report.not_unwound += 1;
        }
        difference.map(|d| self.mismatch(d))
    }

    fn note(&mut self, a: Instruction, b: Instruction) {
        if self.trail.len() == TRAIL {
            self.trail.pop_front();
        }
        self.trail.push_back((a, b));
    }

    fn mismatch(&self, difference: Difference) -> Verdict {
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

fn text(inst: &Instruction) -> String {
    let mut out = format!("{:x} ", inst.ip());
    GasFormatter::new().format(inst, &mut out);
    out
}

/// Which parts of two extended states differ, as bits (see [`REST`]), and where the first difference is.
fn differences(a: &[u8], b: &[u8]) -> (u64, usize) {
    // Of the XSAVE area (Intel SDM volume 1, 13.4): where in the code and in memory the last x87 instruction was is not the
    // program's; nor are the bytes for software and the header.
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
