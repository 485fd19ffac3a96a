//! Whom does a function call, and how often?

use crate::candidates::Candidate;
use crate::program::{FuncId, Program};
use addr::Avma;
use code::BlockId;
use iced_x86::{FlowControl, Instruction, OpKind};

/// Tells of each direct call and tail call of a function that is known to run: the callee, also behind a stub or a slot of
/// the procedure linkage table that is bound, and how often.
pub fn of(program: &Program<'_>, c: &Candidate, mut tell: impl FnMut(FuncId, u64)) {
    let cfg = &c.analysed.cfg;
    for b in (0u32..).take(cfg.blocks.len()).map(BlockId) {
        let count = c.counts.blocks.get(b.index()).copied().unwrap_or(0);
        if count == 0 {
            continue;
        }
        for inst in cfg.insts_of(b) {
            if let Some(callee) = callee(program, &inst.decoded).filter(|f| *f != c.id) {
                tell(callee, count);
            }
        }
    }
}

/// The function at whose entry a call or jump leads, if that is plain from it and from slots that are bound.
pub fn callee(program: &Program<'_>, i: &Instruction) -> Option<FuncId> {
    let at = leads_to(program, i)?;
    program.find(at).filter(|&f| program.extent(f).entry == at)
}

/// Where a call or jump leads, if that is plain from it and from slots that are bound.
fn leads_to(program: &Program<'_>, i: &Instruction) -> Option<Avma> {
    match i.flow_control() {
        FlowControl::Call | FlowControl::UnconditionalBranch if i.op0_kind() == OpKind::NearBranch64 => {
            let at = Avma(i.near_branch64());
            Some(program.bound(at).unwrap_or(at))
        }
        FlowControl::IndirectCall | FlowControl::IndirectBranch if i.is_ip_rel_memory_operand() => {
            program.memory().u64(Avma(i.ip_rel_memory_address())).ok().map(Avma)
        }
        _ => None,
    }
}
