//! The classic method: a long half with clones, then a half without.

use crate::gauge::sleep;
use crate::paired::{Measurement, run};
use crate::report::{Method, Report};
use crate::{Error, Options, Progress, Side, Work};
use engine::Pid;
use std::time::Duration;

/// Compares a target as older tools do: for the time `half` with clones, then undone, for the same time
/// without. Each half is divided into slices of `options.window`, from which the intervals are computed.
/// `options.rounds` is not used. The figures include every other change between the halves. So use this
/// method to compare with figures of such tools, and [`crate::paired()`] to measure a gain.
///
/// # Errors
/// Same as [`crate::paired()`].
pub fn classic(
    pid: Pid,
    half: Duration,
    options: &Options,
    work: &mut dyn Work,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    let measurement = Measurement { pid, method: Method::Classic, options, work, progress };
    run(measurement, |session, gauge, _, progress| {
        let slices = half.as_nanos().div_ceil(options.window.as_nanos().max(1));
        let slices = u32::try_from(slices).unwrap_or(u32::MAX);
        let mut windows = Vec::new();
        for side in [Side::With, Side::Without] {
            session.go(side, options)?;
            sleep(options.pause, &options.interrupt)?;
            for slice in 0..slices {
                windows.push(gauge.window(slice, side, options.window, &options.interrupt)?);
                let done = u32::try_from(windows.len()).unwrap_or(u32::MAX);
                progress(Progress::Window { done, of: slices.saturating_mul(2) });
            }
        }
        Ok(windows)
    })
}
