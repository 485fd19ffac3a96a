//! Takes samples of a live process.

use crate::plan::samples::Samples;
use crate::{Error, OptimizeOptions, Progress};
use emit::AddressMap;
use perf::{Options, Sample, Sampler, Source};
use profile::Taken;
use std::time::{Duration, Instant};
use tracee::Process;

/// Samples all threads for as long as the options say.
///
/// # Errors
/// [`Error::Perf`] where sampling is not permitted, [`Error::Tracee`] where the target ends,
/// [`Error::Interrupted`].
pub fn take(
    process: &Process,
    options: &OptimizeOptions,
    clones: Vec<AddressMap>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Samples, Error> {
    let mut sampler = Sampler::open(process.pid().0, &Options { branches: true, ..Options::default() })?;
    let mut samples = Samples { source: Some(name(sampler.source())), clones, ..Samples::default() };
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
        sampler.drain(|s| add(&mut samples, &s))?;
        progress(Progress::Sampling { samples: samples.ips.len(), left });
    }
    sampler.stop()?;
    sampler.drain(|s| add(&mut samples, &s))?;
    samples.lost = sampler.lost();
    samples.carry_back();
    Ok(samples)
}

/// Adds what the kernel has recorded.
fn add(samples: &mut Samples, sample: &Sample<'_>) {
    samples.ips.push(sample.ip);
    // What was undone never ran, and of an aborted transaction nothing says how far it had come.
    let ran = sample.branches.filter(|b| !b.wrong_path);
    samples.stacks.add(ran.map(|b| (!b.aborted).then_some(Taken { from: b.from, to: b.to })));
}

/// The stable name of what samples are taken by.
fn name(source: Source) -> &'static str {
    match source {
        Source::Cycles => "cycles",
        Source::CpuClock => "cpu-clock",
        Source::TakenBranches => "taken-branches",
    }
}
