//! Reasons why a table could not be read or written.

use crate::Reg;
use addr::{Avma, AvmaRange, Unreadable};

/// The reason why a table could not be read or written. The fields are the evidence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The memory of the table, or of a slot that a pointer goes through, cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// A section of `len` bytes from `at` would run past the end of the address space.
    #[error("a section of {len} bytes at {at} leaves the address space")]
    OutsideAddressSpace {
        /// The start of the section.
        at: Avma,
        /// Its size in bytes.
        len: u64,
    },

    /// An `.eh_frame` entry is not well formed.
    #[error("bad .eh_frame entry at section offset {offset:#x}: {source}")]
    Entry {
        /// The entry's offset in its section. Bytes.
        offset: u64,
        /// The decoder's error.
        source: gimli::Error,
    },
    /// The requested FDE is not in this table.
    #[error("no FDE at section offset {offset:#x}")]
    NoFde {
        /// The requested offset. Bytes.
        offset: u64,
    },
    /// A CFI program cannot be carried over; `what` is the reason.
    #[error("call frame program of the FDE at section offset {offset:#x}: {what}")]
    Program {
        /// The FDE's offset in its section. Bytes.
        offset: u64,
        /// The reason.
        what: &'static str,
    },

    /// An exception table violates its format; `what` is the fault.
    #[error("bad exception table at {at}, offset {offset:#x}: {what}")]
    Lsda {
        /// The start of the table.
        at: Avma,
        /// The offset of the fault in the table. Bytes.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// A pointer encoding (`DW_EH_PE_*`) that has no meaning there, or none on x86-64 Linux.
    #[error("pointer encoding {encoding:#04x} in the exception table at {at} is not usable")]
    Encoding {
        /// The start of the table.
        at: Avma,
        /// The encoding byte.
        encoding: u8,
    },

    /// Call sites to be written overlap each other, or begin before the clone.
    #[error("call site {site:?} overlaps another or lies before the clone")]
    CallSite {
        /// The invalid call site.
        site: AvmaRange,
    },
    /// A landing pad at address 0 or 1: the base below it would be 0 or not exist.
    #[error("a landing pad at address 0 or 1 cannot be written")]
    NullPad,

    /// A frame's rows do not cover its range exactly, in order and without gaps.
    #[error("the rows of the clone {range:?} do not cover it")]
    RowsDoNotCover {
        /// The clone's range.
        range: AvmaRange,
    },
    /// The registers of a row are not in rising order.
    #[error("the registers of a row of the clone {range:?} are not in rising order")]
    UnsortedRegisters {
        /// The clone's range.
        range: AvmaRange,
    },
    /// An offset of -2^63, which has no factored form.
    #[error("the offset of register {} is not encodable", reg.0)]
    OffsetRange {
        /// The register (for a CFA: the register that it is computed from).
        reg: Reg,
    },
    /// Two clones share code.
    #[error("the clones {first:?} and {second:?} overlap")]
    Overlap {
        /// The clone that begins first.
        first: AvmaRange,
        /// The other clone.
        second: AvmaRange,
    },
    /// The tables and the code are more than 2 GiB apart, or a table or a clone is larger than 2 GiB.
    #[error("{what} is out of the reach of 32 bits")]
    TooFar {
        /// The object that cannot be reached.
        what: &'static str,
    },
    /// `.eh_frame_hdr` must be 4-aligned: otherwise libgcc does not use its search table.
    #[error(".eh_frame_hdr at {at} is not 4-aligned")]
    Misaligned {
        /// The requested address.
        at: Avma,
    },
}
