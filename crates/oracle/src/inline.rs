//! Compares calls that the clone inlines or guards.
//!
//! The state problem: for such a call the two sides execute different instructions. Rule: no difference is
//! accepted except what each form says.
//!
//! | clone | original | |
//! |---|---|---|
//! | `cmp` of the register from which the call comes with a table's address, `jne` | – | the flags are dead; the branch must go the way that the register says, and the table must lead where the call behind the guard leads |
//! | a direct call | the indirect call | a pair like any other |
//! | an inlined path through a function | call, (`endbr64`), the path, `ret` | each instruction except direct jumps is a pair whose stack pointers are 8 bytes apart; afterwards the stack pointers are equal again; the word that the call pushed is dead |
//! | a call where control leaves that path | – | it leads where the originals' side is, and pushes what the originals' call has pushed |
//! | the unchanged call | the indirect call | a pair like any other |

use crate::Error;
use crate::decoded::Decoded;
use crate::lockstep::{Depth, Lockstep, Verdict};
use crate::report::{Difference, End};
use addr::{Avma, AvmaRange, ReadMemory};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use tracee::Stepped;

impl Lockstep<'_> {
    /// Returns whether the clones' side is before a guard.
    pub(crate) fn is_guard(&mut self) -> Result<bool, Error> {
        let (a, b) = (self.a.now.ip(), self.b.now.ip());
        if !self.atlas.is_extra(b) {
            return Ok(false);
        }
        let first = self.b.next(&mut self.memo.code.1, self.atlas)?.inst;
        let next = Avma(first.next_ip());
        // An extra jump that leads to the call may have out-of-line code for the call behind it. It is no
        // guard.
        let compares = first.mnemonic() == Mnemonic::Cmp;
        Ok(compares && self.atlas.is_within(next, a) && !self.atlas.is_dropped(a, next))
    }

    /// Executes the guard and the inlined code behind it. Afterwards both sides are before a call again, or
    /// behind the inlined code.
    pub(crate) fn guard(&mut self) -> Result<Option<Verdict>, Error> {
        let call = self.a.now.ip();
        let (called, compare) = self.decode()?;
        self.note(called.inst, compare.inst);
        if !is_table_check(&called, &compare) {
            return Ok(self.wrong("the guard does not compare the table that the call reads"));
        }
        let inputs = self.stains.inputs(compare.reads, 0, None, &[]);
        if let Some(n) = inputs.dead {
            return Ok(Some(self.dead(n)));
        }
        let table = self.b.memory().u64(Avma(compare.inst.ip_rel_memory_address()))?;
        let is_table = self.b.now.gprs.get(compare.inst.op0_register().number()) == Some(&table);
        // In the originals' world the table has no redirect.
        let slot = Avma(table.wrapping_add(called.inst.memory_displacement64()));
        let Some(callee) = self.a.memory().u64(slot).ok().map(Avma).filter(|&f| self.atlas.is_entry(f))
        else {
            return Ok(self.wrong("the guard compares with a value that is no table"));
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

    /// Compares a call whose callee is inlined in the clone, up to its return or to where the rest of it is
    /// called.
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

    /// Executes the clones' call of the rest of a callee whose beginning was inlined.
    fn rest(&mut self, call: &Decoded) -> Result<Option<Verdict>, Error> {
        self.note(Instruction::default(), call.inst);
        let (a, to) = (self.a.now.ip(), Avma(call.inst.near_branch_target()));
        // If the rest is another function, clones call it as they call any function.
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

    /// Executes the call on the originals' side, up to the callee's first instruction that is inlined.
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

    /// Marks the word that the originals' call pushed as dead. It is below the stack pointer now.
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

/// Returns whether both are conditional jumps. Their conditions may be inverted.
fn are_branches(a: &Decoded, b: &Decoded) -> bool {
    a.inst.is_jcc_short_or_near() && b.inst.is_jcc_short_or_near()
}

/// Returns whether an instruction compares the register from which an indirect call reads its destination
/// with a word at a constant address.
fn is_table_check(call: &Decoded, compare: &Decoded) -> bool {
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
