//! Cloned jump tables and the instructions that read them.

use crate::reach::absolute32;
use addr::{Addr, Avma};
use code::{Inst, InstBytes, JumpTable, TableForm, TableLoad};
use iced_x86::{Decoder, DecoderOptions, Encoder, Instruction, Register};

/// A cloned table starts at a multiple of this. Bytes.
pub(crate) const ALIGN: usize = 8;
/// A displacement that no encoder shortens.
const PLACEHOLDER: u64 = 0x7fff_ffff;

/// Returns a table's reader with a 32-bit displacement, and the displacement's offset in its bytes. Returns
/// `None` if the instruction cannot have one, or would become a different instruction.
pub(crate) fn with_disp32(inst: &Inst) -> Option<(InstBytes, u8)> {
    let mut wanted = inst.decoded;
    let base_ok = wanted.memory_base() == Register::None || wanted.memory_base().is_gpr64();
    let index_ok = wanted.memory_index() == Register::None || wanted.memory_index().is_gpr64();
    if wanted.is_ip_rel_memory_operand() || !base_ok || !index_ok {
        return None;
    }
    wanted.set_memory_displ_size(8);
    wanted.set_memory_displacement64(PLACEHOLDER);
    let mut encoder = Encoder::new(64);
    encoder.encode(&wanted, inst.at.0).ok()?;
    let bytes = InstBytes::new(&encoder.take_buffer())?;
    let mut decoder = Decoder::with_ip(64, bytes.as_slice(), inst.at.0, DecoderOptions::NONE);
    let got = decoder.decode();
    let offsets = decoder.get_constant_offsets(&got);
    let whole = got.len() == bytes.as_slice().len() && offsets.displacement_size() == 4;
    let disp_at = u8::try_from(offsets.displacement_offset()).ok()?;
    (whole && same_but_displacement(&got, &inst.decoded)).then_some((bytes, disp_at))
}

/// Returns whether two instructions are equal, except for a memory operand's displacement and its encoding.
pub(crate) fn same_but_displacement(a: &Instruction, b: &Instruction) -> bool {
    let bare = |i: &Instruction| {
        let mut i = *i;
        i.set_memory_displ_size(8);
        i.set_memory_displacement64(0);
        i
    };
    bare(a) == bare(b)
}

/// Returns the displacement with which the reader reads the table at `at`; `None` out of reach.
pub(crate) fn displacement(load: &TableLoad, at: Avma) -> Option<[u8; 4]> {
    // INVARIANT(reach)
    match load.base_value {
        Some(base) => i32::try_from(at.distance(base)).ok().map(i32::to_le_bytes),
        None => absolute32(at),
    }
}

/// Returns the size of one entry. Bytes.
pub(crate) fn entry_len(form: TableForm) -> usize {
    match form {
        TableForm::Absolute8 => 8,
        TableForm::Relative4 { .. } => 4,
    }
}

/// Returns the size of a table's entries. Bytes.
pub(crate) fn entries_len(table: &JumpTable) -> usize {
    entry_len(table.form) * table.targets.len()
}

/// Returns the size of a table, rounded up to [`ALIGN`]. Bytes.
pub(crate) fn table_len(table: &JumpTable) -> usize {
    entries_len(table).next_multiple_of(ALIGN)
}

/// Appends the entry for `to`; `None` out of reach.
pub(crate) fn push_entry(out: &mut Vec<u8>, form: TableForm, to: Avma) -> Option<()> {
    match form {
        TableForm::Absolute8 => out.extend(to.0.to_le_bytes()),
        // INVARIANT(reach)
        TableForm::Relative4 { base } => out.extend(i32::try_from(to.distance(base)).ok()?.to_le_bytes()),
    }
    Some(())
}

/// Returns the destinations in a table's bytes.
pub(crate) fn destinations(bytes: &[u8], form: TableForm) -> impl Iterator<Item = Option<Avma>> {
    bytes.chunks(entry_len(form)).map(move |c| match form {
        TableForm::Absolute8 => Some(Avma(u64::from_le_bytes(c.try_into().ok()?))),
        TableForm::Relative4 { base } => Some(base.offset(i64::from(i32::from_le_bytes(c.try_into().ok()?)))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use code::InstId;

    fn inst(bytes: &[u8]) -> Inst {
        let decoded = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        Inst { at: Avma(0x1000), decoded, bytes: InstBytes::new(bytes).unwrap() }
    }

    #[test]
    fn readers_grow_to_disp32_and_stay_the_same() {
        let readers: [(&[u8], usize); 8] = [
            (&[0x48, 0x63, 0x04, 0x82], 8),             // movsxd rax, [rdx+rax*4]
            (&[0x49, 0x63, 0x44, 0x85, 0x00], 8),       // movsxd rax, [r13+rax*4+0]
            (&[0xff, 0x24, 0xc5, 0, 0x10, 0x40, 0], 7), // jmp [rax*8+0x401000]
            (&[0x3e, 0xff, 0x24, 0xc7], 8),             // notrack jmp [rdi+rax*8]
            (&[0x3e, 0x41, 0xff, 0x24, 0xc4], 9),       // notrack jmp [r12+rax*8]
            (&[0x8b, 0x44, 0x97, 0x10], 7),             // mov eax, [rdi+rdx*4+0x10]
            (&[0x48, 0x8b, 0x04, 0xc1], 8),             // mov rax, [rcx+rax*8]
            (&[0x48, 0x03, 0x0c, 0xc1], 8),             // add rcx, [rcx+rax*8]
        ];
        for (bytes, len) in readers {
            let i = inst(bytes);
            let (new, at) = with_disp32(&i).unwrap();
            assert_eq!(new.as_slice().len(), len, "{:x?}", new.as_slice());
            assert_eq!(new.as_slice()[usize::from(at)..][..4], 0x7fff_ffffu32.to_le_bytes());
            assert_eq!(new.as_slice()[0] == 0x3e, bytes[0] == 0x3e, "notrack stays");
        }
    }

    #[test]
    fn readers_that_do_not_take_a_64_bit_displacement() {
        assert!(with_disp32(&inst(&[0x48, 0x8b, 0x05, 0, 0, 0, 0])).is_none(), "rip-relative");
        assert!(with_disp32(&inst(&[0x67, 0x8b, 0x04, 0x82])).is_none(), "32-bit addressing");
    }

    #[test]
    fn displacements_reach_or_are_none() {
        let load = |base_value| TableLoad { inst: InstId(0), base_value, differs: (InstId(0), InstId(0)) };
        assert_eq!(displacement(&load(Some(Avma(0x1000))), Avma(0xff0)), Some((-16i32).to_le_bytes()));
        assert_eq!(displacement(&load(Some(Avma(0))), Avma(0x8000_0000)), None);
        assert_eq!(displacement(&load(None), Avma(0x7fff_fff8)), Some(0x7fff_fff8u32.to_le_bytes()));
        assert_eq!(displacement(&load(None), Avma(0x8000_0000)), None, "would be extended by its sign");
        assert!(push_entry(&mut Vec::new(), TableForm::Relative4 { base: Avma(0) }, Avma(1 << 31)).is_none());
    }
}
