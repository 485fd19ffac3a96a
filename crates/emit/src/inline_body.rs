//! Chooses the part of a function that can be inlined at a call.
//!
//! This is a path from the entry to a return, on which no instruction uses the stack. Where control leaves
//! the path, the rest of the function is called. That call enters the function in the middle, with the return
//! address where a call of the whole function would have put it. Nothing on the path has read or moved that
//! address.

use crate::encode::behind_mark;
use crate::items::{Op, branch_len};
use crate::plan::{condition_number, has_code_operand};
use addr::Avma;
use code::{BlockId, Cfg, Dest, Inst, Term};
use iced_x86::{CpuidFeature, FlowControl, Instruction, InstructionInfoFactory, Register};
use unwind::Lsda;

/// The largest size of an inlined path. Bytes. Calling the function touches about as many, in several cache
/// lines.
const MOST_BYTES: usize = 48;

/// A path through a function, to be inlined at calls.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// The function.
    pub cfg: &'a Cfg,
    /// The blocks on the path, from the entry to a block that returns.
    pub path: &'a [BlockId],
    /// Its exception table.
    pub lsda: Option<&'a Lsda>,
}

/// One step on the path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// An instruction.
    Plain(&'a Inst),
    /// A conditional jump off the path: the condition's number in the opcode, and the original address to
    /// which it leads.
    Exit { cond: u8, to: Avma },
}

/// Returns whether this path through a function can be inlined at calls. The path must be short and end in a
/// plain return. No instruction on it may use the stack or be covered by a landing pad.
#[must_use]
pub fn can_inline(body: Body<'_>) -> bool {
    parts(body).is_some()
}

/// Returns the steps on the path, if it can be inlined.
pub(crate) fn parts<'a>(body: Body<'a>) -> Option<Vec<Part<'a>>> {
    let Body { cfg, path, lsda } = body;
    path.first().filter(|b| **b == BlockId(0))?;
    let mut parts = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    for (i, &id) in path.iter().enumerate() {
        let block = cfg.blocks.get(id.index())?;
        let mut insts = cfg.insts.get(block.insts.start as usize..block.insts.end as usize)?;
        if i == 0 && behind_mark(cfg, cfg.entry) != cfg.entry {
            insts = insts.get(1..)?;
        }
        let next = path.get(i + 1).map(|&b| Dest::Block(b));
        let mut exit = None;
        match block.term {
            Term::Fall { next: to } if next == Some(to) => {}
            Term::Jump { to } if next == Some(to) => insts = before_jump(insts)?,
            Term::Cond { cc, taken, fall } if next.is_some_and(|n| (n == taken) != (n == fall)) => {
                insts = before_jump(insts)?;
                let number = condition_number(cc)?;
                exit = Some(if next == Some(fall) { (number, taken) } else { (number ^ 1, fall) });
            }
            Term::Return if next.is_none() => {
                let (last, rest) = insts.split_last()?;
                is_plain_return(last).then_some(())?;
                insts = rest;
            }
            _ => return None,
        }
        if !insts.iter().all(|i| is_plain(&i.decoded, &mut factory) && !is_guarded(i, lsda)) {
            return None;
        }
        parts.extend(insts.iter().map(Part::Plain));
        if let Some((cond, to)) = exit {
            let to = match to {
                Dest::Outside(at) => at,
                Dest::Block(b) => cfg.blocks.get(b.index())?.range.start,
            };
            parts.push(Part::Exit { cond, to });
        }
    }
    let len = |p: &Part<'_>| match p {
        Part::Plain(inst) => inst.bytes.as_slice().len(),
        Part::Exit { cond, .. } => branch_len(Op::Cond(*cond), true) as usize,
    };
    (parts.iter().map(len).sum::<usize>() <= MOST_BYTES).then_some(parts)
}

/// Returns whether an instruction is a return that pops only the return address.
pub(crate) fn is_plain_return(inst: &Inst) -> bool {
    matches!(inst.bytes.as_slice(), [0xc3] | [0xf3, 0xc3])
}

/// Returns all instructions but the jump at the end.
fn before_jump(insts: &[Inst]) -> Option<&[Inst]> {
    let (last, rest) = insts.split_last()?;
    let i = &last.decoded;
    (i.is_jmp_short_or_near() || i.is_jcc_short_or_near()).then_some(rest)
}

/// Returns whether the function itself would catch a fault at this instruction (`-fnon-call-exceptions`);
/// inlined, the caller would catch it. If the instruction is in no call site and a handler of the program
/// throws there, the original ends in `std::terminate`.
pub(crate) fn is_guarded(inst: &Inst, lsda: Option<&Lsda>) -> bool {
    let sites = lsda.map(|l| &l.call_sites[..]).unwrap_or_default();
    sites.iter().any(|s| s.landing_pad.is_some() && s.range.contains(inst.at))
}

/// Returns whether an instruction does the same without a stack frame of its own. The shadow stack is part of
/// the frame (Intel SDM volume 1, 17.2).
pub(crate) fn is_plain(i: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    i.flow_control() == FlowControl::Next
        && !has_code_operand(i)
        && !i.is_stack_instruction()
        && !i.cpuid_features().contains(&CpuidFeature::CET_SS)
        && factory.info(i).used_registers().iter().all(|u| u.register().full_register() != Register::RSP)
}
