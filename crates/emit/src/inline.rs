//! (Partial) inlining of direct calls, and guarded devirtualization of calls through virtual tables.
//!
//! | call | becomes |
//! |---|---|
//! | direct, to a function with a short path through it | the instructions on that path except its `ret` ([`crate::inline_body`]); `jcc` off the path to an out-of-line call of the callee's rest |
//! | `call *d(%r)`, which reads a virtual table | `cmp t, %r`; `jne` to the original call, out of line; a direct call of the function to which table t leads, or the path through that function |
//!
//! Law 2 holds at the call, behind it, and where the rest of a callee is called. In between, an inlined
//! callee has the state of the original's, except that no return address was pushed. This missing address is
//! the word below the stack pointer: a call overwrites it, and nothing reads it after the return. The guard
//! changes the status flags, which a call preserves neither for its callee nor for its caller (System V psABI
//! 3.2.1).
//!
//! Unwinders and symbolizers treat all these instructions as the call: the frame is the caller's, with its
//! call site's landing pad.

use crate::inline_body::{Part, parts};
use crate::items::{Borrowed, FragmentPlan, Kind, Label, Op, Target, Zone, branch_len};
use crate::plan::{Builder, disp32_at};
use crate::request::{Guard, InlineSite};
use addr::Avma;
use code::{Gpr, Inst, InstId, Refusal};
use iced_x86::{Code, Instruction, Register};

/// Size of a comparison of a register with a word in memory. Bytes.
const COMPARE_LEN: u32 = 7;
/// Size of a direct call. Bytes.
const CALL_LEN: u32 = 5;
/// The condition number of `jne`.
const NOT_EQUAL: u8 = 5;

/// Parses an indirect call that may go through a virtual table to which a register points. Returns the
/// register and the offset into the table.
#[must_use]
pub fn table_call(i: &Instruction) -> Option<(Gpr, u64)> {
    let plain = i.code() == Code::Call_rm64
        && i.memory_index() == Register::None
        && matches!(i.memory_segment(), Register::DS | Register::SS);
    let register = Gpr::of(i.memory_base()).filter(|&r| plain && r != Gpr::RSP)?;
    Some((register, i.memory_displacement64()))
}

/// Out-of-line code for one call, behind all other code of the clone.
pub(crate) struct OutOfLine {
    /// The call.
    call: InstId,
    what: Aside,
    /// The label of this code.
    from: Label,
    /// The label to which it returns.
    back: Label,
}

enum Aside {
    /// The original call.
    Itself,
    /// A call of the callee's rest, from this original address on.
    Rest(Avma),
}

/// Returns the bytes of a comparison of a register with a word in memory, without the displacement (Intel SDM
/// volume 2: `cmp r64, r/m64` with mod 0 and r/m 5).
pub(crate) fn compare(register: Gpr) -> [u8; 3] {
    let number = register.number();
    [0x48 | ((number >> 3) << 2), 0x3b, 0x05 | ((number & 7) << 3)]
}

impl Builder<'_> {
    /// Plans an inlined or guarded call; returns `false` if the call can be neither.
    pub(crate) fn inline_call(&mut self, s: &InlineSite<'_>) -> Result<bool, Refusal> {
        let Some(inst) = self.f.cfg.insts.get(s.call.index()) else { return Ok(false) };
        let body = s.body.and_then(parts);
        let push = |b: &mut Self, kind, len, copied| b.plan.push(kind, len, copied, inst.at);
        match (s.guard, body) {
            (None, Some(body)) if inst.decoded.code() == Code::Call_rel32_64 => {
                push(self, Kind::Inlined, 0, Some(s.call));
                self.inlined(s.call, inst.at, &body)?;
            }
            (Some(Guard { register, table }), body) if table_call(&inst.decoded).is_some() => {
                let constant = u32::try_from(self.plan.constants.len()).map_err(|_| Refusal::TooLarge)?;
                self.plan.constants.push(table.0);
                push(self, Kind::Compare { register, constant }, COMPARE_LEN, None);
                let from = self.label()?;
                let (op, to) = (Op::Cond(NOT_EQUAL), Target::Label(from));
                push(self, Kind::Branch { op, to, long: true }, branch_len(op, true), None);
                match body {
                    Some(body) => self.inlined(s.call, inst.at, &body)?,
                    None => push(self, Kind::Direct { to: s.callee, in_original: false }, CALL_LEN, None),
                }
                let back = self.label()?;
                self.out_of_line.push(OutOfLine { call: s.call, what: Aside::Itself, from, back });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Plans the path through the callee of a call at `original`.
    fn inlined(&mut self, call: InstId, original: Avma, parts: &[Part<'_>]) -> Result<(), Refusal> {
        let mut exits: Vec<(Label, Avma)> = Vec::new();
        for part in parts {
            match *part {
                Part::Plain(inst) => self.borrow(original, inst)?,
                Part::Exit { cond, to } => {
                    let from = match exits.iter().find(|e| e.1 == to) {
                        Some(&(from, _)) => from,
                        None => {
                            let from = self.label()?;
                            exits.push((from, to));
                            from
                        }
                    };
                    let op = Op::Cond(cond);
                    let kind = Kind::Branch { op, to: Target::Label(from), long: true };
                    self.plan.push(kind, branch_len(op, true), None, original);
                }
            }
        }
        if exits.is_empty() {
            return Ok(());
        }
        let back = self.label()?;
        let rest = |(from, to)| OutOfLine { call, what: Aside::Rest(to), from, back };
        self.out_of_line.extend(exits.into_iter().map(rest));
        Ok(())
    }

    /// Adds an instruction of a callee to the plan.
    fn borrow(&mut self, original: Avma, inst: &Inst) -> Result<(), Refusal> {
        let operand = if inst.decoded.is_ip_rel_memory_operand() {
            let at = disp32_at(inst.bytes.as_slice()).ok_or(Refusal::RoundTrip)?;
            Some((at, Avma(inst.decoded.ip_rel_memory_address())))
        } else {
            None
        };
        let index = u32::try_from(self.plan.borrowed.len()).map_err(|_| Refusal::TooLarge)?;
        self.plan.borrowed.push(Borrowed { bytes: inst.bytes, operand });
        let len = u32::try_from(inst.bytes.as_slice().len()).map_err(|_| Refusal::TooLarge)?;
        self.plan.push(Kind::Borrowed { index }, len, None, original);
        Ok(())
    }

    /// Adds a label at the next item.
    fn label(&mut self) -> Result<Label, Refusal> {
        let label = u32::try_from(self.plan.labels.len()).map_err(|_| Refusal::TooLarge)?;
        self.plan.labels.push(self.plan.next_item()?);
        Ok(Label(label))
    }

    /// Plans the out-of-line code, behind all other code of the clone.
    pub(crate) fn plan_out_of_line(&mut self) -> Result<(), Refusal> {
        let out_of_line = std::mem::take(&mut self.out_of_line);
        if !out_of_line.is_empty() && self.plan.fragments.last().is_some_and(|f| f.zone == Zone::Hot) {
            let first = self.plan.next_item()?;
            self.plan.fragments.push(FragmentPlan { zone: Zone::Warm, first });
        }
        for OutOfLine { call, what, from, back } in out_of_line {
            self.plan.labels[from.index()] = self.plan.next_item()?;
            let inst = &self.f.cfg.insts[call.index()];
            match what {
                Aside::Itself => self.copy_as_it_is(call)?,
                Aside::Rest(to) => {
                    let in_original = self.through_redirect(call);
                    self.plan.push(Kind::Direct { to, in_original }, CALL_LEN, None, inst.at);
                    if !in_original {
                        self.plan.rests.push(to);
                    }
                }
            }
            let (op, to) = (Op::Jump, Target::Label(back));
            let kind = Kind::Branch { op, to, long: true };
            self.plan.push(kind, branch_len(op, true), None, inst.end());
        }
        Ok(())
    }
}
