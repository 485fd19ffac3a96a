//! `replay`: from a capture file to a report.

use super::file;
use super::report::ReplayReport;
use crate::base::passes::Passes;
use crate::{Error, Interrupt};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// What a replay does differently from the captured run.
#[derive(Clone, Debug, Default)]
pub struct Again {
    /// The seed of a random layout.
    pub shuffle: Option<u64>,
    /// The passes to apply; `None` for those of the captured run.
    pub passes: Option<Passes>,
    /// Ends the work early.
    pub interrupt: Interrupt,
}

/// Rebuilds what a capture holds, without the process. The same capture gives the same report.
///
/// # Errors
/// Returns [`Error::File`] and [`Error::CaptureFile`] for the file, and the errors of [`crate::optimize`].
pub fn replay(path: &Path, again: &Again) -> Result<ReplayReport, Error> {
    let file = File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    replay_bytes(BufReader::new(file), path, again)
}

/// Does the same as [`replay`] for the bytes of a file at `path`.
///
/// # Errors
/// Same as [`replay`].
pub fn replay_bytes(from: impl Read, path: &Path, again: &Again) -> Result<ReplayReport, Error> {
    let mut capture = file::read(from).map_err(|what| Error::CaptureFile { path: path.to_owned(), what })?;
    let inputs = &mut capture.inputs;
    inputs.shuffle = again.shuffle.or(inputs.shuffle);
    if let Some(passes) = again.passes {
        inputs.without = passes.left_out().map(|p| p.to_string()).collect();
    }
    Ok(capture.rebuild(&again.interrupt)?.report)
}
