//! Evaluates DWARF expressions of call frame information (DWARF 5, section 2.5; the part that compilers and
//! hand-written assembly use there).

use addr::{Avma, ReadMemory};

/// Evaluates an expression; `first` is on the stack at the beginning. `regs` returns a register's value by
/// its DWARF number. Returns `None` if an operation or a value is unknown, or memory cannot be read.
pub(crate) fn evaluate(
    ops: &[u8],
    first: Option<u64>,
    regs: &dyn Fn(u16) -> Option<u64>,
    memory: &dyn ReadMemory,
) -> Option<u64> {
    let mut stack: Vec<u64> = first.into_iter().collect();
    let mut r = Reader(ops);
    while let Some(op) = r.byte() {
        let value = match op {
            0x03 | 0x0e | 0x0f => r.fixed(8)?,
            0x06 => {
                let at = stack.pop()?;
                memory.u64(Avma(at)).ok()?
            }
            0x08 => r.fixed(1)?,
            0x09 => sign(r.fixed(1)?, 1),
            0x0a => r.fixed(2)?,
            0x0b => sign(r.fixed(2)?, 2),
            0x0c => r.fixed(4)?,
            0x0d => sign(r.fixed(4)?, 4),
            0x10 => r.leb()?.0,
            0x11 => r.sleb()?,
            0x12 => *stack.last()?,
            0x13 => {
                stack.pop()?;
                continue;
            }
            0x19 => stack.pop()?.cast_signed().wrapping_abs().cast_unsigned(),
            0x1f => stack.pop()?.wrapping_neg(),
            0x20 => !stack.pop()?,
            0x23 => stack.pop()?.wrapping_add(r.leb()?.0),
            0x1a | 0x1c | 0x1e | 0x21 | 0x22 | 0x24..=0x27 | 0x29..=0x2e => {
                let b = stack.pop()?;
                binary(op, stack.pop()?, b)?
            }
            0x30..=0x4f => u64::from(op - 0x30),
            0x70..=0x8f => regs(u16::from(op - 0x70))?.wrapping_add(r.sleb()?),
            0x92 => {
                let reg = u16::try_from(r.leb()?.0).ok()?;
                regs(reg)?.wrapping_add(r.sleb()?)
            }
            0x96 => continue,
            _ => return None,
        };
        stack.push(value);
    }
    stack.pop()
}

fn binary(op: u8, a: u64, b: u64) -> Option<u64> {
    let truth = |t: bool| u64::from(t);
    let (sa, sb) = (a.cast_signed(), b.cast_signed());
    let by = u32::try_from(b).ok();
    Some(match op {
        0x1a => a & b,
        0x1c => a.wrapping_sub(b),
        0x1e => a.wrapping_mul(b),
        0x21 => a | b,
        0x22 => a.wrapping_add(b),
        0x24 => by.and_then(|by| a.checked_shl(by)).unwrap_or(0),
        0x25 => by.and_then(|by| a.checked_shr(by)).unwrap_or(0),
        0x26 => by.and_then(|by| sa.checked_shr(by)).unwrap_or(sa >> 63).cast_unsigned(),
        0x27 => a ^ b,
        0x29 => truth(a == b),
        0x2a => truth(sa >= sb),
        0x2b => truth(sa > sb),
        0x2c => truth(sa <= sb),
        0x2d => truth(sa < sb),
        0x2e => truth(a != b),
        _ => return None,
    })
}

fn sign(v: u64, bytes: u32) -> u64 {
    let shift = 64 - 8 * bytes;
    (v << shift).cast_signed().wrapping_shr(shift).cast_unsigned()
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn fixed(&mut self, bytes: usize) -> Option<u64> {
        (0..bytes).try_fold(0, |v, i| Some(v | u64::from(self.byte()?) << (8 * i)))
    }

    /// Reads an LEB128 number. Returns its value without sign extension, its number of bits, and its last
    /// byte.
    fn leb(&mut self) -> Option<(u64, u32, u8)> {
        let (mut v, mut bits) = (0, 0u32);
        loop {
            let b = self.byte()?;
            v |= u64::from(b & 0x7f).checked_shl(bits).unwrap_or(0);
            bits = bits.saturating_add(7);
            if b & 0x80 == 0 {
                return Some((v, bits, b));
            }
        }
    }

    fn sleb(&mut self) -> Option<u64> {
        let (v, bits, last) = self.leb()?;
        let negative = last & 0x40 != 0 && bits < 64;
        Some(if negative { v | u64::MAX << bits } else { v })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_real_tables() {
        let stack: Vec<u8> = [0x1111u64, 0x2222, 0x3333].iter().flat_map(|w| w.to_le_bytes()).collect();
        let memory = (Avma(0x8000), &stack[..]);
        let regs = |r: u16| match r {
            6 => Some(0x8010),
            7 => Some(0x8000),
            16 => Some(0x40_100b),
            _ => None,
        };
        let run = |ops: &[u8]| evaluate(ops, None, &regs, &memory);
        // A realigned stack: *(rbp - 8).
        assert_eq!(run(&[0x76, 0x78, 0x06]), Some(0x2222));
        // A stub of the procedure linkage table: rsp + 8 + ((rip & 15) >= 11) * 8.
        assert_eq!(run(&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]), Some(0x8010));
        assert_eq!(run(&[0x09, 0xff]), Some(u64::MAX));
        assert_eq!(run(&[0x35, 0x1f]), Some(0u64.wrapping_sub(5)));
        assert_eq!(run(&[0x35, 0x20]), Some(!5));
        assert_eq!(run(&[0x11, 0x80, 0x7f]), Some(0u64.wrapping_sub(128)));
        assert_eq!(run(&[0x73, 0]), None, "an unknown register");
        assert_eq!(run(&[0xe0]), None, "an unknown operation");
        assert_eq!(run(&[]), None);
        assert_eq!(evaluate(&[0x23, 8], Some(0x10), &regs, &memory), Some(0x18));
    }
}
