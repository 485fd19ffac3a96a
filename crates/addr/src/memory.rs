//! Reads of bytes by process address, from a live process, a file or a fixture.

use crate::{Addr, Avma, AvmaRange};

/// The error of a read: a part of the range is not mapped, or a fixture does not store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {len} bytes at {at}")]
pub struct Unreadable {
    /// The first address of the read.
    pub at: Avma,
    /// The number of bytes requested.
    pub len: u64,
}

/// Read access to a process's memory. A read returns all of its bytes or fails.
pub trait ReadMemory {
    /// Fills `buf` with the bytes from `at` on.
    ///
    /// # Errors
    /// Returns [`Unreadable`] if any byte of the range cannot be read.
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable>;

    /// Returns the bytes of a whole range.
    ///
    /// # Errors
    /// As [`ReadMemory::read`]. A range of over 1 GiB is an error too: no table of a sound module is that
    /// large.
    fn bytes(&self, range: AvmaRange) -> Result<Vec<u8>, Unreadable> {
        let err = Unreadable { at: range.start, len: range.len() };
        if range.len() > 1 << 30 {
            return Err(err);
        }
        let mut buf = vec![0; usize::try_from(range.len()).map_err(|_| err)?];
        self.read(range.start, &mut buf)?;
        Ok(buf)
    }

    /// Returns the little-endian 64-bit word at `at`.
    ///
    /// # Errors
    /// As [`ReadMemory::read`].
    fn u64(&self, at: Avma) -> Result<u64, Unreadable> {
        let mut b = [0; 8];
        self.read(at, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// Returns the little-endian 32-bit word at `at`.
    ///
    /// # Errors
    /// As [`ReadMemory::read`].
    fn u32(&self, at: Avma) -> Result<u32, Unreadable> {
        let mut b = [0; 4];
        self.read(at, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }
}

/// One contiguous run of bytes at an address: the simplest memory, for tests and for buffers already read.
impl ReadMemory for (Avma, &[u8]) {
    fn read(&self, at: Avma, buf: &mut [u8]) -> Result<(), Unreadable> {
        let err = Unreadable { at, len: buf.len() as u64 };
        let from = at.since(self.0).and_then(|o| usize::try_from(o).ok()).ok_or(err)?;
        let to = from.checked_add(buf.len()).ok_or(err)?;
        buf.copy_from_slice(self.1.get(from..to).ok_or(err)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_nothing() {
        let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8];
        let m = (Avma(0x100), &bytes[..]);
        assert_eq!(m.u32(Avma(0x104)).unwrap(), 0x0807_0605);
        assert!(m.u32(Avma(0x105)).is_err());
        assert!(m.u32(Avma(0xff)).is_err());
        assert!(m.bytes(AvmaRange::new(Avma(0), Avma(u64::MAX))).is_err());
    }
}
