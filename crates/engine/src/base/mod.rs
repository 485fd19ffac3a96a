//! What all other rooms need: errors, options, progress, names, files, the user's interrupt.

pub(crate) mod date;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod interrupt;
pub(crate) mod kernel;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod parallel;
pub(crate) mod passes;
pub(crate) mod phases;
pub(crate) mod private;
pub(crate) mod progress;
pub mod whole_file;
