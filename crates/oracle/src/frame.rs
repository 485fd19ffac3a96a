//! Walks the frames of a stopped thread by unwind rules.

use crate::atlas::Atlas;
use crate::decoded::State;
use crate::expression::evaluate;
use addr::{Addr, Avma, ReadMemory};
use unwind::{CfaRule, Reg, RegRule, Row};

/// Most frames in one walk.
pub(crate) const MAX_FRAMES: usize = 32;
/// The callee-saved registers by DWARF number: rbx, rbp, r12 to r15.
pub(crate) const SAVED: [usize; 6] = [3, 6, 12, 13, 14, 15];

/// Selects the frame tables to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum World {
    Originals,
    Clones,
}

/// One frame, with the registers of its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// The instruction whose rule was applied.
    pub(crate) pc: Avma,
    pub(crate) cfa: u64,
    /// The caller's registers by DWARF number; 16 is the return address.
    pub(crate) caller: [Option<u64>; 17],
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WalkEnd {
    /// A frame address above `until` is reached, or as many frames as wanted.
    Reached,
    /// There is no rule for this instruction.
    NoRule(Avma),
    /// The rule needs a value that is not known.
    Unknown(Avma),
}

/// Returns the frames from the innermost up to the first whose frame address is above `until`, at most
/// `most`, and why the walk ended.
pub(crate) fn walk(
    atlas: &Atlas,
    world: World,
    state: &State,
    memory: &dyn ReadMemory,
    (until, most): (u64, usize),
) -> (Vec<Frame>, WalkEnd) {
    let mut frames: Vec<Frame> = Vec::new();
    let mut regs = dwarf(state);
    let mut pc = state.ip();
    loop {
        let row = match world {
            World::Clones if atlas.clone_of(pc).is_some() => atlas.row_of_clone(pc),
            _ => atlas.row_of_original(pc),
        };
        let Some(row) = row else { return (frames, WalkEnd::NoRule(pc)) };
        let Some((cfa, caller)) = apply(&row, &regs, memory) else { return (frames, WalkEnd::Unknown(pc)) };
        frames.push(Frame { pc, cfa, caller });
        if cfa > until || frames.len() == most {
            return (frames, WalkEnd::Reached);
        }
        let Some(ra) = caller[16] else { return (frames, WalkEnd::Unknown(pc)) };
        regs = caller;
        // The address of the call itself. The address behind it may belong to another function.
        pc = Avma(ra).sub(1);
    }
}

fn apply(row: &Row, regs: &[Option<u64>; 17], memory: &dyn ReadMemory) -> Option<(u64, [Option<u64>; 17])> {
    let value = |r: u16| regs.get(usize::from(r)).copied().flatten();
    let cfa = match &row.cfa {
        CfaRule::RegOffset(r, o) => value(r.0)?.wrapping_add_signed(*o),
        CfaRule::Expr(ops) => evaluate(ops, None, &value, memory)?,
    };
    let mut caller = [None; 17];
    for n in SAVED {
        caller[n] = regs[n];
    }
    caller[usize::from(Reg::RSP.0)] = Some(cfa);
    for (r, rule) in &row.regs {
        let Some(slot) = caller.get_mut(usize::from(r.0)) else { continue };
        let load = |at: u64| memory.u64(Avma(at)).ok();
        *slot = match rule {
            RegRule::Undefined => None,
            RegRule::SameValue => value(r.0),
            RegRule::Offset(o) => load(cfa.wrapping_add_signed(*o)),
            RegRule::ValOffset(o) => Some(cfa.wrapping_add_signed(*o)),
            RegRule::Register(other) => value(other.0),
            RegRule::Expr(ops) => evaluate(ops, Some(cfa), &value, memory).and_then(load),
            RegRule::ValExpr(ops) => evaluate(ops, Some(cfa), &value, memory),
        };
    }
    Some((cfa, caller))
}

/// Returns the registers in DWARF's order (System V x86-64 psABI, figure 3.36).
fn dwarf(state: &State) -> [Option<u64>; 17] {
    const NUMBER: [usize; 8] = [0, 2, 1, 3, 7, 6, 4, 5];
    let mut out = [None; 17];
    for (n, v) in state.gprs.iter().enumerate() {
        out[NUMBER.get(n).copied().unwrap_or(n)] = Some(*v);
    }
    out[16] = Some(state.ip);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::AvmaRange;

    #[test]
    fn a_rule_is_applied() {
        let stack: Vec<u8> = (1..=4u64).flat_map(u64::to_le_bytes).collect();
        let memory = (Avma(0x8000), &stack[..]);
        let mut state = State { ip: 0x1000, ..State::default() };
        state.gprs[4] = 0x8000;
        state.gprs[3] = 0x77;
        state.gprs[5] = 0x8010;
        let row = Row {
            range: AvmaRange::with_len(Avma(0x1000), 1),
            cfa: CfaRule::RegOffset(Reg::RBP, 16),
            regs: vec![(Reg::RBP, RegRule::Offset(-16)), (Reg::RA, RegRule::Offset(-8))],
            args_size: 0,
        };
        let (cfa, caller) = apply(&row, &dwarf(&state), &memory).unwrap();
        assert_eq!(cfa, 0x8020);
        assert_eq!(
            (caller[6], caller[16], caller[7], caller[3]),
            (Some(3), Some(4), Some(0x8020), Some(0x77))
        );
        assert_eq!(caller[0], None, "lost by the call");
    }
}
