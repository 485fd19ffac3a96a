//! Executes the guard of a call: `cmp`, `jne`, and what loads the pointer before. [`crate::inline`] lists the
//! forms.

use crate::Error;
use crate::decoded::Decoded;
use crate::lockstep::{Depth, Lockstep, Verdict};
use addr::{Avma, ReadMemory};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::rc::Rc;

/// The register into which a guard loads a pointer from memory, by its number.
const SCRATCH: usize = 11;

/// What a guard asks for.
struct Asked {
    /// The entry of the function that is expected.
    callee: Avma,
    /// Whether the call goes there now.
    holds: bool,
}

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
        let asks = first.mnemonic() == Mnemonic::Cmp || is_spill(&first);
        Ok(asks && self.atlas.is_within(next, a) && !self.atlas.is_dropped(a, next))
    }

    /// Executes the guard and the inlined code behind it. Afterwards both sides are before a call again, or
    /// behind the inlined code.
    pub(crate) fn guard(&mut self) -> Result<Option<Verdict>, Error> {
        let at = self.a.now.ip();
        let call = self.a.next(&mut self.memo.code.0, self.atlas)?.inst;
        let first = self.b.next(&mut self.memo.code.1, self.atlas)?;
        let asked =
            if is_spill(&first.inst) { self.through_memory(&call, &first) } else { self.asked(&call, false) };
        let asked = match asked? {
            Ok(asked) => asked,
            Err(end) => return Ok(end),
        };
        let branch = self.b.next(&mut self.memo.code.1, self.atlas)?;
        let next = Avma(branch.inst.next_ip());
        if !branch.inst.is_jcc_short_or_near() || !self.atlas.is_within(self.b.now.ip(), at) {
            return Ok(self.wrong("no branch behind the guard"));
        }
        if let Some(end) = self.guard_step(&call)? {
            return Ok(Some(end));
        }
        let holds = self.b.now.ip() == next;
        if holds != asked.holds {
            return Ok(self.wrong("the guard goes the wrong way"));
        }
        self.report.guards += 1;
        self.report.guards_failed += u64::from(!holds);
        let then = self.memo.code.1.at(next, self.b.memory());
        let calls = self.atlas.is_within(next, at) && then.is_call();
        let to = Avma(then.inst.near_branch_target());
        if calls && !self.atlas.stands_for(to, asked.callee) && !self.atlas.is_behind_mark(asked.callee, to) {
            return Ok(self.wrong("the call behind the guard leads elsewhere than the guarded call"));
        }
        match holds {
            false if !self.atlas.is_copy(self.b.now.ip(), at) => {
                Ok(self.wrong("the call is not as it was where the guard does not hold"))
            }
            true if !calls => self.inlined(),
            _ => Ok(self.unwind(Depth::Same)),
        }
    }

    /// Executes a guard on a pointer in memory, up to its branch; `spill` is its first instruction.
    fn through_memory(
        &mut self,
        call: &Instruction,
        spill: &Rc<Decoded>,
    ) -> Result<Result<Asked, Option<Verdict>>, Error> {
        let was = (self.b.now.gprs[SCRATCH], self.stains.of_register(SCRATCH));
        let saved = match self.accesses(spill, &self.b.now) {
            Ok(saved) => saved,
            Err(end) => return Ok(Err(Some(end))),
        };
        if let Some(end) = self.guard_step(call)? {
            return Ok(Err(Some(end)));
        }
        saved.iter().filter(|access| access.writes).for_each(|access| self.stains.abandon(&access.range));
        // The load of the pointer.
        if let Some(end) = self.guard_step(call)? {
            return Ok(Err(Some(end)));
        }
        let asked = match self.asked(call, true)? {
            Ok(asked) => asked,
            Err(end) => return Ok(Err(end)),
        };
        // The load of the old value.
        if let Some(end) = self.guard_step(call)? {
            return Ok(Err(Some(end)));
        }
        if self.b.now.gprs[SCRATCH] != was.0 {
            return Ok(Err(self.wrong("the guard leaves a register changed")));
        }
        self.stains.restored(SCRATCH, was.1);
        Ok(Ok(asked))
    }

    /// Executes the comparison of a guard. `loaded`: the scratch register holds the pointer. Returns an end if
    /// it is not the comparison that the call needs.
    fn asked(&mut self, call: &Instruction, loaded: bool) -> Result<Result<Asked, Option<Verdict>>, Error> {
        let compare = self.b.next(&mut self.memo.code.1, self.atlas)?;
        let inst = compare.inst;
        let register = inst.op0_register();
        let (value, constant) = if inst.op1_kind() == OpKind::Immediate32to64 {
            (self.pointer(&inst), inst.immediate32to64().cast_unsigned())
        } else if compares(&inst) {
            let word = self.b.memory().u64(Avma(inst.ip_rel_memory_address()))?;
            (self.b.now.gprs.get(register.number()).copied(), word)
        } else {
            return Ok(Err(self.wrong("the guard does not ask for what the call reads")));
        };
        let (callee, read) = if !loaded && is_table_of(call, register) {
            // In the originals' world the table is as it was before any redirect.
            let slot = Avma(constant.wrapping_add(call.memory_displacement64()));
            (self.a.memory().u64(slot).ok().map(Avma), value)
        } else {
            (Some(Avma(constant)), self.pointer(call))
        };
        if read != value {
            return Ok(Err(self.wrong("the guard does not ask for what the call reads")));
        }
        let inputs = self.stains.inputs(compare.reads, 0, None, &[]);
        if let Some(n) = inputs.dead.filter(|_| !loaded) {
            return Ok(Err(Some(self.dead(n))));
        }
        let Some(callee) = callee.filter(|&f| self.atlas.is_entry(f)) else {
            return Ok(Err(self.wrong("the guard asks for what is no function")));
        };
        if let Some(end) = self.guard_step(call)? {
            return Ok(Err(Some(end)));
        }
        Ok(Ok(Asked { callee, holds: value == Some(constant) }))
    }

    /// Executes one instruction of a guard.
    fn guard_step(&mut self, call: &Instruction) -> Result<Option<Verdict>, Error> {
        let inst = self.b.next(&mut self.memo.code.1, self.atlas)?.inst;
        self.note(*call, inst);
        match self.unwind(Depth::Same) {
            None => self.only_b(),
            end => Ok(end),
        }
    }

    /// Returns the function pointer that an instruction on the clones' side reads now in its first operand. The registers of the address
    /// are those of the originals' side: the guard may have loaded one of them.
    fn pointer(&self, inst: &Instruction) -> Option<u64> {
        let gpr = |r: Register| match r {
            Register::None => Some(0),
            r => self.a.now.gprs.get(r.number()).copied(),
        };
        if inst.op0_kind() == OpKind::Register {
            return self.b.now.gprs.get(inst.op0_register().number()).copied();
        }
        let index = gpr(inst.memory_index())?.wrapping_mul(u64::from(inst.memory_index_scale()));
        let at = gpr(inst.memory_base())?.wrapping_add(index).wrapping_add(inst.memory_displacement64());
        self.b.memory().u64(Avma(at)).ok()
    }
}

/// Returns whether an instruction saves the scratch register below the stack pointer.
fn is_spill(i: &Instruction) -> bool {
    i.mnemonic() == Mnemonic::Mov
        && i.memory_base() == Register::RSP
        && i.memory_displacement64().cast_signed() == -8
        && i.op1_register() == Register::R11
}

/// Returns whether an instruction compares a register with a word at a constant address.
fn compares(i: &Instruction) -> bool {
    i.mnemonic() == Mnemonic::Cmp
        && i.op0_register().is_gpr64()
        && i.is_ip_rel_memory_operand()
        && i.memory_segment() == Register::DS
}

/// Returns whether a call reads its destination from a table to which this register points.
fn is_table_of(call: &Instruction, register: Register) -> bool {
    call.flow_control() == FlowControl::IndirectCall
        && call.op0_kind() == OpKind::Memory
        && call.memory_base() == register
        && call.memory_index() == Register::None
        && matches!(call.memory_segment(), Register::DS | Register::SS)
}
