//! What of a function can run in place of a call of it?
//!
//! A way from its entry to its return on which nothing has to do with the stack. Where control leaves that way, the rest of the
//! function is called: that is entered in the middle, with the return address where a call of the whole would have left it,
//! which nobody has read or moved so far.

use crate::encode::behind_mark;
use crate::items::{Op, branch_len};
use crate::plan::{condition_number, has_code_operand};
use addr::Avma;
use code::{BlockId, Cfg, Dest, Inst, Term};
use iced_x86::{CpuidFeature, FlowControl, Instruction, InstructionInfoFactory, Register};
use unwind::Lsda;

/// What runs in place has no more bytes than this: what calling it takes in lines, here and there.
const MOST_BYTES: usize = 48;

/// A way through a function, to run in place of calls.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    /// The function.
    pub cfg: &'a Cfg,
    /// The blocks on the way, from the entry to one that returns.
    pub path: &'a [BlockId],
    /// Its exception table.
    pub lsda: Option<&'a Lsda>,
}

/// What there is to do on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// An instruction.
    Plain(&'a Inst),
    /// On a condition, by its number in the opcode, control goes off, to this address of the original.
    Exit { cond: u8, to: Avma },
}

/// Whether calls of a function can be answered in place by this way through it: it is short, ends in a plain return, nothing
/// on it has to do with the stack or is guarded by a landing pad.
#[must_use]
pub fn can_inline(body: Body<'_>) -> bool {
    parts(body).is_some()
}

/// What is done on the way, where such a thing can be.
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

/// A return that pops nothing but the address.
pub(crate) fn is_plain_return(inst: &Inst) -> bool {
    matches!(inst.bytes.as_slice(), [0xc3] | [0xf3, 0xc3])
}

/// All but the jump at the end.
fn before_jump(insts: &[Inst]) -> Option<&[Inst]> {
    let (last, rest) = insts.split_last()?;
    let i = &last.decoded;
    (i.is_jmp_short_or_near() || i.is_jcc_short_or_near()).then_some(rest)
}

/// Whether a fault there would be caught in the function itself (`-fnon-call-exceptions`); in place it would be the caller's. That
/// of an instruction in no call site ends in `std::terminate` in the original, if a handler of the program's throws there.
pub(crate) fn is_guarded(inst: &Inst, lsda: Option<&Lsda>) -> bool {
    let sites = lsda.map(|l| &l.call_sites[..]).unwrap_or_default();
    sites.iter().any(|s| s.landing_pad.is_some() && s.range.contains(inst.at))
}

/// Whether an instruction does the same without the frame of a function of its own. The shadow stack is a part of that
/// (Intel SDM volume 1, 17.2).
pub(crate) fn is_plain(i: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    i.flow_control() == FlowControl::Next
        && !has_code_operand(i)
        && !i.is_stack_instruction()
        && !i.cpuid_features().contains(&CpuidFeature::CET_SS)
        && factory.info(i).used_registers().iter().all(|u| u.register().full_register() != Register::RSP)
}
