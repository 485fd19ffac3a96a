//! Proves that a table may be cloned: only the jump can notice that its entries differ.

use crate::liveness::{Live, Liveness, Question, effect_of, flag_bits, flags_certain, gpr};
use crate::{Block, Cfg, Dest, TableLoad, Term};
use addr::{Addr, Avma};
use iced_x86::{Code, Instruction, InstructionInfoFactory, OpKind, Register};

/// Returns how a clone must read its own table, if that is sound. The load must be in the block of the jump,
/// and its displacement must be all that needs to change. The loaded value must reach only registers and
/// flags, and these must be dead at every destination. `load` and `at` are the reading instruction and the
/// table.
pub(super) fn table_load(
    cfg: &Cfg,
    block: &Block,
    (load, at): (Avma, Avma),
    live: &Liveness,
    q: Question,
) -> Option<TableLoad> {
    let Term::Switch { table } = block.term else { return None };
    let jump = block.last_inst()?;
    let inst = block.inst_ids().find(|n| cfg.insts[n.index()].at == load)?;
    let base_value = displaced(&cfg.insts[inst.index()].decoded, at)?;
    let mut changed = Live::default();
    if inst != jump {
        changed = written(&cfg.insts[inst.index()].decoded)?;
        let mut factory = InstructionInfoFactory::new();
        for n in block.inst_ids().filter(|n| (inst.next()..jump).contains(n)) {
            changed = spread(&cfg.insts[n.index()].decoded, changed, &mut factory)?;
        }
        let by = gpr(cfg.insts[jump.index()].decoded.op0_register())?;
        if changed.regs() >> by & 1 == 0 {
            return None;
        }
    }
    for d in &cfg.tables[table.index()].targets {
        let there = match d {
            Dest::Block(b) => live.live_in(*b),
            Dest::Outside(_) => q.at_exit(),
        };
        if there.meets(changed) {
            return None;
        }
    }
    Some(TableLoad { inst, base_value, differs: (inst.next(), jump.next()) })
}

/// Returns the constant to which the load's displacement is added; `Some(None)` if its registers hold only
/// the index. As `table = constant + displacement`, a new displacement reads another table at the same index.
#[expect(clippy::option_option, reason = "no such load; a load without base; a load with one")]
fn displaced(i: &Instruction, table: Avma) -> Option<Option<Avma>> {
    let wide = |r: Register| r == Register::None || (r.is_gpr() && r.size() == 8);
    let memory = (0..i.op_count()).any(|o| i.op_kind(o) == OpKind::Memory);
    if !memory
        || !wide(i.memory_base())
        || !wide(i.memory_index())
        || matches!(i.memory_segment(), Register::FS | Register::GS)
    {
        return None;
    }
    // Every constant in the address other than the displacement is in some register.
    let base = table.sub(i.memory_displacement64());
    Some((base != Avma(0)).then_some(base))
}

/// Returns the set that a table load changes: its whole destination register.
fn written(i: &Instruction) -> Option<Live> {
    let plain = matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_r32_rm32 | Code::Movsxd_r64_rm32);
    let n = gpr(i.op0_register()).filter(|_| plain)?;
    Some(Live::whole(1 << n, 0))
}

/// Returns the registers and flags that differ after an instruction, from those before; `None` if the
/// difference would spread elsewhere.
fn spread(i: &Instruction, before: Live, factory: &mut InstructionInfoFactory) -> Option<Live> {
    // Only computations: no branch, no call, no memory access with a changed value.
    if i.flow_control() != iced_x86::FlowControl::Next {
        return None;
    }
    let e = effect_of(i, factory);
    let reads = e.reads.meets(before);
    let info = factory.info(i);
    let mut after = before;
    let mut result = 0u16;
    for u in info.used_registers() {
        use iced_x86::OpAccess as A;
        let writes = matches!(u.access(), A::Write | A::CondWrite | A::ReadWrite | A::ReadCondWrite);
        match gpr(u.register()) {
            Some(n) if writes => result |= 1 << n,
            Some(_) => {}
            // A changed value in a vector register is not followed.
            None if writes && reads && !u.register().is_segment_register() => return None,
            None => {}
        }
    }
    if reads {
        if !info.used_memory().is_empty() {
            return None;
        }
        after.low |= result;
        after.high |= result;
        after.flags |= flag_bits(i.rflags_modified());
    } else {
        after.low &= !(e.kills.low & result);
        after.high &= !(e.kills.high & result);
        if flags_certain(i) {
            after.flags &= !flag_bits(i.rflags_modified());
        }
    }
    Some(after)
}
