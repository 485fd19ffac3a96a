//! Program counters of a running process.

use crate::{Error, Interrupt};
use addr::Avma;
use perf::Sampler;
use std::time::{Duration, Instant};

/// The longest wait between two checks for the user's interrupt.
const PAUSE: Duration = Duration::from_millis(200);

/// Samples for `time`. Returns the program counters of the processes for whose id `wanted` returns true.
///
/// # Errors
/// [`Error::Perf`], [`Error::Interrupted`].
pub(super) fn ips(
    mut sampler: Sampler,
    time: Duration,
    interrupt: &Interrupt,
    wanted: &mut dyn FnMut(i32) -> bool,
) -> Result<Vec<Avma>, Error> {
    let (start, mut ips) = (Instant::now(), Vec::new());
    let mut add = |s: perf::Sample<'_>| {
        if wanted(s.pid) {
            ips.push(s.ip);
        }
    };
    while start.elapsed() < time {
        interrupt.check()?;
        sampler.poll(time.saturating_sub(start.elapsed()).min(PAUSE))?;
        sampler.drain(&mut add)?;
    }
    sampler.stop()?;
    sampler.drain(&mut add)?;
    Ok(ips)
}
