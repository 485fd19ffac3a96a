//! The stubs of the procedure linkage table: code that only jumps through a slot, found by its shape.
//!
//! Section names are not in memory, so all executable bytes are searched for stubs. A stub is `jmp
//! *slot(%rip)` in one of the linkers' forms, through a slot that the relocations name. It does not lie
//! inside an ordinary function: code built with `-fno-plt` has such jumps as tail calls. GNU ld writes one
//! frame table entry for each of its stub sections; lld and mold write none for them.

use crate::bytes::{array, i32_at};
use addr::{Addr, Avma, AvmaRange};
use rustc_hash::FxHashMap;

/// One stub.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PltStub {
    /// The addresses of its code.
    pub range: AvmaRange,
    /// The address of the slot through which it jumps.
    pub slot: Avma,
    /// The function's name; `None` for an ifunc of the module itself, which has only a resolver.
    pub name: Option<String>,
    /// Whether the stub does nothing but jump. Some linkers' stubs first put the slot's number into a
    /// register, for the resolver that is called while the slot is not bound.
    pub only_jumps: bool,
}

/// The slots, each with the number of its symbol; 0 means no symbol.
pub(crate) type Slots = FxHashMap<Avma, u32>;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Returns the stubs in the executable bytes from `at`, by rising address. `fde` returns the range of the
/// frame table entry that covers an address, and `name` the name of a symbol.
pub(crate) fn stubs(
    bytes: &[u8],
    at: Avma,
    slots: &Slots,
    mut name: impl FnMut(u32) -> Option<String>,
    fde: impl Fn(Avma) -> Option<AvmaRange>,
) -> Vec<PltStub> {
    let mut out = Vec::new();
    let mut i = 0;
    while let Some(jump) = bytes.get(i..).and_then(|b| b.windows(2).position(|w| w == [0xff, 0x25])) {
        let jump = i + jump;
        i = jump + 2;
        let Some((slot, symbol)) = target(bytes, at, jump).and_then(|s| slots.get_key_value(&s)) else {
            continue;
        };
        let Some((from, to)) = shape(bytes, at, jump) else { continue };
        let (Ok(start), Ok(end)) = (u64::try_from(from), u64::try_from(to)) else { continue };
        let range = AvmaRange::new(at.add(start), at.add(end));
        if fde(range.start).is_none_or(|f| is_stub_section(bytes, at, f)) {
            let before = bytes.get(from..jump).unwrap_or_default();
            let only_jumps = before.strip_prefix(&ENDBR64).unwrap_or(before).iter().all(|b| *b == 0xf2);
            out.push(PltStub { range, slot: *slot, name: name(*symbol), only_jumps });
        }
    }
    out
}

/// Returns the address from which the `ff 25` at index `jump` reads its destination.
fn target(bytes: &[u8], at: Avma, jump: usize) -> Option<Avma> {
    let next = u64::try_from(jump.checked_add(6)?).ok()?;
    Some(at.add(next).offset(i64::from(i32_at(bytes, jump + 2)?)))
}

/// Returns the range of indices of the stub whose jump is at index `jump`; `None` if the bytes around it have
/// no known form.
fn shape(bytes: &[u8], at: Avma, jump: usize) -> Option<(usize, usize)> {
    let before = |n: usize, want: &[u8]| {
        jump.checked_sub(n).is_some_and(|i| bytes.get(i..i + want.len()) == Some(want))
    };
    let aligned = |i: usize, to: u64| u64::try_from(i).is_ok_and(|i| at.add(i).0.is_multiple_of(to));
    let tail = bytes.get(jump + 6..)?;
    // `bnd` before the jump, and `endbr64` before `bnd`: .plt.sec, and .plt.got of programs marked for IBT.
    let bnd = usize::from(before(1, &[0xf2]));
    let from = if before(bnd + 4, &ENDBR64) {
        jump - bnd - 4
    } else if before(10, &ENDBR64) && before(6, &[0x41, 0xbb]) {
        // mold: endbr64; mov $index, %r11d.
        jump - 10
    } else {
        jump - bnd
    };
    let used = jump + 6 - from;
    // The form of .plt.got has 8 bytes.
    if used <= 8 && aligned(from, 8) {
        let pad = tail.get(..8 - used)?;
        let nops = [&b"\x66\x90"[..], b"\x90", b"\x90\x90", b"\xcc\xcc"];
        if pad.is_empty() || nops.contains(&pad) {
            return Some((from, from + 8));
        }
    }
    // The other forms have 16 bytes.
    if !aligned(from, 16) || used > 16 {
        return None;
    }
    let pad = tail.get(..16 - used)?;
    let lazy = pad.len() == 10 && pad.starts_with(&[0x68]) && pad.get(5) == Some(&0xe9);
    let nop = matches!(pad, [] | [0x0f, 0x1f, 0x44, 0, 0] | [0x66, 0x0f, 0x1f, 0x44, 0, 0] | [0x66, 0x90]);
    let fill = !pad.is_empty() && (pad.iter().all(|b| *b == 0xcc) || pad.iter().all(|b| *b == 0x90));
    (lazy || nop || fill).then_some((from, from + 16))
}

/// Returns whether the code of a frame table entry is a section of stubs and not a function. Such a section
/// begins with a whole stub, or with the lazy binding stub (`push link_map(%rip); jmp *resolver(%rip)`).
fn is_stub_section(bytes: &[u8], at: Avma, fde: AvmaRange) -> bool {
    let from = fde.start.since(at).and_then(|o| usize::try_from(o).ok());
    let Some(code) = from.and_then(|f| bytes.get(f..)) else { return false };
    if !fde.len().is_multiple_of(8) {
        return false;
    }
    if array(code, 0) == Some([0xff, 0x35]) {
        return true;
    }
    let jump = code.get(..24).unwrap_or(code).windows(2).position(|w| w == [0xff, 0x25]);
    let first = jump.and_then(|j| shape(code, fde.start, j));
    first.is_some_and(|(from, to)| from == 0 && u64::try_from(to).is_ok_and(|t| t <= fde.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Avma = Avma(0x1000);
    const SLOT: Avma = Avma(0x4018);

    fn slots() -> Slots {
        [(SLOT, 7)].into_iter().collect()
    }

    /// Writes `jmp *SLOT(%rip)` at index `at`.
    fn jmp(code: &mut [u8], at: usize) {
        code[at..at + 2].copy_from_slice(&[0xff, 0x25]);
        let d = i32::try_from(SLOT.distance(AT.add(at as u64 + 6))).unwrap();
        code[at + 2..at + 6].copy_from_slice(&d.to_le_bytes());
    }

    fn found(code: &[u8], fde: Option<AvmaRange>) -> Vec<(u64, u64)> {
        let s = stubs(code, AT, &slots(), |n| Some(n.to_string()), |_| fde);
        s.iter().map(|s| (s.range.start.0 - AT.0, s.range.end.0 - AT.0)).collect()
    }

    #[test]
    fn all_forms() {
        // .plt of GNU ld and lld.
        let mut code = vec![0u8; 64];
        jmp(&mut code, 16);
        code[22] = 0x68;
        code[27] = 0xe9;
        assert_eq!(found(&code, None), [(16, 32)]);
        // Not aligned.
        let mut off = vec![0u8; 64];
        off[1..].copy_from_slice(&code[..63]);
        assert_eq!(found(&off, None), []);
        // .plt.got.
        let mut code = vec![0u8; 64];
        jmp(&mut code, 8);
        code[14..16].copy_from_slice(&[0x66, 0x90]);
        assert_eq!(found(&code, None), [(8, 16)]);
        // .plt.sec with and without bnd.
        for (bnd, pad) in [(1, &[0x0f, 0x1f, 0x44, 0, 0][..]), (0, &[0x66, 0x0f, 0x1f, 0x44, 0, 0])] {
            let mut code = vec![0u8; 64];
            code[32..36].copy_from_slice(&ENDBR64);
            code[36] = 0xf2;
            jmp(&mut code, 36 + bnd);
            code[42 + bnd..48].copy_from_slice(pad);
            assert_eq!(found(&code, None), [(32, 48)]);
        }
        // mold.
        let mut code = vec![0u8; 64];
        code[16..20].copy_from_slice(&ENDBR64);
        code[20..22].copy_from_slice(&[0x41, 0xbb]);
        jmp(&mut code, 26);
        assert_eq!(found(&code, None), [(16, 32)]);
        // An address that is no slot.
        code[28] ^= 8;
        assert_eq!(found(&code, None), []);
    }

    #[test]
    fn a_tail_call_is_no_stub() {
        // `endbr64; jmp *puts@GOTPCREL(%rip)` and padding are a whole function.
        let mut code = vec![0u8; 32];
        code[..4].copy_from_slice(&ENDBR64);
        jmp(&mut code, 4);
        code[10..16].copy_from_slice(&[0x66, 0x0f, 0x1f, 0x44, 0, 0]);
        assert_eq!(found(&code, Some(AvmaRange::with_len(AT, 10))), []);
        assert_eq!(found(&code, Some(AvmaRange::with_len(AT, 16))), [(0, 16)]);
        // The jump is in the middle of a function.
        let mut code = vec![0x90u8; 64];
        jmp(&mut code, 32);
        assert_eq!(found(&code, Some(AvmaRange::with_len(AT, 64))), []);
    }
}
