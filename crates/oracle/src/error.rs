//! Errors of examinations.

use addr::{Avma, Unreadable};

/// Why an examination could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be opened or read.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Its threads could not be traced.
    #[error(transparent)]
    Tracee(#[from] tracee::Error),
    /// Its memory could not be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Its memory map could not be read.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// A frame table of clones is malformed.
    #[error(transparent)]
    Unwind(#[from] unwind::Error),
    /// The process carries no clones.
    #[error("the process carries no clones")]
    NoClones,
    /// A function could not be stepped through.
    #[error("cannot step through the function: {0}")]
    NotStepped(&'static str),
    /// The index of a frame table does not agree with the table.
    #[error("the .eh_frame_hdr at {at} is wrong: {what}")]
    Index {
        /// Address of the `.eh_frame_hdr`.
        at: Avma,
        /// What is wrong.
        what: &'static str,
    },
}
