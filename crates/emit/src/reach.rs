//! INVARIANT(reach): distances, computed exactly and checked to fit.

use addr::{Addr, Avma};

/// The 32-bit displacement to `dest` of an instruction that ends at `end`; `None` beyond ±2 GiB.
pub(crate) fn rel32(end: Avma, dest: Avma) -> Option<[u8; 4]> {
    i32::try_from(dest.distance(end)).ok().map(i32::to_le_bytes)
}

/// The 8-bit displacement to `dest` of an instruction that ends at `end`.
pub(crate) fn rel8(end: Avma, dest: Avma) -> Option<u8> {
    i8::try_from(dest.distance(end)).ok().map(i8::cast_unsigned)
}

/// An address as a displacement that the CPU extends by its sign.
pub(crate) fn absolute32(at: Avma) -> Option<[u8; 4]> {
    i32::try_from(at.0.cast_signed()).ok().map(i32::to_le_bytes)
}
