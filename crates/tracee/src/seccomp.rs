//! Checks whether a thread's filters (`seccomp(2)`) allow a system call from an address outside the program's
//! own code.
//!
//! Filters are programs of the classic Berkeley Packet Filter over the number, the address and the arguments
//! of a call. They are read and executed here, so that nothing is guessed.

use crate::ptrace;
use crate::{Status, Tid};
use addr::Avma;

/// A limit above the number of filters of any thread.
const MOST: usize = 256;
/// `SECCOMP_RET_ACTION_FULL`, `SECCOMP_RET_ALLOW`, `SECCOMP_RET_LOG` (linux/seccomp.h).
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
/// `AUDIT_ARCH_X86_64`.
const ARCH: u32 = 0xc000_003e;

/// A system call as filters see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) nr: i64,
    /// The address behind the `syscall` instruction.
    pub(crate) ip: Avma,
    pub(crate) args: [u64; 6],
}

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    /// How many instructions to skip if a condition holds, and if not.
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// Returns whether a stopped thread may make a call; false if its filters cannot be read.
pub(crate) fn allows(tid: Tid, status: &Status, call: Call) -> bool {
    match status.seccomp {
        0 => true,
        2 => {
            for i in 0..MOST {
                match ptrace::seccomp_filter(tid, i) {
                    Ok(filter)
                        if run(&filter, call).is_some_and(|r| [ALLOW, LOG].contains(&(r & ACTION))) => {}
                    // Behind the last filter.
                    Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return i > 0,
                    _ => return false,
                }
            }
            false
        }
        // Mode 1 allows four calls, two of which occur here.
        _ => matches!(call.nr, libc::SYS_read | libc::SYS_write),
    }
}

/// Returns the result of a filter; `None` for a program that the kernel would have rejected.
fn run(filter: &[Insn], call: Call) -> Option<u32> {
    let data = data(call);
    let load = |at: u32| {
        let at = usize::try_from(at).ok()?;
        Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    loop {
        let Insn { code, jt, jf, k } = *filter.get(at)?;
        at += 1;
        let cell = usize::try_from(k).ok()?;
        let operand = if code & 0x08 == 0 { k } else { x };
        match code {
            // BPF_LD: W ABS, IMM, MEM, LEN
            0x20 => a = load(k)?,
            0x00 => a = k,
            0x60 => a = *memory.get(cell)?,
            0x80 => a = u32::try_from(data.len()).ok()?,
            // BPF_LDX
            0x01 => x = k,
            0x61 => x = *memory.get(cell)?,
            0x81 => x = u32::try_from(data.len()).ok()?,
            // BPF_ST, BPF_STX
            0x02 => *memory.get_mut(cell)? = a,
            0x03 => *memory.get_mut(cell)? = x,
            // BPF_ALU, by K and X
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            // BPF_JMP: JA, JEQ, JGT, JGE, JSET
            0x05 => at = at.checked_add(cell)?,
            0x15 | 0x1d => at += usize::from(if a == operand { jt } else { jf }),
            0x25 | 0x2d => at += usize::from(if a > operand { jt } else { jf }),
            0x35 | 0x3d => at += usize::from(if a >= operand { jt } else { jf }),
            0x45 | 0x4d => at += usize::from(if a & operand != 0 { jt } else { jf }),
            // BPF_RET: K, A
            0x06 => return Some(k),
            0x16 => return Some(a),
            // BPF_MISC: TAX, TXA
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

/// Returns the `struct seccomp_data` of a call.
fn data(call: Call) -> [u8; 64] {
    let nr = u32::try_from(call.nr).unwrap_or(u32::MAX);
    let mut data = [0; 64];
    data[..4].copy_from_slice(&nr.to_le_bytes());
    data[4..8].copy_from_slice(&ARCH.to_le_bytes());
    data[8..16].copy_from_slice(&call.ip.0.to_le_bytes());
    for (to, arg) in data[16..].as_chunks_mut::<8>().0.iter_mut().zip(call.args) {
        *to = arg.to_le_bytes();
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = 0x8000_0000;

    fn insn(code: u16, k: u32, jt: u8, jf: u8) -> Insn {
        Insn { code, jt, jf, k }
    }

    fn call(nr: i64, ip: u64) -> Call {
        Call { nr, ip: Avma(ip), args: [1 << 32 | 7, 0, 0, 0, 0, 9] }
    }

    #[test]
    fn filters_see_the_address() {
        // Allows calls from one mapping only.
        let by_address =
            [insn(0x20, 12, 0, 0), insn(0x15, 0x7f00, 0, 1), insn(0x06, ALLOW, 0, 0), insn(0x06, KILL, 0, 0)];
        assert_eq!(run(&by_address, call(1, 0x7f00_0000_1234)), Some(ALLOW));
        assert_eq!(run(&by_address, call(1, 0x5500_0000_1234)), Some(KILL));
    }

    #[test]
    fn filters_see_number_and_arguments() {
        let filter = [
            insn(0x20, 4, 0, 0),
            insn(0x15, ARCH, 1, 0),
            insn(0x06, KILL, 0, 0),
            insn(0x20, 16, 0, 0),
            insn(0x02, 3, 0, 0),
            insn(0x20, 56, 0, 0),
            insn(0x61, 3, 0, 0),
            insn(0x0c, 0, 0, 0),
            insn(0x54, 0xf0, 0, 0),
            insn(0x35, 0x10, 0, 1),
            insn(0x16, 0, 0, 0),
            insn(0x06, 5, 0, 0),
        ];
        // 7 + 9, without its low bits.
        assert_eq!(run(&filter, call(1, 0)), Some(0x10));
    }

    #[test]
    fn invalid_filters_give_no_result() {
        for filter in [
            &[][..],
            &[insn(0x05, u32::MAX, 0, 0)],
            &[insn(0x20, 61, 0, 0), insn(0x06, ALLOW, 0, 0)],
            &[insn(0x34, 0, 0, 0), insn(0x06, ALLOW, 0, 0)],
            &[insn(0x02, 16, 0, 0), insn(0x06, ALLOW, 0, 0)],
            &[insn(0xff, 0, 0, 0), insn(0x06, ALLOW, 0, 0)],
        ] {
            assert_eq!(run(filter, call(1, 0)), None, "{filter:?}");
        }
    }

    #[test]
    fn strict_mode_allows_write_but_not_sendto() {
        let strict = Status { seccomp: 1, ..Status::default() };
        assert!(allows(Tid(1), &strict, call(libc::SYS_write, 0)));
        assert!(!allows(Tid(1), &strict, call(libc::SYS_sendto, 0)));
        assert!(allows(Tid(1), &Status::default(), call(libc::SYS_sendto, 0)));
        // Not traced by this thread: its filters cannot be read.
        assert!(!allows(Tid(1), &Status { seccomp: 2, ..Status::default() }, call(libc::SYS_write, 0)));
    }
}
