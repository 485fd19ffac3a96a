//! The place of `.eh_frame` in memory, from `.eh_frame_hdr` (Linux Standard Base Core, "Exception Frames").

use crate::bytes::{array, i32_at, u32_at, u64_at};
use addr::{Addr, Avma, AvmaRange, ReadMemory};

/// The most bytes of `.eh_frame_hdr` that are read. That of a program with two million functions is smaller.
pub(crate) const MOST_TABLE: u64 = 16 << 20;
const PE_OMIT: u8 = 0xff;
const PE_PCREL: u8 = 0x10;
const PE_DATAREL: u8 = 0x30;

/// The contents of `.eh_frame_hdr`.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Hdr {
    /// The start of `.eh_frame`.
    pub eh_frame: Avma,
    /// The addresses of the FDEs in the search table; `None` if there is no sound table.
    pub listed: Option<Vec<Avma>>,
}

/// Reads `.eh_frame_hdr`. Returns `None` if it is unreadable, is not version 1, or encodes the address of
/// `.eh_frame` in a form that no linker writes.
pub(crate) fn hdr(mem: &dyn ReadMemory, at: AvmaRange) -> Option<Hdr> {
    let bytes = mem.bytes(AvmaRange::with_len(at.start, at.len().min(MOST_TABLE))).ok()?;
    let [1, eh_frame_enc, count_enc, table_enc] = array(&bytes, 0)? else { return None };
    let (eh_frame, used) = pointer(&bytes, 4, eh_frame_enc, at.start)?;
    let mut out = Hdr { eh_frame, listed: None };
    if count_enc == PE_OMIT || table_enc == PE_OMIT {
        return Some(out);
    }
    // The only form in use: a 4-byte count, then pairs of 4-byte distances from the header's start.
    if count_enc == 0x03 && table_enc == 0x3b {
        let rows = bytes.get(used.checked_add(4)?..)?;
        let n = usize::try_from(u32_at(&bytes, used)?).ok()?;
        if n.checked_mul(8).is_some_and(|len| len <= rows.len()) {
            let fdes = rows.chunks_exact(8).take(n).filter_map(|row| i32_at(row, 4));
            out.listed = Some(fdes.map(|d| at.start.offset(i64::from(d))).collect());
        }
    }
    Some(out)
}

/// Decodes the pointer at index `at`. Returns its value and the index behind it.
fn pointer(b: &[u8], at: usize, enc: u8, base: Avma) -> Option<(Avma, usize)> {
    let (value, len) = match enc & 0x0f {
        0x00 | 0x04 | 0x0c => (u64_at(b, at)?.cast_signed(), 8),
        0x03 => (i64::from(u32_at(b, at)?), 4),
        0x0b => (i64::from(i32_at(b, at)?), 4),
        _ => return None,
    };
    let from = match enc & 0xf0 {
        0 => Avma(0),
        PE_PCREL => base.add(u64::try_from(at).ok()?),
        PE_DATAREL => base,
        _ => return None,
    };
    Some((from.offset(value), at + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_with_and_without_a_table() {
        let at = Avma(0x1000);
        let mut b = vec![1, 0x1b, 0x03, 0x3b];
        b.extend(0xffc_u32.to_le_bytes());
        b.extend(2u32.to_le_bytes());
        for (pc, fde) in [(-8i32, 0x1030i32), (0, 0x1010)] {
            b.extend(pc.to_le_bytes());
            b.extend(fde.to_le_bytes());
        }
        let read = |b: &[u8]| hdr(&(at, b), AvmaRange::with_len(at, b.len() as u64));
        let listed = Some(vec![Avma(0x2030), Avma(0x2010)]);
        assert_eq!(read(&b), Some(Hdr { eh_frame: Avma(0x2000), listed }));
        b[8] = 3;
        assert_eq!(read(&b).unwrap().listed, None);
        b[2] = PE_OMIT;
        assert_eq!(read(&b).unwrap().listed, None);
        b[0] = 2;
        assert_eq!(read(&b), None);
    }
}
