//! Finds functions that read their own return address.
//!
//! Called by a clone, such a function would see an address in the clone, which is in no module and within no
//! module's bounds. At each instruction, the unwind rules locate the return address on the stack. A function
//! reads it if one of its instructions names that place, other than by `call` and `ret` (compilers implement
//! `__builtin_return_address(0)` so). A function that jumps to such a function counts as well.
//!
//! LIMIT: the analysis of a caller does not see callees through pointers. Return addresses of outer frames
//! are reached through frame pointers or by unwinding, which no rule distinguishes from other loads.

use addr::{Avma, AvmaRange};
use iced_x86::{Decoder, DecoderOptions, Instruction, MemorySize, Mnemonic, OpKind, Register};
use unwind::{CfaRule, Reg, Row};

/// The return address lies below the frame address. Bytes.
const BELOW: i64 = 8;

/// A function's use of its return address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// True if one of its instructions names the return address.
    pub(crate) looks: bool,
    /// The destinations of direct branches that leave the function.
    pub(crate) leaves_to: Vec<Avma>,
}

/// Searches the fragments of a function; `rows` are its unwind rules, ascending.
pub(crate) fn look(parts: &[(AvmaRange, Vec<u8>)], rows: &[Row]) -> Look {
    let mut found = Look::default();
    for (range, bytes) in parts {
        for i in &mut Decoder::with_ip(64, bytes, range.start.0, DecoderOptions::NONE) {
            let at = Avma(i.ip());
            let after = rows.partition_point(|r| r.range.start <= at);
            let row = after.checked_sub(1).and_then(|n| rows.get(n)).filter(|r| r.range.contains(at));
            found.looks |= row.is_some_and(|row| names_return_address(&i, row));
            let branch = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64 && !i.is_call_near();
            let to = Avma(i.near_branch_target());
            if branch && !parts.iter().any(|(part, _)| part.contains(to)) {
                found.leaves_to.push(to);
            }
        }
    }
    found
}

fn names_return_address(i: &Instruction, row: &Row) -> bool {
    let CfaRule::RegOffset(register, offset) = row.cfa else { return false };
    let base = match register {
        Reg::RSP => Register::RSP,
        Reg::RBP => Register::RBP,
        _ => return false,
    };
    let memory = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    let plain = i.memory_base() == base && i.memory_index() == Register::None;
    // A `nop` has a memory operand but reads no memory.
    let used = i.memory_size() != MemorySize::Unknown || i.mnemonic() == Mnemonic::Lea;
    let is_nop = i.mnemonic() == Mnemonic::Nop;
    let names = memory && plain && used && i.memory_displacement64().cast_signed() == offset - BELOW;
    names && !is_nop && !is_fence(i)
}

/// Returns whether an instruction is a memory fence: a locked `add` or `or` of zero, often on the top of the
/// stack. Compilers and PostgreSQL's `pg_memory_barrier` use it instead of `mfence`.
fn is_fence(i: &Instruction) -> bool {
    // Only then is the second operand a register or an immediate.
    i.has_lock_prefix()
        && matches!(i.mnemonic(), Mnemonic::Add | Mnemonic::Or)
        && i.op1_kind() != OpKind::Register
        && i.immediate(1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(from: u64, to: u64, register: Reg, offset: i64) -> Row {
        Row {
            range: AvmaRange::new(Avma(from), Avma(to)),
            cfa: CfaRule::RegOffset(register, offset),
            regs: Vec::new(),
            args_size: 0,
        }
    }

    fn of(bytes: &[u8], rows: &[Row]) -> Look {
        look(&[(AvmaRange::with_len(Avma(0x1000), bytes.len() as u64), bytes.to_vec())], rows)
    }

    #[test]
    fn the_unwind_rules_locate_the_return_address() {
        // sub rsp,8; mov rax,[rsp+8]; add rsp,8; ret
        let code = [0x48, 0x83, 0xec, 8, 0x48, 0x8b, 0x44, 0x24, 8, 0x48, 0x83, 0xc4, 8, 0xc3];
        let rows = [
            row(0x1000, 0x1004, Reg::RSP, 8),
            row(0x1004, 0x100d, Reg::RSP, 16),
            row(0x100d, 0x100e, Reg::RSP, 8),
        ];
        assert!(of(&code, &rows).looks);
        // The word above is an argument, the word below a local.
        for other in [16, 0] {
            let mut code = code;
            code[8] = other;
            assert!(!of(&code, &rows).looks, "{other}");
        }
        // mov rax,[rbp+8] with the frame pointer; mov rax,[rsp+8] there reads some other word.
        let framed = [row(0x1000, 0x1010, Reg::RBP, 16)];
        assert!(of(&[0x48, 0x8b, 0x45, 8, 0xc3], &framed).looks);
        assert!(!of(&[0x48, 0x8b, 0x44, 0x24, 8, 0xc3], &framed).looks);
        // nop dword [rsp]; ret at the entry.
        let entry = [row(0x1000, 0x1006, Reg::RSP, 8)];
        assert!(!of(&[0x0f, 0x1f, 0x04, 0x24, 0xc3], &entry).looks);
        // lock add dword [rsp],0 and [rsp],1; add dword [rsp],0 without lock.
        assert!(!of(&[0xf0, 0x83, 0x04, 0x24, 0, 0xc3], &entry).looks);
        assert!(of(&[0xf0, 0x83, 0x04, 0x24, 1, 0xc3], &entry).looks);
        assert!(of(&[0x83, 0x04, 0x24, 0, 0xc3], &entry).looks);
    }

    #[test]
    fn branches_out_of_the_function_are_found() {
        // jne .+0x10; jmp .+0x100; jmp .-5
        let code = [0x75, 0x0e, 0xe9, 0xf9, 0, 0, 0, 0xeb, 0xf9];
        let found = of(&code, &[row(0x1000, 0x1009, Reg::RSP, 8)]);
        assert_eq!(found, Look { looks: false, leaves_to: vec![Avma(0x1010), Avma(0x1100)] });
    }
}
