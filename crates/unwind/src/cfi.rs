//! Writes call frame instructions: the transition from one rule to the next in the fewest bytes.

use crate::leb::{put_sleb, put_uleb};
use crate::{CfaRule, Error, Reg, RegRule, Row};

const ADVANCE_LOC: u8 = 0x40;
const OFFSET: u8 = 0x80;
const RESTORE: u8 = 0xc0;
const ADVANCE_LOC1: u8 = 0x02;
const ADVANCE_LOC2: u8 = 0x03;
const ADVANCE_LOC4: u8 = 0x04;
const OFFSET_EXTENDED: u8 = 0x05;
const RESTORE_EXTENDED: u8 = 0x06;
const UNDEFINED: u8 = 0x07;
const SAME_VALUE: u8 = 0x08;
const REGISTER: u8 = 0x09;
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_REGISTER: u8 = 0x0d;
const DEF_CFA_OFFSET: u8 = 0x0e;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const EXPRESSION: u8 = 0x10;
const OFFSET_EXTENDED_SF: u8 = 0x11;
const DEF_CFA_SF: u8 = 0x12;
const DEF_CFA_OFFSET_SF: u8 = 0x13;
const VAL_OFFSET: u8 = 0x14;
const VAL_OFFSET_SF: u8 = 0x15;
const VAL_EXPRESSION: u8 = 0x16;
const GNU_ARGS_SIZE: u8 = 0x2e;
/// Does nothing; pads entries.
pub(crate) const NOP: u8 = 0x00;

/// The data alignment factor of all programs written here, in bytes. With -1, every offset except -2^63 can
/// be encoded. The usual -8 would save nothing, as the offsets of saved registers fit one byte either way.
pub(crate) const DATA_ALIGN: i64 = -1;

/// The CFA of a function's first instruction.
pub(crate) const INITIAL_CFA: CfaRule = CfaRule::RegOffset(Reg::RSP, 8);
/// The location of its return address, relative to the CFA.
pub(crate) const INITIAL_RA: RegRule = RegRule::Offset(-8);

/// Appends a register operand.
fn put_reg(out: &mut Vec<u8>, reg: Reg) {
    put_uleb(out, u64::from(reg.0));
}

/// Appends `op` with the register in it, if the register is below 64; else `extended` and the register.
fn put_short(out: &mut Vec<u8>, op: u8, extended: u8, reg: Reg) {
    match u8::try_from(reg.0) {
        Ok(small @ 0..64) => out.push(op | small),
        _ => {
            out.push(extended);
            put_reg(out, reg);
        }
    }
}

fn put_expr(out: &mut Vec<u8>, expr: &[u8]) {
    put_uleb(out, expr.len() as u64);
    out.extend_from_slice(expr);
}

/// Returns `offset / DATA_ALIGN`.
fn factored(reg: Reg, offset: i64) -> Result<i64, Error> {
    offset.checked_div(DATA_ALIGN).ok_or(Error::OffsetRange { reg })
}

/// Appends an advance of the location by `bytes`, which is not 0.
pub(crate) fn put_advance(out: &mut Vec<u8>, bytes: u32) {
    let b = bytes.to_le_bytes();
    match bytes {
        0..64 => out.push(ADVANCE_LOC | b[0]),
        64..0x100 => out.extend_from_slice(&[ADVANCE_LOC1, b[0]]),
        0x100..0x1_0000 => out.extend_from_slice(&[ADVANCE_LOC2, b[0], b[1]]),
        _ => out.extend_from_slice(&[ADVANCE_LOC4, b[0], b[1], b[2], b[3]]),
    }
}

/// Appends the program of a CIE: the CFA of a function's first instruction and, if `ra`, its return address.
pub(crate) fn put_initial(out: &mut Vec<u8>, ra: bool) -> Result<(), Error> {
    let nothing = CfaRule::Expr([].into());
    put_cfa(out, &nothing, &INITIAL_CFA)?;
    if ra {
        put_rule(out, Reg::RA, &INITIAL_RA)?;
    }
    Ok(())
}

/// Appends the transition from the rule `old` to `new`, under a CIE with the initial rules `initial`. The
/// registers of both rows must rise.
pub(crate) fn put_delta(
    out: &mut Vec<u8>,
    initial: &[(Reg, RegRule)],
    old: &Row,
    new: &Row,
) -> Result<(), Error> {
    if old.cfa != new.cfa {
        put_cfa(out, &old.cfa, &new.cfa)?;
    }
    let mut olds = old.regs.iter().peekable();
    let mut news = new.regs.iter().peekable();
    loop {
        let next = match (olds.peek(), news.peek()) {
            (None, None) => break,
            (Some(o), None) => o.0,
            (None, Some(n)) => n.0,
            (Some(o), Some(n)) => o.0.min(n.0),
        };
        let was = olds.next_if(|o| o.0 == next).map(|o| &o.1);
        let is = news.next_if(|n| n.0 == next).map(|n| &n.1);
        let first = initial.iter().find(|i| i.0 == next).map(|i| &i.1);
        match is {
            _ if was == is => {}
            _ if is == first => put_short(out, RESTORE, RESTORE_EXTENDED, next),
            Some(rule) => put_rule(out, next, rule)?,
            // No instruction removes a rule that the CIE gave. For the only such register, the default means
            // the same.
            None => put_rule(out, next, &RegRule::Undefined)?,
        }
    }
    if old.args_size != new.args_size {
        out.push(GNU_ARGS_SIZE);
        put_uleb(out, new.args_size);
    }
    Ok(())
}

fn put_cfa(out: &mut Vec<u8>, old: &CfaRule, new: &CfaRule) -> Result<(), Error> {
    match (old, new) {
        (_, CfaRule::Expr(expr)) => {
            out.push(DEF_CFA_EXPRESSION);
            put_expr(out, expr);
        }
        (CfaRule::RegOffset(old_reg, _), &CfaRule::RegOffset(reg, offset)) if *old_reg == reg => {
            match u64::try_from(offset) {
                Ok(offset) => {
                    out.push(DEF_CFA_OFFSET);
                    put_uleb(out, offset);
                }
                Err(_) => {
                    out.push(DEF_CFA_OFFSET_SF);
                    put_sleb(out, factored(reg, offset)?);
                }
            }
        }
        (CfaRule::RegOffset(_, old_offset), &CfaRule::RegOffset(reg, offset)) if *old_offset == offset => {
            out.push(DEF_CFA_REGISTER);
            put_reg(out, reg);
        }
        (_, &CfaRule::RegOffset(reg, offset)) => match u64::try_from(offset) {
            Ok(offset) => {
                out.push(DEF_CFA);
                put_reg(out, reg);
                put_uleb(out, offset);
            }
            Err(_) => {
                out.push(DEF_CFA_SF);
                put_reg(out, reg);
                put_sleb(out, factored(reg, offset)?);
            }
        },
    }
    Ok(())
}

fn put_rule(out: &mut Vec<u8>, reg: Reg, rule: &RegRule) -> Result<(), Error> {
    match *rule {
        RegRule::Undefined => {
            out.push(UNDEFINED);
            put_reg(out, reg);
        }
        RegRule::SameValue => {
            out.push(SAME_VALUE);
            put_reg(out, reg);
        }
        RegRule::Offset(offset) => {
            let factored = factored(reg, offset)?;
            match u64::try_from(factored) {
                Ok(factored) => {
                    put_short(out, OFFSET, OFFSET_EXTENDED, reg);
                    put_uleb(out, factored);
                }
                Err(_) => {
                    out.push(OFFSET_EXTENDED_SF);
                    put_reg(out, reg);
                    put_sleb(out, factored);
                }
            }
        }
        RegRule::ValOffset(offset) => {
            let factored = factored(reg, offset)?;
            match u64::try_from(factored) {
                Ok(factored) => {
                    out.push(VAL_OFFSET);
                    put_reg(out, reg);
                    put_uleb(out, factored);
                }
                Err(_) => {
                    out.push(VAL_OFFSET_SF);
                    put_reg(out, reg);
                    put_sleb(out, factored);
                }
            }
        }
        RegRule::Register(from) => {
            out.push(REGISTER);
            put_reg(out, reg);
            put_reg(out, from);
        }
        RegRule::Expr(ref expr) => {
            out.push(EXPRESSION);
            put_reg(out, reg);
            put_expr(out, expr);
        }
        RegRule::ValExpr(ref expr) => {
            out.push(VAL_EXPRESSION);
            put_reg(out, reg);
            put_expr(out, expr);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::AvmaRange;

    fn row(cfa: CfaRule, regs: &[(u16, RegRule)], args_size: u64) -> Row {
        let regs = regs.iter().map(|(r, rule)| (Reg(*r), rule.clone())).collect();
        Row { range: AvmaRange::default(), cfa, regs, args_size }
    }

    fn delta(old: &Row, new: &Row) -> Vec<u8> {
        let mut out = Vec::new();
        put_delta(&mut out, &[(Reg::RA, INITIAL_RA)], old, new).unwrap();
        out
    }

    const RA: (u16, RegRule) = (16, INITIAL_RA);

    #[test]
    fn a_prologue_is_as_short_as_compiler_output() {
        let entry = row(INITIAL_CFA, &[RA], 0);
        let pushed = row(CfaRule::RegOffset(Reg(7), 16), &[(6, RegRule::Offset(-16)), RA], 0);
        let framed = row(CfaRule::RegOffset(Reg(6), 16), &[(6, RegRule::Offset(-16)), RA], 0);
        let left = row(CfaRule::RegOffset(Reg(7), 8), &[RA], 0);
        assert_eq!(delta(&entry, &pushed), [DEF_CFA_OFFSET, 16, OFFSET | 6, 16]);
        assert_eq!(delta(&pushed, &framed), [DEF_CFA_REGISTER, 6]);
        assert_eq!(delta(&framed, &left), [DEF_CFA, 7, 8, RESTORE | 6]);
        assert_eq!(delta(&left, &entry), []);
    }

    #[test]
    fn rare_forms() {
        let entry = row(INITIAL_CFA, &[RA], 0);
        let outermost = row(INITIAL_CFA, &[(16, RegRule::Undefined)], 0);
        assert_eq!(delta(&entry, &outermost), [UNDEFINED, 16]);
        assert_eq!(delta(&outermost, &entry), [RESTORE | 16]);
        // A rule removed from the return address reads as its default, which is the same.
        assert_eq!(delta(&entry, &row(INITIAL_CFA, &[], 0)), [UNDEFINED, 16]);

        let odd = row(
            CfaRule::RegOffset(Reg(7), -3),
            &[RA, (64, RegRule::Offset(-129)), (65, RegRule::Offset(3)), (66, RegRule::ValOffset(3))],
            300,
        );
        assert_eq!(
            delta(&entry, &odd),
            [
                &[DEF_CFA_OFFSET_SF, 3][..],
                &[OFFSET_EXTENDED, 64, 0x81, 1],
                &[OFFSET_EXTENDED_SF, 65, 0x7d],
                &[VAL_OFFSET_SF, 66, 0x7d],
                &[GNU_ARGS_SIZE, 0xac, 2],
            ]
            .concat()
        );
        assert_eq!(
            delta(&odd, &entry),
            [
                &[DEF_CFA_OFFSET, 8][..],
                &[RESTORE_EXTENDED, 64, RESTORE_EXTENDED, 65, RESTORE_EXTENDED, 66],
                &[GNU_ARGS_SIZE, 0],
            ]
            .concat()
        );
        let drap = row(CfaRule::Expr([0x76, 0x78, 6][..].into()), &[RA, (6, RegRule::SameValue)], 0);
        let mut sorted = drap.clone();
        sorted.regs.sort_by_key(|r| r.0);
        assert_eq!(delta(&entry, &sorted), [DEF_CFA_EXPRESSION, 3, 0x76, 0x78, 6, SAME_VALUE, 6]);
        assert_eq!(delta(&sorted, &entry), [DEF_CFA, 7, 8, RESTORE | 6]);
    }

    #[test]
    fn the_offset_without_a_form_is_refused() {
        let entry = row(INITIAL_CFA, &[RA], 0);
        let mut out = Vec::new();
        for bad in [
            row(CfaRule::RegOffset(Reg(7), i64::MIN), &[RA], 0),
            row(INITIAL_CFA, &[(3, RegRule::Offset(i64::MIN)), RA], 0),
        ] {
            assert!(matches!(put_delta(&mut out, &[], &entry, &bad), Err(Error::OffsetRange { .. })));
        }
    }

    #[test]
    fn advances_take_the_shortest_form() {
        let lens: [(u32, usize); 7] =
            [(1, 1), (63, 1), (64, 2), (255, 2), (256, 3), (0xffff, 3), (0x1_0000, 5)];
        for (bytes, len) in lens {
            let mut out = Vec::new();
            put_advance(&mut out, bytes);
            assert_eq!(out.len(), len, "{bytes}");
        }
    }
}
