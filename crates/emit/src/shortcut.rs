//! Calls that get where they mostly go more directly.
//!
//! | call | becomes |
//! |---|---|
//! | direct, of a small leaf | the leaf's instructions but for its `ret` |
//! | `call *d(%r)`, which reads a virtual table | `cmp t, %r`; `jne` to the call as it was, elsewhere; a direct call of, or the leaf, to which table t leads |
//!
//! Law 2 holds at the call and behind it. In between a callee that runs in place has the state of the original's but for
//! the return address that was not pushed: the word below the stack pointer, which a call overwrites and of which nobody reads
//! anything after the return. So only such leaves run in place as have nothing to do with the stack. The guard changes
//! the status flags, which a call leaves neither to its callee nor to its caller (System V psABI 3.2.1).
//!
//! Unwinders and symbolizers see all of it as the call: the frame is the caller's, with its call site's landing pad.

use crate::items::{Borrowed, FragmentPlan, Item, Kind, Op, Target, Zone, branch_len};
use crate::plan::{Builder, disp32_at, has_code_operand};
use crate::request::{Guard, Shortcut};
use addr::Avma;
use code::{Cfg, Inst, Refusal, Term};
use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Register};

/// A leaf that runs in place has no more bytes than this: about what calling it takes in lines.
const MOST_BYTES: usize = 24;
/// Bytes of a comparison of a register with a word.
const COMPARE_LEN: u32 = 7;
/// Bytes of a direct call.
const CALL_LEN: u32 = 5;
/// The number of `jne`'s condition.
const NOT_EQUAL: u8 = 5;

/// Whether calls of a function can be answered in place: it is a straight, short run of instructions that end in a plain
/// return, and none of them has to do with the stack.
#[must_use]
pub fn fits_in_place(cfg: &Cfg) -> bool {
    body(cfg).is_some()
}

/// The instructions that run in place of a call, where such a thing can be.
pub(crate) fn body(cfg: &Cfg) -> Option<&[Inst]> {
    let block = cfg.blocks.first().filter(|b| matches!(b.term, Term::Return))?;
    let insts = cfg.insts.get(block.insts.start as usize..block.insts.end as usize)?;
    let (last, mut insts) = insts.split_last()?;
    let returns = matches!(last.bytes.as_slice(), [0xc3] | [0xf3, 0xc3]);
    if let Some((first, rest)) = insts.split_first()
        && first.decoded.code() == Code::Endbr64
    {
        insts = rest;
    }
    let size: usize = insts.iter().map(|i| i.bytes.as_slice().len()).sum();
    let mut factory = InstructionInfoFactory::new();
    let plain = |i: &Inst| is_plain(&i.decoded, &mut factory);
    (returns && size <= MOST_BYTES && insts.iter().all(plain)).then_some(insts)
}

/// Whether an instruction does the same without the frame of a function of its own.
fn is_plain(i: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    i.flow_control() == FlowControl::Next
        && !has_code_operand(i)
        && !i.is_stack_instruction()
        && factory.info(i).used_registers().iter().all(|u| u.register().full_register() != Register::RSP)
}

/// An indirect call through what may be a virtual table that a register points to: the register's number, and how far into
/// the table.
#[must_use]
pub fn table_call(i: &Instruction) -> Option<(u8, u64)> {
    let plain = i.code() == Code::Call_rm64
        && i.memory_base().is_gpr64()
        && i.memory_base() != Register::RSP
        && i.memory_index() == Register::None
        && matches!(i.memory_segment(), Register::DS | Register::SS);
    let register = u8::try_from(i.memory_base().number()).ok().filter(|_| plain)?;
    Some((register, i.memory_displacement64()))
}

/// A call that is left as it was, out of the way.
pub(crate) struct Annex {
    /// The call, by its place in [`Cfg::insts`].
    call: u32,
    /// Where it is come to from, and where it goes on, by their places in [`crate::items::Plan::labels`].
    from: u32,
    back: u32,
}

/// The bytes of a comparison of a register with a word, but for the displacement (Intel SDM volume 2: `cmp r64, r/m64`
/// with mod 0 and r/m 5).
pub(crate) fn compare(register: u8) -> [u8; 3] {
    [0x48 | ((register >> 3) << 2), 0x3b, 0x05 | ((register & 7) << 3)]
}

impl Builder<'_> {
    /// Plans a call by a shortcut; `false` where the call is none that has such a one.
    pub(crate) fn shortcut(&mut self, s: &Shortcut<'_>) -> Result<bool, Refusal> {
        let Some(inst) = self.f.cfg.insts.get(s.call as usize) else { return Ok(false) };
        let borrowed = match s.body.map(body) {
            Some(None) => return Ok(false),
            other => other.flatten(),
        };
        let push = |b: &mut Self, kind, len, inst_index| {
            b.plan.items.push(Item { kind, len, inst: inst_index, original: inst.at });
        };
        match (s.guard, borrowed) {
            (None, Some(body)) if inst.decoded.code() == Code::Call_rel32_64 => {
                push(self, Kind::InPlace, 0, Some(s.call));
                self.borrow(inst.at, body)?;
            }
            (Some(Guard { register, table }), _) if table_call(&inst.decoded).is_some() => {
                let constant = u32::try_from(self.plan.constants.len()).map_err(|_| Refusal::TooLarge)?;
                self.plan.constants.push(table.0);
                push(self, Kind::Compare { register, constant }, COMPARE_LEN, None);
                let from = self.label()?;
                let (op, to) = (Op::Cond(NOT_EQUAL), Target::Label(from));
                push(self, Kind::Branch { op, to, long: true }, branch_len(op, true), None);
                match borrowed {
                    Some(body) => self.borrow(inst.at, body)?,
                    None => push(self, Kind::Direct { to: s.callee }, CALL_LEN, None),
                }
                let back = self.label()?;
                self.annexes.push(Annex { call: s.call, from, back });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes a callee's instructions in, for a call at `original`.
    fn borrow(&mut self, original: Avma, body: &[Inst]) -> Result<(), Refusal> {
        for inst in body {
            let operand = if inst.decoded.is_ip_rel_memory_operand() {
                let at = disp32_at(inst.bytes.as_slice()).ok_or(Refusal::RoundTrip)?;
                Some((at, Avma(inst.decoded.ip_rel_memory_address())))
            } else {
                None
            };
            let index = u32::try_from(self.plan.borrowed.len()).map_err(|_| Refusal::TooLarge)?;
            self.plan.borrowed.push(Borrowed { bytes: inst.bytes, operand });
            let len = u32::try_from(inst.bytes.as_slice().len()).map_err(|_| Refusal::TooLarge)?;
            self.plan.items.push(Item { kind: Kind::Borrowed { index }, len, inst: None, original });
        }
        Ok(())
    }

    /// A label at the next item.
    fn label(&mut self) -> Result<u32, Refusal> {
        let label = u32::try_from(self.plan.labels.len()).map_err(|_| Refusal::TooLarge)?;
        self.plan.labels.push(u32::try_from(self.plan.items.len()).map_err(|_| Refusal::TooLarge)?);
        Ok(label)
    }

    /// The calls as they were, behind everything, for when a guard does not hold.
    pub(crate) fn annexes(&mut self) -> Result<(), Refusal> {
        let annexes = std::mem::take(&mut self.annexes);
        if !annexes.is_empty() && self.plan.fragments.last().is_some_and(|f| f.zone == Zone::Hot) {
            let first = u32::try_from(self.plan.items.len()).map_err(|_| Refusal::TooLarge)?;
            self.plan.fragments.push(FragmentPlan { zone: Zone::Warm, first, align: 1 });
        }
        for Annex { call, from, back } in annexes {
            self.plan.labels[from as usize] =
                u32::try_from(self.plan.items.len()).map_err(|_| Refusal::TooLarge)?;
            self.copy_as_it_is(call)?;
            let (op, to) = (Op::Jump, Target::Label(back));
            let kind = Kind::Branch { op, to, long: true };
            let original = self.f.cfg.insts[call as usize].end();
            self.plan.items.push(Item { kind, len: branch_len(op, true), inst: None, original });
        }
        Ok(())
    }
}
