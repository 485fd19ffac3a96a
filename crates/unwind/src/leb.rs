//! Writes LEB128 numbers.

/// Appends `value` in the shortest unsigned form.
pub(crate) fn put_uleb(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = (value & 0x7f).to_le_bytes()[0];
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Appends `value` in the shortest signed form.
pub(crate) fn put_sleb(out: &mut Vec<u8>, mut value: i64) {
    loop {
        let low = (value & 0x7f).to_le_bytes()[0];
        value >>= 7;
        let sign = low & 0x40 != 0;
        if (value == 0 && !sign) || (value == -1 && sign) {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}
