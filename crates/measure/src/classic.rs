//! The older protocol: a minute with, a minute without.

use crate::gauge::sleep;
use crate::paired::run;
use crate::report::{Method, Report};
use crate::{Error, Options, Progress, Side, Work};
use engine::Pid;
use std::time::Duration;

/// Compares a target as older tools do: so long with, undo, so long without, redo. Slices of the options' window give the
/// intervals; rounds are not looked at. Whatever else changes between the two halves is in the figures, so this is for
/// comparing with what such tools have shown; [`crate::paired()`] is for knowing.
///
/// # Errors
/// As [`crate::paired()`].
pub fn classic(
    pid: Pid,
    half: Duration,
    options: &Options,
    work: &mut dyn Work,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    run(pid, Method::Classic, options, work, progress, |session, gauge, _, progress| {
        let slices = half.as_nanos().div_ceil(options.window.as_nanos().max(1));
        let slices = u32::try_from(slices).unwrap_or(u32::MAX);
        let mut windows = Vec::new();
        for side in [Side::With, Side::Without] {
            session.go(side, options)?;
            sleep(options.settle, &options.interrupt)?;
            for slice in 0..slices {
                windows.push(gauge.window(slice, side, options.window, &options.interrupt)?);
                let done = u32::try_from(windows.len()).unwrap_or(u32::MAX);
                progress(Progress::Window { done, of: slices.saturating_mul(2) });
            }
        }
        Ok(windows)
    })
}
