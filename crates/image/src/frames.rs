//! Finding `.eh_frame` in memory: program header, `.eh_frame_hdr` (Linux Standard Base Core, "Exception Frames"), and the
//! section's end, which nothing states.

use crate::bytes::{array, i32_at, u32_at, u64_at};
use addr::{Addr, Avma, AvmaRange, ReadMemory};

const PE_OMIT: u8 = 0xff;
const PE_PCREL: u8 = 0x10;
const PE_DATAREL: u8 = 0x30;

/// What `.eh_frame_hdr` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hdr {
    /// Where `.eh_frame` starts.
    pub eh_frame: Avma,
    /// The highest address of an FDE in the search table, where there is a sound table.
    pub last_fde: Option<Avma>,
}

/// Reads `.eh_frame_hdr`. `None` where it is not version 1 or uses encodings that no linker writes.
pub(crate) fn hdr(mem: &dyn ReadMemory, at: AvmaRange) -> Option<Hdr> {
    let bytes = mem.bytes(at).ok()?;
    let [1, eh_frame_enc, count_enc, table_enc] = array(&bytes, 0)? else { return None };
    let (eh_frame, used) = pointer(&bytes, 4, eh_frame_enc, at.start)?;
    let mut out = Hdr { eh_frame, last_fde: None };
    if count_enc == PE_OMIT || table_enc == PE_OMIT {
        return Some(out);
    }
    // The only form in use: a 4-byte count and pairs of 4-byte distances from the header's start.
    if count_enc == 0x03 && table_enc == 0x3b {
        let rows = bytes.get(used.checked_add(4)?..)?;
        let n = usize::try_from(u32_at(&bytes, used)?).ok()?;
        if n.checked_mul(8).is_some_and(|len| len <= rows.len()) {
            let fdes = rows.chunks_exact(8).take(n).filter_map(|row| i32_at(row, 4));
            out.last_fde = fdes.max().map(|d| at.start.offset(i64::from(d)));
        }
    }
    Some(out)
}

/// An encoded pointer; gives also where it ends.
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

/// The length of the section that starts at `start` and of which `bytes` are all that can follow: up to and with the
/// zero terminator, or the last FDE of the search table (a linker may leave the terminator out), or the last record that
/// fits.
pub(crate) fn section_len(bytes: &[u8], start: Avma, last_fde: Option<Avma>) -> usize {
    let mut at = 0usize;
    loop {
        let record = u64::try_from(at).ok().map(|o| start.add(o));
        let Some(len) = u32_at(bytes, at) else { return at };
        if len == 0 {
            return at + 4;
        }
        let (head, len) = match len {
            0xffff_ffff => (12, u64_at(bytes, at + 4)),
            n => (4, Some(u64::from(n))),
        };
        let end = len
            .and_then(|n| usize::try_from(n).ok())
            .and_then(|n| at.checked_add(head)?.checked_add(n))
            .filter(|e| *e <= bytes.len());
        let Some(end) = end else { return at };
        at = end;
        if last_fde.is_some() && last_fde == record {
            // With the terminator, where it is there.
            return if u32_at(bytes, at) == Some(0) { at + 4 } else { at };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(len: usize) -> Vec<u8> {
        let mut r = u32::try_from(len).unwrap().to_le_bytes().to_vec();
        r.resize(4 + len, 0xaa);
        r
    }

    #[test]
    fn the_end_of_the_section() {
        let mut s = [record(12), record(20)].concat();
        let garbage = [record(8), vec![1, 2, 3]].concat();
        assert_eq!(section_len(&[s.clone(), garbage.clone()].concat(), Avma(0x100), Some(Avma(0x110))), 40);
        assert_eq!(section_len(&[s.clone(), garbage.clone()].concat(), Avma(0x100), None), 52);
        s.extend([0; 4]);
        for last in [None, Some(Avma(0x110))] {
            assert_eq!(section_len(&[s.clone(), garbage.clone()].concat(), Avma(0x100), last), 44);
        }
        let sticks_out = [record(12), vec![40, 0, 0, 0, 1, 2]].concat();
        assert_eq!(section_len(&sticks_out, Avma(0x100), None), 16);
        assert_eq!(section_len(&[0xff; 12], Avma(0), None), 0);
        assert_eq!(section_len(&[], Avma(0), None), 0);
    }

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
        assert_eq!(read(&b), Some(Hdr { eh_frame: Avma(0x2000), last_fde: Some(Avma(0x2030)) }));
        b[8] = 3;
        assert_eq!(read(&b).unwrap().last_fde, None);
        b[2] = PE_OMIT;
        assert_eq!(read(&b).unwrap().last_fde, None);
        b[0] = 2;
        assert_eq!(read(&b), None);
    }
}
