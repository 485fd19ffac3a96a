//! Calls that get where they go more directly in the clone.
//!
//! The state problem: for such a call the two sides execute other instructions. Rule: nothing is forgiven for that but
//! what each form says.
//!
//! | clone | original | |
//! |---|---|---|
//! | `cmp` of the register from which the call comes with a table's address, `jne` | – | the flags are dead; it must go the way that the register says, and the table must lead where the call behind it leads |
//! | a direct call | the indirect call | a pair like any other |
//! | a way through a function | call, (`endbr64`), the way, `ret` | each instruction but direct jumps is a pair whose stack pointers are 8 apart, then again the same; what the call pushed is dead |
//! | off that way a call | – | it leads where the originals' side is, and pushes what that has pushed |
//! | the call as it was | the indirect call | a pair like any other |

use crate::Error;
use crate::decoded::Decoded;
use crate::lockstep::{Depth, Lockstep, Verdict};
use crate::report::{Difference, End};
use addr::{Avma, AvmaRange, ReadMemory};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use tracee::Stepped;

impl Lockstep<'_> {
    /// Whether the clones' side is before a guard.
    pub(crate) fn is_guard(&mut self) -> Result<bool, Error> {
        let (a, b) = (self.a.now.ip(), self.b.now.ip());
        if !self.atlas.is_extra(b) {
            return Ok(false);
        }
        let first = self.b.next(&mut self.memo.code.1, self.atlas)?.inst;
        let next = Avma(first.next_ip());
        // Behind a jump that leads to the call there may be what lies aside for it.
        let asks = first.mnemonic() == Mnemonic::Cmp;
        Ok(asks && self.atlas.is_within(next, a) && !self.atlas.is_dropped(a, next))
    }

    /// The guard, and what runs in place behind it. It ends where both are before a call again, or behind the body.
    pub(crate) fn guard(&mut self) -> Result<Option<Verdict>, Error> {
        let call = self.a.now.ip();
        let (called, compare) = self.decode()?;
        self.note(called.inst, compare.inst);
        if !asks_for_table(&called, &compare) {
            return Ok(self.wrong("the guard does not ask for what the call reads"));
        }
        let inputs = self.stains.inputs(compare.reads, 0, None, &[]);
        if let Some(n) = inputs.dead {
            return Ok(Some(self.dead(n)));
        }
        let table = self.b.memory().u64(Avma(compare.inst.ip_rel_memory_address()))?;
        let is_table = self.b.now.gprs.get(compare.inst.op0_register().number()) == Some(&table);
        // In the originals' world the table is as it was before any clone.
        let slot = Avma(table.wrapping_add(called.inst.memory_displacement64()));
        let Some(callee) = self.a.memory().u64(slot).ok().map(Avma).filter(|&f| self.atlas.is_entry(f))
        else {
            return Ok(self.wrong("the guard asks for what is no table"));
        };
        if let Some(end) = self.only_b()? {
            return Ok(Some(end));
        }
        let branch = self.b.next(&mut self.memo.code.1, self.atlas)?;
        self.note(called.inst, branch.inst);
        let next = Avma(branch.inst.next_ip());
        if !branch.inst.is_jcc_short_or_near() || !self.atlas.is_within(self.b.now.ip(), call) {
            return Ok(self.wrong("no branch behind the guard"));
        }
        if let Some(end) = self.unwind(Depth::Same) {
            return Ok(Some(end));
        }
        if let Some(end) = self.only_b()? {
            return Ok(Some(end));
        }
        let holds = self.b.now.ip() == next;
        if holds != is_table {
            return Ok(self.wrong("the guard goes the wrong way"));
        }
        self.report.guards += 1;
        self.report.guards_failed += u64::from(!holds);
        let then = self.memo.code.1.at(next, self.b.memory());
        let calls = self.atlas.is_within(next, call) && then.is_call();
        let to = Avma(then.inst.near_branch_target());
        if calls && !self.atlas.stands_for(to, callee) && !self.atlas.is_behind_mark(callee, to) {
            return Ok(self.wrong("the table leads elsewhere than the call behind the guard"));
        }
        match holds {
            false if !self.atlas.is_copy(self.b.now.ip(), call) => {
                Ok(self.wrong("the call is not as it was where the guard does not hold"))
            }
            true if !calls => self.inlined(),
            _ => Ok(self.unwind(Depth::Same)),
        }
    }

    /// A call whose callee runs in place in the clone, to where it returns or the rest of it is called.
    pub(crate) fn inlined(&mut self) -> Result<Option<Verdict>, Error> {
        let (call, sp) = (self.a.now.ip(), self.a.now.sp());
        let called = self.a.next(&mut self.memo.code.0, self.atlas)?;
        let accesses = match self.accesses(&called, &self.a.now) {
            Ok(accesses) => accesses,
            Err(end) => return Ok(Some(end)),
        };
        let inputs = self.stains.inputs(called.reads, 0, None, &accesses);
        if let Some(n) = inputs.dead {
            return Ok(Some(self.dead(n)));
        }
        if let Some(end) = self.enter()? {
            return Ok(Some(end));
        }
        while self.atlas.is_within(self.b.now.ip(), call) {
            let end = self.unwind(Depth::Inlined);
            if end.is_some() {
                return Ok(end);
            }
            let (da, db) = self.decode()?;
            if db.is_call() {
                return self.rest(&db);
            }
            let end = if da.inst.is_jmp_short_or_near() {
                self.pass_by()?
            } else if da.inst.mnemonic() == db.inst.mnemonic() || are_branches(&da, &db) {
                self.pair(Depth::Inlined)?
            } else {
                self.wrong("what runs in place is not the callee")
            };
            if end.is_some() {
                return Ok(end);
            }
        }
        let mut last = self.a.next(&mut self.memo.code.0, self.atlas)?;
        while last.inst.is_jmp_short_or_near() {
            if let Some(end) = self.pass_by()? {
                return Ok(Some(end));
            }
            last = self.a.next(&mut self.memo.code.0, self.atlas)?;
        }
        if last.inst.flow_control() != FlowControl::Return {
            return Ok(self.wrong("the callee does more than what runs in place"));
        }
        if let Some(end) = self.only_a()? {
            return Ok(Some(end));
        }
        if self.a.now.ip != called.inst.next_ip() || self.a.now.sp() != sp {
            return Ok(self.wrong("the callee does not return to behind the call"));
        }
        for access in accesses.iter().filter(|access| access.writes) {
            self.abandon(access.range);
        }
        self.report.inlined += 1;
        self.align()
    }

    /// The clones' side calls the rest of a callee that ran in place so far.
    fn rest(&mut self, call: &Decoded) -> Result<Option<Verdict>, Error> {
        self.note(Instruction::default(), call.inst);
        let (a, to) = (self.a.now.ip(), Avma(call.inst.near_branch_target()));
        // Where the rest is another function, clones call it as they call any.
        let passes = self.atlas.is_passed_by(a, to) || self.atlas.is_behind_mark(a, to);
        if !passes && !self.atlas.stands_for(to, a) {
            return Ok(self.wrong("the rest of the callee is not what is called"));
        }
        let accesses = match self.accesses(call, &self.b.now) {
            Ok(accesses) => accesses,
            Err(end) => return Ok(Some(end)),
        };
        match self.b.step()? {
            Stepped::Done => {}
            Stepped::Ended => return Ok(Some(Verdict::End(End::Lost))),
            Stepped::Signal(s) => {
                return Ok(Some(self.mismatch(Difference::Signals { values: (None, Some(s)) })));
            }
        }
        if self.b.now.sp() != self.a.now.sp() {
            return Ok(self.wrong("the rest of the callee has another stack"));
        }
        if let Some(end) = self.pushed(accesses) {
            return Ok(Some(end));
        }
        self.report.inlined += 1;
        self.report.exits += 1;
        self.align()
    }

    /// Has the originals' side call, up to the callee's first instruction that runs in place.
    fn enter(&mut self) -> Result<Option<Verdict>, Error> {
        if let Some(end) = self.only_a()? {
            return Ok(Some(end));
        }
        while self.atlas.is_passed_by(self.a.now.ip(), self.b.now.ip()) {
            if let Some(end) = self.pass_by()? {
                return Ok(Some(end));
            }
        }
        if !self.atlas.is_entry(self.a.now.ip()) {
            return Ok(self.wrong("the call leads to no function's entry"));
        }
        let first = self.a.next(&mut self.memo.code.0, self.atlas)?;
        if first.inst.code() == Code::Endbr64 { self.only_a() } else { Ok(None) }
    }

    /// What the originals' call has pushed lies below the stack pointer now.
    fn abandon(&mut self, pushed: AvmaRange) {
        let (a, b) = (self.a.memory().bytes(pushed), self.b.memory().bytes(pushed));
        if a.ok() != b.ok() {
            self.stains.abandon(&pushed);
        }
    }

    fn wrong(&self, what: &'static str) -> Option<Verdict> {
        Some(self.mismatch(Difference::Inline { what }))
    }
}

/// Whether both are conditional jumps, whose conditions may be each other's inverse.
fn are_branches(a: &Decoded, b: &Decoded) -> bool {
    a.inst.is_jcc_short_or_near() && b.inst.is_jcc_short_or_near()
}

/// Whether an instruction compares the register through which an indirect call reads its destination with a word that is
/// always at the same place.
fn asks_for_table(call: &Decoded, compare: &Decoded) -> bool {
    let (call, compare) = (&call.inst, &compare.inst);
    call.flow_control() == FlowControl::IndirectCall
        && call.op0_kind() == OpKind::Memory
        && call.memory_base().is_gpr64()
        && call.memory_index() == Register::None
        && matches!(call.memory_segment(), Register::DS | Register::SS)
        && compare.mnemonic() == Mnemonic::Cmp
        && compare.op0_kind() == OpKind::Register
        && compare.op0_register() == call.memory_base()
        && compare.is_ip_rel_memory_operand()
        && compare.memory_segment() == Register::DS
}
