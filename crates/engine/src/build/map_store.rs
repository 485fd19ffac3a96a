//! The address maps of a code cache as one block of bytes, kept in the target.
//!
//! A count, then for each clone the original's entry, the length of its map, and the map.
//! [`emit::AddressMap`] has its own versioned form. Little-endian.

use addr::Avma;
use emit::{AddressMap, CloneInfo};

/// Returns the stored form.
#[must_use]
pub fn write(clones: &[CloneInfo]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(u32::try_from(clones.len()).unwrap_or(u32::MAX).to_le_bytes());
    for clone in clones {
        let bytes = clone.map.to_bytes();
        out.extend(clone.original.0.to_le_bytes());
        out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(bytes);
    }
    out
}

/// Reads the stored form. Truncated data ends the list; a map of an unknown version is skipped.
#[must_use]
pub fn read(bytes: &[u8]) -> Vec<(Avma, AddressMap)> {
    let Some((count, mut rest)) = bytes.split_first_chunk::<4>() else { return Vec::new() };
    let mut out = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let Some((entry, after)) = rest.split_first_chunk::<8>() else { break };
        let Some((len, after)) = after.split_first_chunk::<4>() else { break };
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let Some((map, after)) = after.split_at_checked(len) else { break };
        out.extend(AddressMap::from_bytes(map).ok().map(|map| (Avma(u64::from_le_bytes(*entry)), map)));
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one-second form of the fuzz target: any bytes, no panic.
    #[test]
    fn any_bytes_are_read_or_end_the_list() {
        assert_eq!(read(&write(&[])).len(), 0);
        arbtest::arbtest(|u| {
            let junk: Vec<u8> = u.arbitrary()?;
            let _ = read(&junk);
            Ok(())
        })
        .budget_ms(1000);
    }
}
