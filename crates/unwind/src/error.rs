//! Why a table could not be read or written.

use crate::Reg;
use addr::{Avma, AvmaRange, Unreadable};

/// Why a table could not be read or written. The fields are the evidence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The memory that holds the table, or a slot that a pointer goes through, is not there.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// A section of `len` bytes from `at` would run past the end of the address space.
    #[error("a section of {len} bytes at {at} leaves the address space")]
    OutsideAddressSpace {
        /// Where it begins.
        at: Avma,
        /// Its size in bytes.
        len: u64,
    },

    /// An `.eh_frame` entry is not well formed.
    #[error("bad .eh_frame entry at section offset {offset:#x}: {source}")]
    Entry {
        /// Of the entry in its section. Bytes.
        offset: u64,
        /// What the decoder says.
        source: gimli::Error,
    },
    /// The FDE asked for is not in this table.
    #[error("no FDE at section offset {offset:#x}")]
    NoFde {
        /// What was asked for. Bytes.
        offset: u64,
    },
    /// A CFI program cannot be carried over; `what` says why.
    #[error("call frame program of the FDE at section offset {offset:#x}: {what}")]
    Program {
        /// Of the FDE in its section. Bytes.
        offset: u64,
        /// The reason.
        what: &'static str,
    },

    /// An exception table breaks its format; `what` says how.
    #[error("bad exception table at {at}, offset {offset:#x}: {what}")]
    Lsda {
        /// Where the table begins.
        at: Avma,
        /// The place of the fault in the table. Bytes.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// A pointer encoding (`DW_EH_PE_*`) that has no meaning there, or none on x86-64 Linux.
    #[error("pointer encoding {encoding:#04x} in the exception table at {at} is not usable")]
    Encoding {
        /// Where the table begins.
        at: Avma,
        /// The encoding byte.
        encoding: u8,
    },

    /// Call sites to be written overlap each other, or begin before the clone does.
    #[error("call site {site:?} overlaps another or lies before the clone")]
    CallSite {
        /// The offending one.
        site: AvmaRange,
    },
    /// A landing pad at address 0 or 1: no base lies below it that is not 0.
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
    /// An offset of -2^63, whose factored form does not exist.
    #[error("the offset of register {} is not encodable", reg.0)]
    OffsetRange {
        /// The register (for a CFA: the one it is computed from).
        reg: Reg,
    },
    /// Two clones share code.
    #[error("the clones {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that begins first.
        first: AvmaRange,
        /// The other.
        second: AvmaRange,
    },
    /// The tables and the code are more than 2 GiB apart, or a table or a clone is larger than that.
    #[error("{what} is out of the reach of 32 bits")]
    TooFar {
        /// What cannot be reached.
        what: &'static str,
    },
    /// `.eh_frame_hdr` must be 4-aligned: libgcc does not use its search table otherwise.
    #[error(".eh_frame_hdr at {at} is not 4-aligned")]
    Misaligned {
        /// Where it was to be.
        at: Avma,
    },
}
