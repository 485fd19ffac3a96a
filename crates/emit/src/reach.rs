//! INVARIANT(reach): distances are computed exactly and checked to fit.

use addr::{Addr, Avma};

/// Returns the 32-bit displacement from an instruction that ends at `end` to `dest`; `None` beyond ±2 GiB.
pub(crate) fn rel32(end: Avma, dest: Avma) -> Option<[u8; 4]> {
    i32::try_from(dest.distance(end)).ok().map(i32::to_le_bytes)
}

/// Returns the 8-bit displacement from an instruction that ends at `end` to `dest`; `None` out of reach.
pub(crate) fn rel8(end: Avma, dest: Avma) -> Option<u8> {
    i8::try_from(dest.distance(end)).ok().map(i8::cast_unsigned)
}

/// Returns an address as a displacement that the CPU sign-extends; `None` if it does not fit.
pub(crate) fn absolute32(at: Avma) -> Option<[u8; 4]> {
    i32::try_from(at.0.cast_signed()).ok().map(i32::to_le_bytes)
}
