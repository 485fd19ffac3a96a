//! Evaluates call frame programs to absolute rows.
//!
//! The semantics are those of libgcc, as compilers generate code to be unwound by libgcc. They differ from
//! gimli's own table in one point: `DW_CFA_restore_state` does not restore `DW_CFA_GNU_args_size` (GCC emits
//! the size again in the order of the code).

use crate::table::{Bytes, Cie};
use crate::{CfaRule, Error, Fde, Reg, RegRule, Row};
use addr::{Avma, AvmaRange};
use gimli::{CallFrameInstruction as Op, CallFrameInstructionIter, UnwindExpression};
use std::sync::Arc;

/// The highest register number of the x86-64 psABI (table "DWARF Register Number Mapping"). Bounds a row's
/// size.
const MAX_REG: u16 = 129;
/// The deepest nesting of `DW_CFA_remember_state`. Compilers use 1.
const MAX_DEPTH: usize = 32;
/// The most register rules in all rows of one FDE together: 32 MiB of them, a thousand times more than in
/// real functions.
const MAX_RULES: usize = 1 << 20;

/// The rule being built.
#[derive(Clone)]
pub(crate) struct State {
    cfa: Option<CfaRule>,
    regs: Vec<(Reg, RegRule)>,
    args_size: u64,
}

/// The context of one program.
struct Program<'a> {
    bytes: &'a [u8],
    fde: &'a Fde,
    /// `data_alignment_factor`.
    factor: i64,
    /// The rules that `DW_CFA_restore` restores; `None` while the CIE's program runs.
    initial: Option<&'a [(Reg, RegRule)]>,
}

impl State {
    /// Evaluates a CIE's program.
    pub(crate) fn initial<'a>(
        bytes: &[u8],
        fde: &Fde,
        cie: &Cie<'a>,
        ops: CallFrameInstructionIter<'_, Bytes<'a>>,
    ) -> Result<State, Error> {
        let program = Program { bytes, fde, factor: cie.data_alignment_factor(), initial: None };
        let mut state = State { cfa: None, regs: Vec::new(), args_size: 0 };
        for op in ops {
            let op = op.map_err(|source| Error::Entry { offset: fde.offset, source })?;
            program.apply(&mut state, &op)?;
        }
        Ok(state)
    }

    /// Returns the present rule as a row for `range`.
    pub(crate) fn row(&self, fde: &Fde, range: AvmaRange) -> Result<Row, Error> {
        let none = Error::Program { offset: fde.offset, what: "no rule for the frame address" };
        let cfa = self.cfa.clone().ok_or(none)?;
        Ok(Row { range, cfa, regs: self.regs.clone(), args_size: self.args_size })
    }

    fn set(&mut self, reg: Reg, rule: RegRule) {
        match self.regs.binary_search_by_key(&reg, |r| r.0) {
            Ok(at) => self.regs[at].1 = rule,
            Err(at) => self.regs.insert(at, (reg, rule)),
        }
    }

    fn clear(&mut self, reg: Reg) {
        if let Ok(at) = self.regs.binary_search_by_key(&reg, |r| r.0) {
            self.regs.remove(at);
        }
    }
}

impl Program<'_> {
    fn fault(&self, what: &'static str) -> Error {
        Error::Program { offset: self.fde.offset, what }
    }

    fn reg(&self, reg: gimli::Register) -> Result<Reg, Error> {
        if reg.0 > MAX_REG {
            return Err(self.fault("a register that x86-64 does not have"));
        }
        Ok(Reg(reg.0))
    }

    fn scaled(&self, factored: i64) -> Result<i64, Error> {
        factored.checked_mul(self.factor).ok_or_else(|| self.fault("an offset exceeds 64 bits"))
    }

    fn expr(&self, expr: &UnwindExpression<usize>) -> Result<Arc<[u8]>, Error> {
        let end = expr.offset.checked_add(expr.length);
        let bytes = end.and_then(|end| self.bytes.get(expr.offset..end));
        bytes.map(Arc::from).ok_or_else(|| self.fault("an expression leaves the section"))
    }

    /// Applies an instruction that does not advance, push or pop.
    fn apply(&self, state: &mut State, op: &Op<usize>) -> Result<(), Error> {
        let no_reg = || self.fault("a change to a frame address that is no register plus offset");
        match *op {
            Op::DefCfa { register, offset } => {
                state.cfa = Some(CfaRule::RegOffset(self.reg(register)?, offset.cast_signed()));
            }
            Op::DefCfaSf { register, factored_offset } => {
                state.cfa = Some(CfaRule::RegOffset(self.reg(register)?, self.scaled(factored_offset)?));
            }
            Op::DefCfaRegister { register } => {
                let Some(CfaRule::RegOffset(reg, _)) = &mut state.cfa else { return Err(no_reg()) };
                *reg = self.reg(register)?;
            }
            Op::DefCfaOffset { offset } => {
                let Some(CfaRule::RegOffset(_, old)) = &mut state.cfa else { return Err(no_reg()) };
                *old = offset.cast_signed();
            }
            Op::DefCfaOffsetSf { factored_offset } => {
                let Some(CfaRule::RegOffset(_, old)) = &mut state.cfa else { return Err(no_reg()) };
                *old = self.scaled(factored_offset)?;
            }
            Op::DefCfaExpression { ref expression } => {
                state.cfa = Some(CfaRule::Expr(self.expr(expression)?));
            }
            Op::Undefined { register } => state.set(self.reg(register)?, RegRule::Undefined),
            Op::SameValue { register } => state.set(self.reg(register)?, RegRule::SameValue),
            Op::Offset { register, factored_offset } => {
                let offset = self.scaled(factored_offset.cast_signed())?;
                state.set(self.reg(register)?, RegRule::Offset(offset));
            }
            Op::OffsetExtendedSf { register, factored_offset } => {
                state.set(self.reg(register)?, RegRule::Offset(self.scaled(factored_offset)?));
            }
            Op::ValOffset { register, factored_offset } => {
                let offset = self.scaled(factored_offset.cast_signed())?;
                state.set(self.reg(register)?, RegRule::ValOffset(offset));
            }
            Op::ValOffsetSf { register, factored_offset } => {
                state.set(self.reg(register)?, RegRule::ValOffset(self.scaled(factored_offset)?));
            }
            Op::Register { dest_register, src_register } => {
                state.set(self.reg(dest_register)?, RegRule::Register(self.reg(src_register)?));
            }
            Op::Expression { register, ref expression } => {
                state.set(self.reg(register)?, RegRule::Expr(self.expr(expression)?));
            }
            Op::ValExpression { register, ref expression } => {
                state.set(self.reg(register)?, RegRule::ValExpr(self.expr(expression)?));
            }
            Op::Restore { register } => {
                let reg = self.reg(register)?;
                let initial = self.initial.ok_or_else(|| self.fault("a restore in a CIE"))?;
                match initial.binary_search_by_key(&reg, |r| r.0).ok().and_then(|at| initial.get(at)) {
                    Some((_, rule)) => state.set(reg, rule.clone()),
                    None => state.clear(reg),
                }
            }
            Op::ArgsSize { size } => state.args_size = size,
            Op::Nop => {}
            _ => return Err(self.fault("an instruction that has no place there")),
        }
        Ok(())
    }
}

/// Evaluates an FDE's program from its CIE's state.
pub(crate) fn evaluate<'a>(
    bytes: &[u8],
    fde: &Fde,
    cie: &Cie<'a>,
    initial: &State,
    ops: CallFrameInstructionIter<'_, Bytes<'a>>,
) -> Result<Vec<Row>, Error> {
    let program = Program { bytes, fde, factor: cie.data_alignment_factor(), initial: Some(&initial.regs) };
    let mut state = initial.clone();
    let mut stack: Vec<State> = Vec::new();
    let mut rows = Rows { fde, rows: Vec::new(), rules: 0, at: fde.range.start };
    for op in ops {
        match op.map_err(|source| Error::Entry { offset: fde.offset, source })? {
            Op::AdvanceLoc { delta } => {
                let by = u64::from(delta).checked_mul(cie.code_alignment_factor());
                let to = by.and_then(|by| rows.at.0.checked_add(by));
                let to = to.ok_or_else(|| program.fault("an advance exceeds 64 bits"))?;
                rows.close(&state, Avma(to))?;
            }
            Op::SetLoc { address } if address < rows.at.0 => return Err(program.fault("a step back")),
            Op::SetLoc { address } => rows.close(&state, Avma(address))?,
            Op::RememberState if stack.len() >= MAX_DEPTH => {
                return Err(program.fault("states nest too deep"));
            }
            Op::RememberState => stack.push(state.clone()),
            Op::RestoreState => {
                let args_size = state.args_size;
                state = stack.pop().ok_or_else(|| program.fault("no state to restore"))?;
                state.args_size = args_size;
            }
            op => program.apply(&mut state, &op)?,
        }
    }
    rows.close(&state, fde.range.end)?;
    Ok(rows.rows)
}

/// The finished rows.
struct Rows<'a> {
    fde: &'a Fde,
    rows: Vec<Row>,
    rules: usize,
    at: Avma,
}

impl Rows<'_> {
    /// Ends the row that began at `self.at`, with the rule `state`. Code past the FDE's end is left out.
    fn close(&mut self, state: &State, to: Avma) -> Result<(), Error> {
        let range = AvmaRange::new(self.at, to.min(self.fde.range.end));
        self.at = to.max(self.at);
        if range.is_empty() {
            return Ok(());
        }
        if let Some(last) = self.rows.last_mut()
            && state.args_size == last.args_size
            && state.cfa.as_ref() == Some(&last.cfa)
            && state.regs == last.regs
        {
            last.range.end = range.end;
            return Ok(());
        }
        self.rules += state.regs.len() + 1;
        if self.rules > MAX_RULES {
            return Err(Error::Program { offset: self.fde.offset, what: "too many rules" });
        }
        self.rows.push(state.row(self.fde, range)?);
        Ok(())
    }
}
