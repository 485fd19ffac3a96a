//! The callees of a function, and how often it calls them.

use crate::analyse::program::{FuncId, Program};
use crate::plan::candidate::{Measured, SiteTargets};
use addr::Avma;
use code::InstId;
use iced_x86::{FlowControl, Instruction, OpKind};
use rustc_hash::FxHashMap;

/// Reports the callee and number of executions of each call and tail call that ran. Follows stubs, and bound
/// slots of the procedure linkage table. For an indirect call, reports the observed callees.
pub fn of(program: &Program<'_>, c: &Measured, mut tell: impl FnMut(FuncId, u64)) {
    let cfg = &c.analysed.cfg;
    let sites: FxHashMap<InstId, &SiteTargets> = c.targets.iter().map(|s| (s.inst, s)).collect();
    let counts = c.counts.blocks.iter().map(|b| b.count);
    for (block, count) in cfg.blocks.iter().zip(counts).filter(|(_, n)| *n > 0) {
        for n in block.inst_ids() {
            let Some(inst) = cfg.insts.get(n.index()) else { continue };
            if let Some(callee) = callee(program, &inst.decoded).filter(|f| *f != c.id) {
                tell(callee, count);
            }
            for (at, count) in sites.get(&n).into_iter().flat_map(|s| s.parts(count)) {
                if let Some(callee) = program.entered_at(at) {
                    tell(callee, count);
                }
            }
        }
    }
}

/// Returns the function at whose entry a call or jump leads, if the instruction and bound slots determine it.
pub fn callee(program: &Program<'_>, i: &Instruction) -> Option<FuncId> {
    program.entered_at(leads_to(program, i)?)
}

/// Returns the destination of a call or jump, if the instruction and bound slots determine it.
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
