//! The shape of a function: its instructions without the addresses in them. The same source compiled into
//! another build of a program keeps its shape, while all distances to other code and data change.

use super::hash::Fnv;
use iced_x86::{Decoder, DecoderOptions};

/// Returns a hash of a function's main fragment that leaves out what a linker fills in: displacements from the
/// program counter, and the destinations of branches out of the fragment. The code is decoded from its first
/// byte on; where that fails, bytes count as they are. The value is kept in files, so it must never change.
///
/// Functions of one shape have the same instructions at the same offsets, and the same branches inside. They
/// may call other functions and use other data.
#[must_use]
pub fn shape(code: &[u8]) -> u64 {
    let mut sum = Fnv::new();
    let size = code.len() as u64;
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    while decoder.can_decode() {
        let at = decoder.position();
        let inst = decoder.decode();
        let mut bytes = [0; 15];
        let Some(own) = code.get(at..decoder.position()).filter(|b| b.len() <= bytes.len()) else { break };
        bytes[..own.len()].copy_from_slice(own);
        let offsets = decoder.get_constant_offsets(&inst);
        let mut leave_out = |from: usize, len: usize| {
            if let Some(field) = bytes.get_mut(from..from + len) {
                field.fill(0);
            }
        };
        if inst.is_ip_rel_memory_operand() {
            leave_out(offsets.displacement_offset(), offsets.displacement_size());
        }
        if inst.near_branch_target() >= size {
            leave_out(offsets.immediate_offset(), offsets.immediate_size());
        }
        sum.add(&bytes[..own.len()]);
    }
    sum.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cmp dword [rip+slot], imm8; jne +7; call callee; jmp back; jmp out` and a `nop`.
    fn code(slot: i32, callee: i32, value: u8, out: i32) -> Vec<u8> {
        let mut code = vec![0x83, 0x3d];
        code.extend(slot.to_le_bytes());
        code.extend([value, 0x75, 0x07, 0xe8]);
        code.extend(callee.to_le_bytes());
        code.extend([0xeb, 0xf0, 0xe9]);
        code.extend(out.to_le_bytes());
        code.push(0x90);
        code
    }

    #[test]
    fn addresses_outside_do_not_matter() {
        let shape_of = |slot, callee, out| shape(&code(slot, callee, 7, out));
        assert_eq!(shape_of(0x1000, 0x2000, 0x3000), shape_of(0x1040, -0x2000, -0x3000));
    }

    #[test]
    fn instructions_and_branches_inside_matter() {
        let one = code(0x1000, 0x2000, 7, 0x3000);
        let other_constant = code(0x1000, 0x2000, 8, 0x3000);
        let mut other_loop = one.clone();
        other_loop[15] = 0xf2;
        let mut longer = one.clone();
        longer.push(0x90);
        for changed in [other_constant, other_loop, longer] {
            assert_ne!(shape(&one), shape(&changed), "{changed:x?}");
        }
    }

    /// The value is in files: it may not change from one whet to the next.
    #[test]
    fn the_value_stays() {
        assert_eq!(shape(&code(0x1000, 0x2000, 7, 0x3000)), 0xe4a2_580b_c678_a8b4);
    }

    #[test]
    fn code_that_is_cut_off_has_another_shape() {
        let whole = code(0x1000, 0x2000, 7, 0x3000);
        let shapes: std::collections::BTreeSet<u64> = (0..whole.len()).map(|n| shape(&whole[..n])).collect();
        assert_eq!(shapes.len(), whole.len());
    }
}
