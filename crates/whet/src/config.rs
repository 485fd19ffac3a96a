//! `whet config`: the daemon's configuration.

use crate::daemon::{Trouble, configuration};
use crate::output::Output;
use engine::ExitCode;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The answer of `check`.
#[derive(Debug, Serialize)]
struct Checked {
    /// The files that were read, in the order in which they apply.
    files: Vec<PathBuf>,
    /// The number of kinds of targets.
    targets: usize,
}

/// Checks one file alone, or the configuration in force with its drop-ins.
///
/// # Errors
/// [`Trouble`] with line and column.
pub fn check(file: Option<&Path>, out: &Output) -> Result<ExitCode, Trouble> {
    let (config, files) = configuration(file)?;
    out.answer(&Checked { files, targets: config.target.len() }, |c| {
        let files: Vec<String> = c.files.iter().map(|f| f.display().to_string()).collect();
        match files.as_slice() {
            [] => "there is no configuration: the defaults apply".to_owned(),
            files => format!("valid: {}", files.join(", ")),
        }
    });
    Ok(ExitCode::Ok)
}
