//! What can go wrong.

use addr::{Avma, Unreadable};

/// Why an image, a module or a part of a module could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line of `/proc/PID/maps` that is not as the kernel writes it.
    #[error("line {number} of the memory map: {what}: {line:?}")]
    BadMapsLine {
        /// Counted from 1.
        number: usize,
        /// The line, at most its first 256 characters.
        line: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No mapped module is the main program.
    #[error("the main program is not among the mapped modules")]
    NoMain,
    /// Memory that should be there is not.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// A 32-bit module (i386 or x32).
    #[error("the module at {at} is a 32-bit ELF file")]
    Unsupported32Bit {
        /// Where its header is.
        at: Avma,
    },
    /// A big-endian module.
    #[error("the module at {at} is a big-endian ELF file")]
    UnsupportedByteOrder {
        /// Where its header is.
        at: Avma,
    },
    /// A module for another CPU.
    #[error("the module at {at} is for another CPU (ELF machine {machine})")]
    UnsupportedMachine {
        /// Where its header is.
        at: Avma,
        /// `e_machine`.
        machine: u16,
    },
    /// An ELF structure in memory contradicts itself.
    #[error("the module at {at}: {what}")]
    BadElf {
        /// Where its header is.
        at: Avma,
        /// What is wrong.
        what: &'static str,
    },
    /// A module's file contradicts itself.
    #[error("the module's file: {what}")]
    BadFile {
        /// What is wrong.
        what: &'static str,
    },
    /// The file found under the module's name is another build than the one in memory.
    #[error("the file on disk is not the module in memory")]
    FileDiffers,
    /// Compressed mini debug info that could not be unpacked.
    #[error("the compressed symbols (.gnu_debugdata): {what}")]
    BadDebugData {
        /// What is wrong.
        what: String,
    },
    /// The frame table could not be read.
    #[error("the frame table: {0}")]
    Frames(#[from] unwind::Error),
}
