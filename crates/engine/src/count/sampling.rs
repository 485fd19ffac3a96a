//! Takes samples of a live process.

use crate::family::kin::Kin;
use crate::plan::samples::Samples;
use crate::{Error, OptimizeOptions, Progress};
use emit::AddressMap;
use perf::{Options, Sample, Sampler, Source};
use profile::Taken;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};
use tracee::Process;

/// Samples all threads for as long as the options say, and those of the target's family.
///
/// # Errors
/// Returns [`Error::Perf`] if sampling is not permitted, [`Error::Tracee`] if the target ends,
/// [`Error::Interrupted`].
pub fn take(
    process: &Process,
    kin: &Kin,
    options: &OptimizeOptions,
    clones: Vec<AddressMap>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Samples, Error> {
    let how = Options { branches: true, ..Options::default() };
    let mut sampler = match kin.sampled() {
        Some(pids) => Sampler::open_family(&pids, &how)?,
        None => Sampler::open(process.pid().0, &how)?,
    };
    let mut known = FxHashMap::default();
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
        sampler.drain(|s| {
            if kin.is_of_family(s.pid, &mut known) {
                add(&mut samples, &s);
            }
        })?;
        progress(Progress::Sampling { samples: samples.ips.len(), left });
    }
    sampler.stop()?;
    sampler.drain(|s| {
        if kin.is_of_family(s.pid, &mut known) {
            add(&mut samples, &s);
        }
    })?;
    samples.lost = sampler.lost();
    samples.carry_back();
    Ok(samples)
}

/// Adds one sample of the kernel.
fn add(samples: &mut Samples, sample: &Sample<'_>) {
    samples.ips.push(sample.ip);
    // Wrong-path branches never ran. For an aborted transaction, no record shows how far it came.
    let ran = sample.branches.filter(|b| !b.wrong_path);
    samples.stacks.add(ran.map(|b| (!b.aborted).then_some(Taken { from: b.from, to: b.to })));
}

/// Returns the stable name of the sampled event.
fn name(source: Source) -> &'static str {
    match source {
        Source::Cycles => "cycles",
        Source::CpuClock => "cpu-clock",
        Source::TakenBranches => "taken-branches",
    }
}
