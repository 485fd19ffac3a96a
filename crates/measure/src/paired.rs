//! The paired comparison: short windows in pairs.

use crate::estimate::Random;
use crate::evaluate::{evaluate, judge};
use crate::gauge::{Gauge, sleep};
use crate::report::{Events, Method, Report, Verdict, WorkName};
use crate::session::Session;
use crate::steadiness::{Bottleneck, STEADY, variation};
use crate::{Error, Options, Progress, Side, Window, Work};
use engine::Pid;
use std::time::{Duration, Instant};

/// The shortest time for which the load is checked before the comparison.
const LOOK: Duration = Duration::from_secs(1);

/// Compares a target with clones and without, in pairs of short windows in random order. The load is checked
/// first, for a second or for one window if that is longer. If there is no load, the report says so, and the
/// target is not changed.
///
/// # Errors
/// Any of [`Error`]: [`engine::Error::Changed`] if another command undid, redid or optimized the target
/// meanwhile, [`engine::Error::Interrupted`] if the user interrupted. The target is then as it was found, or
/// as the other command left it.
pub fn paired(
    pid: Pid,
    options: &Options,
    work: &mut dyn Work,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    let measurement = Measurement { pid, method: Method::Paired, options, work, progress };
    run(measurement, |session, gauge, seed, progress| {
        let mut random = Random(seed);
        let mut windows = Vec::new();
        for pair in 0..options.rounds {
            let order = match random.below(2) {
                0 => [Side::With, Side::Without],
                _ => [Side::Without, Side::With],
            };
            for side in order {
                session.go(side, options)?;
                sleep(options.pause, &options.interrupt)?;
                windows.push(gauge.window(pair, side, options.window, &options.interrupt)?);
                let done = u32::try_from(windows.len()).unwrap_or(u32::MAX);
                progress(Progress::Window { done, of: options.rounds.saturating_mul(2) });
            }
        }
        Ok(windows)
    })
}

/// A measurement by either method.
pub(crate) struct Measurement<'a> {
    pub(crate) pid: Pid,
    pub(crate) method: Method,
    pub(crate) options: &'a Options,
    pub(crate) work: &'a mut dyn Work,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

/// Does what both methods have in common: checks the load, restores the target, evaluates the windows.
/// `take` takes the windows; its number is the seed of everything random.
pub(crate) fn run(
    measurement: Measurement<'_>,
    take: impl FnOnce(&mut Session, &mut Gauge<'_>, u64, &mut dyn FnMut(Progress)) -> Result<Vec<Window>, Error>,
) -> Result<Report, Error> {
    let Measurement { pid, method, options, work, progress } = measurement;
    let begun = Instant::now();
    differs(options)?;
    let seed = options.seed.unwrap_or_else(Random::draw_seed);
    let mut session = Session::open(pid, options)?;
    let name = WorkName { kind: work.kind().to_owned(), what: work.what() };
    let process = session.switch()?.process().clone();
    let exe = process.exe().map(|p| p.display().to_string()).unwrap_or_default();
    let mut gauge = Gauge::new(process, work);
    let (capacity, host_cpus) = (tracee::capacity(pid), tracee::host_cpus());

    progress(Progress::Looking);
    let look = gauge.window(0, Side::With, options.window.max(LOOK), &options.interrupt);
    // This is read before the comparison, as a switch stops all threads and none is awake then.
    let busiest = gauge.busiest_thread();
    let outcome = look.and_then(|look| {
        let is_idle = look.is_void() || Bottleneck::new(&[look], capacity, host_cpus, 0.0).is_idle();
        let windows = if is_idle { Vec::new() } else { take(&mut session, &mut gauge, seed, progress)? };
        Ok((windows, look))
    });
    let (switches, stop_ms) = session.stops();
    let (windows, look) = session.end(outcome)?;

    let figures = evaluate(&windows, method, seed);
    let seen = if windows.is_empty() { std::slice::from_ref(&look) } else { windows.as_slice() };
    let bottleneck = Bottleneck::new(seen, capacity, host_cpus, busiest);
    let variation = variation(&windows);
    let (verdict, warnings) = judge(figures.as_ref(), variation, &bottleneck, method);
    let figures = figures.as_ref();
    Ok(Report {
        pid: pid.0,
        exe,
        method,
        between: options.between,
        work: name,
        qps: figures.map(|f| f.qps),
        cpu_usage: figures.map(|f| f.cpu_usage),
        combined_improvement_factor: figures.map(|f| f.factor),
        user_cpu_factor: figures.and_then(|f| f.user_factor),
        events: figures.map_or_else(Events::none, |f| f.events),
        modelled: None,
        verdict,
        can_tell: verdict != Verdict::CannotTell,
        steady: figures.is_some() && variation <= STEADY,
        cpu_bound: bottleneck.is_cpu() && !bottleneck.is_idle(),
        warnings,
        pairs: figures.map_or(0, |f| f.pairs),
        void_pairs: figures.map_or(0, |f| f.void_pairs),
        window_seconds: options.window.as_secs_f64(),
        seed,
        seconds: begun.elapsed().as_secs_f64(),
        switches,
        stop_ms,
        windows,
    })
}

/// Checks that the generations to be compared are two.
fn differs(options: &Options) -> Result<(), Error> {
    match options.between {
        Some([a, b]) if a == b => Err(Error::SameGeneration(a)),
        _ => Ok(()),
    }
}
