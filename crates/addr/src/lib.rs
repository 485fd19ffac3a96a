//! Addresses: which address is this?
//!
//! An *SVMA* is an address as a module's file states it. An *AVMA* is the address in the process. The loader
//! adds the same bias to every SVMA of a module. No function of whet takes a bare `u64` for an address, so
//! the two kinds cannot be mixed up. All crates that use `image` work with AVMAs, because a process has one
//! address space. SVMAs appear only where a file or a stored profile is meant.
#![forbid(unsafe_code)]

mod memory;
mod range;

pub use memory::{ReadMemory, Unreadable};
pub use range::{AddrRange, AvmaRange, SvmaRange};

use std::fmt;

/// An address as stated in a module's file (SVMA), before the loader adds the bias. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Svma(pub u64);

/// An address in the process (AVMA). Bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Avma(pub u64);

/// The value that the loader adds to every stated address of one module (`AVMA = SVMA + bias`, modulo 2^64).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bias(pub u64);

impl Bias {
    /// Returns the process address of a stated address.
    #[must_use]
    pub fn avma(self, at: Svma) -> Avma {
        Avma(at.0.wrapping_add(self.0))
    }

    /// Returns the stated address of a process address.
    #[must_use]
    pub fn svma(self, at: Avma) -> Svma {
        Svma(at.0.wrapping_sub(self.0))
    }
}

/// Arithmetic that both kinds of address share. Addresses wrap modulo 2^64, as the CPU's do.
pub trait Addr: Copy + Ord + fmt::Debug {
    /// Returns the raw value.
    fn raw(self) -> u64;
    /// Returns the address with this raw value.
    fn from_raw(raw: u64) -> Self;
    /// Returns `self + bytes`, wrapping.
    #[must_use]
    fn add(self, bytes: u64) -> Self {
        Self::from_raw(self.raw().wrapping_add(bytes))
    }
    /// Returns `self - bytes`, wrapping.
    #[must_use]
    fn sub(self, bytes: u64) -> Self {
        Self::from_raw(self.raw().wrapping_sub(bytes))
    }
    /// Returns `self + delta`, wrapping. `delta` is in bytes.
    #[must_use]
    fn offset(self, delta: i64) -> Self {
        Self::from_raw(self.raw().wrapping_add_signed(delta))
    }
    /// Returns `self - other` in bytes, wrapping, as a signed distance.
    fn distance(self, other: Self) -> i64 {
        self.raw().wrapping_sub(other.raw()).cast_signed()
    }
    /// Returns `self - other` in bytes; `None` if `other` lies above `self`.
    fn since(self, other: Self) -> Option<u64> {
        self.raw().checked_sub(other.raw())
    }
    /// Returns the highest multiple of `to` that is not above `self`. `to` is a power of two, in bytes.
    #[must_use]
    fn align_down(self, to: u64) -> Self {
        debug_assert!(to.is_power_of_two());
        Self::from_raw(self.raw() & !(to - 1))
    }
}

impl Addr for Svma {
    fn raw(self) -> u64 {
        self.0
    }
    fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

impl Addr for Avma {
    fn raw(self) -> u64 {
        self.0
    }
    fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

macro_rules! show_hex {
    ($t:ident) => {
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}
show_hex!(Svma);
show_hex!(Avma);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_goes_both_ways_and_wraps() {
        let b = Bias(0x5555_0000_0000);
        assert_eq!(b.avma(Svma(0x1000)), Avma(0x5555_0000_1000));
        assert_eq!(b.svma(b.avma(Svma(7))), Svma(7));
        // A module linked high and loaded low has a "negative" bias.
        let down = Bias(0u64.wrapping_sub(0x1000));
        assert_eq!(down.avma(Svma(0x3000)), Avma(0x2000));
    }

    #[test]
    fn distances_are_signed() {
        assert_eq!(Avma(8).distance(Avma(16)), -8);
        assert_eq!(Avma(16).since(Avma(8)), Some(8));
        assert_eq!(Avma(8).since(Avma(16)), None);
        assert_eq!(Avma(0x2fff_ffff).align_down(0x20_0000), Avma(0x2fe0_0000));
    }
}
