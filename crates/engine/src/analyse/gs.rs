//! Finds code that may change the GS base of its thread. Counters lie behind that base, so no such code may
//! run while functions are counted.
//!
//! The search finds `wrgsbase`, loads of the GS selector, and the constant of `ARCH_SET_GS` beside the number
//! of `arch_prctl`. It also finds modules that bind the C library's `arch_prctl`. The same holds for calls of
//! its `syscall` with the number of `arch_prctl` and a code that is not visible. LIMIT: a program that
//! computes both numbers, or receives them as data (an interpreter's call of `syscall`), is not recognised. A
//! changed base is then noticed when counting ends. Refusing every program that binds `syscall` would refuse
//! nearly all programs: libstdc++ and libcrypto bind it.

use addr::{Addr, Avma, AvmaRange};
use iced_x86::{Code, Decoder, DecoderOptions, Register};
use image::Module;
use memchr::memmem;

/// Why some code may change the GS base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GsUse {
    /// It writes the base (`wrgsbase`).
    Base,
    /// It loads the selector, which sets the base as well.
    Selector,
    /// It calls the kernel to set the base.
    Call,
}

impl GsUse {
    /// Returns what the code does, for people.
    pub(crate) fn what(self) -> &'static str {
        match self {
            GsUse::Base => "sets the GS base",
            GsUse::Selector => "loads the GS selector",
            GsUse::Call => "may have the kernel set the GS base",
        }
    }
}

/// How far before a place decoding starts if no instruction start is known: decoding falls into step within
/// this distance.
pub(crate) const RUN_UP: u64 = 256;
/// How far apart the numbers of a call may be. Bytes.
const BESIDE: usize = 128;
const SYS_ARCH_PRCTL: [u8; 4] = 158u32.to_le_bytes();
const ARCH_SET_GS: [u8; 4] = 0x1001u32.to_le_bytes();

/// Returns what code at `at` may do to the GS base. `begins` returns an address at or before the given
/// address at which an instruction begins; `None` if there is no code.
pub(crate) fn in_code(at: Avma, bytes: &[u8], begins: &dyn Fn(Avma) -> Option<Avma>) -> Option<GsUse> {
    if memmem::find_iter(bytes, &[0x0f, 0xae]).any(|i| is_wrgsbase(bytes, i)) {
        return Some(GsUse::Base);
    }
    let calls = |i: usize| {
        let from = i.saturating_sub(BESIDE);
        let beside = bytes.get(from..bytes.len().min(i + BESIDE)).unwrap_or_default();
        is_immediate(bytes, i)
            && memmem::find_iter(beside, &SYS_ARCH_PRCTL).any(|n| is_immediate(bytes, from + n))
    };
    if memmem::find_iter(bytes, &ARCH_SET_GS).any(calls) {
        return Some(GsUse::Call);
    }
    let selector = |i: usize| {
        let place = at.add(i as u64);
        loads_gs(bytes, i) && begins(place).is_some_and(|from| is_reached(at, bytes, from, place))
    };
    let moves =
        memchr::memchr_iter(0x8e, bytes).filter(|&i| bytes.get(i + 1).is_some_and(|m| m >> 3 & 7 == 5));
    let pops = memmem::find_iter(bytes, &[0x0f, 0xa9]);
    let mut loads = moves.chain(pops).chain(memmem::find_iter(bytes, &[0x0f, 0xb5]));
    loads.any(selector).then_some(GsUse::Selector)
}

/// Returns whether 32 bits can be the immediate of a `mov` (`b8`+r, `c7 /0`) or a `push` (`68`), and not a
/// displacement.
fn is_immediate(bytes: &[u8], i: usize) -> bool {
    let before = |n: usize| i.checked_sub(n).and_then(|i| bytes.get(i)).copied();
    // A ModRM byte, a SIB byte and a displacement can stand between `c7` and the immediate.
    let stores = |n: usize| before(n) == Some(0xc7) && before(n - 1).is_some_and(|modrm| modrm & 0x38 == 0);
    matches!(before(1), Some(0x68 | 0xb8..=0xbf)) || (2..=7).any(stores)
}

/// Returns whether `0f ae` at `i` belongs to a `wrgsbase` of 32 or 64 bits (Intel SDM volume 2).
fn is_wrgsbase(bytes: &[u8], i: usize) -> bool {
    let to_base = bytes.get(i + 2).is_some_and(|to| to & 0xf8 == 0xd8);
    let before = |n: usize| i.checked_sub(n).and_then(|i| bytes.get(i)).copied();
    let rex = before(1).is_some_and(|b| b & 0xf0 == 0x40);
    to_base && (before(1) == Some(0xf3) || rex && before(2) == Some(0xf3))
}

/// Returns whether the instruction at `i` loads the selector.
fn loads_gs(bytes: &[u8], i: usize) -> bool {
    let mut decoder = Decoder::new(64, bytes.get(i..).unwrap_or_default(), DecoderOptions::NONE);
    let got = decoder.decode();
    match got.code() {
        Code::Mov_Sreg_rm16 | Code::Mov_Sreg_r32m16 | Code::Mov_Sreg_r64m16 => {
            got.op0_register() == Register::GS
        }
        Code::Popw_GS | Code::Popd_GS | Code::Popq_GS => true,
        Code::Lgs_r16_m1616 | Code::Lgs_r32_m1632 | Code::Lgs_r64_m1664 => true,
        _ => false,
    }
}

/// Decodes from `from` on. Returns whether an instruction has its opcode at `place`, possibly behind
/// prefixes.
fn is_reached(at: Avma, bytes: &[u8], from: Avma, place: Avma) -> bool {
    let from = from.max(at);
    let Some(code) = from.since(at).and_then(|o| bytes.get(usize::try_from(o).ok()?..)) else { return false };
    let mut decoder = Decoder::with_ip(64, code, from.0, DecoderOptions::NONE);
    while decoder.can_decode() && decoder.ip() <= place.0 {
        let begun = decoder.position();
        let got = decoder.decode();
        if place.0 < got.next_ip() && place.0 >= got.ip() {
            let prefixes = usize::try_from(place.0 - got.ip()).unwrap_or(usize::MAX);
            let is_prefix =
                |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf2 | 0xf3);
            return !got.is_invalid()
                && code.get(begun..begun + prefixes).is_some_and(|b| b.iter().all(is_prefix));
        }
    }
    false
}

/// `mov $158, %edi`: the number of `arch_prctl` as the first argument of `syscall`.
const NUMBER: [u8; 5] = [0xbf, 158, 0, 0, 0];
/// Codes of `arch_prctl` that do not change the GS base (`ARCH_SET_FS`, `ARCH_GET_FS`, `ARCH_GET_GS`), as
/// second arguments.
const OTHER_CODES: [[u8; 5]; 3] = [[0xbe, 2, 0x10, 0, 0], [0xbe, 3, 0x10, 0, 0], [0xbe, 4, 0x10, 0, 0]];
/// The largest distance between the first argument and a call. Bytes.
const TO_CALL: usize = 48;

/// Returns whether code at `at` calls `syscall` with the number of `arch_prctl`, unless a harmless code is
/// visible. `is_syscall` returns whether the operand of a direct call, or of a call through a slot (`true`),
/// leads to `syscall`.
fn calls_by_number(at: Avma, bytes: &[u8], is_syscall: &dyn Fn(Avma, bool) -> bool) -> bool {
    memmem::find_iter(bytes, &NUMBER).any(|i| {
        let from = i.saturating_sub(TO_CALL);
        let until = bytes.len().min(i + TO_CALL);
        let call = (i + NUMBER.len()..until).find(|&c| {
            let (through_slot, field) = match bytes.get(c..c + 2) {
                Some([0xe8, _]) => (false, c + 1),
                Some([0xff, 0x15]) => (true, c + 2),
                _ => return false,
            };
            let distance = bytes.get(field..field + 4).and_then(<[u8]>::first_chunk);
            distance.is_some_and(|d| {
                let end = at.add((field + 4) as u64);
                is_syscall(end.offset(i64::from(i32::from_le_bytes(*d))), through_slot)
            })
        });
        let is_other = |before: &[u8]| OTHER_CODES.iter().any(|code| memmem::find(before, code).is_some());
        call.is_some_and(|c| !bytes.get(from..c).is_some_and(is_other))
    })
}

/// Returns what a module may do to the GS base, by its code `text` or by the symbols it binds.
pub(crate) fn in_module(module: &Module, text: &[(AvmaRange, Vec<u8>)]) -> Option<GsUse> {
    let fdes = module.frames.fdes();
    let mut ranges: Vec<AvmaRange> = fdes.iter().map(|f| f.range).collect();
    ranges.sort_unstable_by_key(|r| r.start);
    // In code without frames, only short gaps between functions are code; longer gaps are data.
    let begins = |place: Avma| {
        let after = ranges.partition_point(|r| r.start <= place);
        let before = after.checked_sub(1).and_then(|i| ranges.get(i));
        match before {
            Some(r) if r.contains(place) => Some(r.start),
            Some(r) if place.distance(r.end).unsigned_abs() <= RUN_UP => Some(r.end),
            None if ranges.is_empty() => Some(place.sub(RUN_UP.min(place.0))),
            _ => None,
        }
    };
    let by_code = || text.iter().find_map(|(range, bytes)| in_code(range.start, bytes, &begins));
    let is_libc = module.symbols.exported("arch_prctl").is_some();
    let binds = || {
        let mut names = module.relocations.iter().filter_map(|r| module.symbol_of(r));
        !is_libc && names.any(|name| name == "arch_prctl")
    };
    let is_syscall = |at: Avma, through_slot: bool| match through_slot {
        true => module.relocation_at(at).and_then(|r| module.symbol_of(r)) == Some("syscall"),
        false => {
            let stub = module.stub_at(at).is_some_and(|stub| stub.name.as_deref() == Some("syscall"));
            stub || module.symbols.named("syscall").any(|s| s.at == at)
        }
    };
    let by_number = || text.iter().any(|(range, bytes)| calls_by_number(range.start, bytes, &is_syscall));
    by_code().or_else(|| (binds() || by_number()).then_some(GsUse::Call))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Avma = Avma(0x1000);

    fn found(bytes: &[u8]) -> Option<GsUse> {
        in_code(AT, bytes, &|_| Some(AT))
    }

    #[test]
    fn all_forms_of_wrgsbase() {
        for code in [
            &[0x90, 0xf3, 0x48, 0x0f, 0xae, 0xda][..],
            &[0xf3, 0x49, 0x0f, 0xae, 0xdf],
            &[0xf3, 0x0f, 0xae, 0xdf],
            &[0xf3, 0x41, 0x0f, 0xae, 0xd8],
        ] {
            assert_eq!(found(code), Some(GsUse::Base), "{code:x?}");
            assert_eq!(found(&code[..code.len() - 1]), None);
        }
        assert_eq!(found(&[0x0f, 0xae, 0xda]), None, "clflush");
        assert_eq!(found(&[0xf3, 0x48, 0x0f, 0xae, 0xd2]), None, "wrfsbase");
    }

    #[test]
    fn selector_loads_are_found_at_instruction_starts_only() {
        for code in [
            &[0x90, 0x8e, 0xe8][..],
            &[0x8e, 0x2d, 0, 0, 0, 0],
            &[0x66, 0x8e, 0xef],
            &[0x0f, 0xa9],
            &[0x48, 0x0f, 0xb5, 0x07],
        ] {
            assert_eq!(found(code), Some(GsUse::Selector), "{code:x?}");
        }
        assert_eq!(found(&[0x8e, 0xe0]), None, "mov fs");
        assert_eq!(found(&[0xb8, 0x8e, 0xe8, 0, 0]), None, "in a constant");
        assert_eq!(in_code(AT, &[0x8e, 0xe8], &|_| None), None, "data");
    }

    #[test]
    fn syscall_by_number_with_an_invisible_code_is_found() {
        // mov code(%rip), %esi; mov $158, %edi; xor %eax, %eax; call
        let mut code = vec![0x8b, 0x35, 1, 2, 3, 4, 0xbf, 158, 0, 0, 0, 0x31, 0xc0, 0xe8, 0xee, 0x0f, 0, 0];
        let to = AT.add(18 + 0xfee);
        let calls = |code: &[u8], is: &dyn Fn(Avma, bool) -> bool| calls_by_number(AT, code, is);
        assert!(calls(&code, &|at, slot| at == to && !slot));
        assert!(!calls(&code, &|at, _| at != to), "another function");
        code.splice(..6, OTHER_CODES[2]);
        assert!(!calls(&code, &|_, _| true), "ARCH_GET_GS");
        let through = [0xbf, 158, 0, 0, 0, 0xff, 0x15, 8, 0, 0, 0];
        assert!(calls(&through, &|at, slot| at == AT.add(19) && slot));
    }

    #[test]
    fn the_numbers_of_the_call_are_found_as_immediates() {
        let call = [0xbe, 1, 0x10, 0, 0, 0xbf, 0x9e, 0, 0, 0, 0xe8, 1, 2, 3, 4];
        assert_eq!(found(&call), Some(GsUse::Call));
        assert_eq!(found(&call[..8]), None);
        // movl $0x1001, 8(%rsp); mov $158, %rax
        let stored = [0xc7, 0x44, 0x24, 8, 1, 0x10, 0, 0, 0x48, 0xc7, 0xc0, 0x9e, 0, 0, 0];
        assert_eq!(found(&stored), Some(GsUse::Call));
        // ja, je: the numbers as displacements, as in glibc 2.42's libm.
        let jumps = [0x0f, 0x87, 1, 0x10, 0, 0, 0x0f, 0x84, 0x9e, 0, 0, 0];
        assert_eq!(found(&jumps), None, "displacements");
    }
}
