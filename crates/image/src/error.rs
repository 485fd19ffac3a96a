//! Errors of this crate.

use addr::{Avma, Unreadable};

/// The reason why an image, a module or a part of a module could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line of `/proc/PID/maps` is not in the kernel's format.
    #[error("line {number} of the memory map: {what}: {line:?}")]
    BadMapsLine {
        /// The line's number, counted from 1.
        number: usize,
        /// The line, at most its first 256 characters.
        line: String,
        /// The fault of the line.
        what: &'static str,
    },
    /// No mapped module is the main program.
    #[error("the main program is not among the mapped modules")]
    NoMain,
    /// Memory that a module needs could not be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The module is a 32-bit ELF file (i386 or x32).
    #[error("the module at {at} is a 32-bit ELF file")]
    Unsupported32Bit {
        /// The address of its ELF header.
        at: Avma,
    },
    /// The module is a big-endian ELF file.
    #[error("the module at {at} is a big-endian ELF file")]
    UnsupportedByteOrder {
        /// The address of its ELF header.
        at: Avma,
    },
    /// The module is for another CPU.
    #[error("the module at {at} is for another CPU (ELF machine {machine})")]
    UnsupportedMachine {
        /// The address of its ELF header.
        at: Avma,
        /// The machine's number (`e_machine`).
        machine: u16,
    },
    /// An ELF structure in memory contradicts itself.
    #[error("the module at {at}: {what}")]
    BadElf {
        /// The address of its ELF header.
        at: Avma,
        /// The fault.
        what: &'static str,
    },
    /// A module's file contradicts itself.
    #[error("the module's file: {what}")]
    BadFile {
        /// The fault.
        what: &'static str,
    },
    /// The file with the module's name is another build than the module in memory.
    #[error("the file on disk is not the module in memory")]
    FileDiffers,
    /// The compressed symbols could not be unpacked.
    #[error("the compressed symbols (.gnu_debugdata): {what}")]
    BadDebugData {
        /// The fault.
        what: String,
    },
    /// The frame table could not be read.
    #[error("the frame table: {0}")]
    Frames(#[from] unwind::Error),
}
