//! Where the target's user time goes, by program counter.

use crate::{Error, OptimizeOptions, Progress};
use addr::Avma;
use emit::AddressMap;
use perf::{Options, Sampler, Source};
use std::time::{Duration, Instant};
use tracee::Process;

/// User-mode samples of a whole process.
#[derive(Debug, Default)]
pub struct Samples {
    /// Program counters in original code (samples in clones are carried back).
    pub ips: Vec<Avma>,
    /// Samples the kernel dropped.
    pub lost: u64,
    /// Where they came from.
    pub source: Option<Source>,
}

/// Samples all threads for as long as the options say.
///
/// # Errors
/// [`Error::Perf`] where sampling is not permitted, [`Error::Tracee`] where the target ends,
/// [`Error::Interrupted`].
pub fn take(
    process: &Process,
    options: &OptimizeOptions,
    clones: &[AddressMap],
    progress: &mut dyn FnMut(Progress),
) -> Result<Samples, Error> {
    let mut sampler = Sampler::open(process.pid().0, &Options::default())?;
    let mut samples = Samples { source: Some(sampler.source()), ..Samples::default() };
    let start = Instant::now();
    loop {
        let left = options.sampling.saturating_sub(start.elapsed());
        if left.is_zero() {
            break;
        }
        options.interrupt.check()?;
        if !process.is_alive() {
            return Err(tracee::Error::Gone(process.pid()).into());
        }
        sampler.poll(left.min(Duration::from_millis(100)))?;
        sampler.drain(|s| samples.ips.push(s.ip))?;
        progress(Progress::Sampling { samples: samples.ips.len(), left });
    }
    sampler.stop()?;
    sampler.drain(|s| samples.ips.push(s.ip))?;
    samples.lost = sampler.lost();
    for ip in &mut samples.ips {
        if let Some(original) = clones.iter().find_map(|m| m.original_of_interior(*ip)) {
            *ip = original;
        }
    }
    Ok(samples)
}
