//! Where the target's user time goes, by program counter, and by which branches it came there.

use crate::{Error, OptimizeOptions, Progress};
use addr::Avma;
use emit::AddressMap;
use perf::{Options, Sample, Sampler, Source};
use profile::{BranchStacks, Taken};
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
    /// The branches that were taken before them, where the CPU records those: where they were, be it in clones.
    pub stacks: BranchStacks,
    /// Clones that may have run meanwhile.
    pub clones: Vec<AddressMap>,
}

impl Samples {
    fn add(&mut self, sample: &Sample<'_>) {
        self.ips.push(sample.ip);
        // What was undone never ran, and of an aborted transaction nothing says how far it had come.
        let ran = sample.branches.filter(|b| !b.wrong_path);
        self.stacks.add(ran.map(|b| (!b.aborted).then_some(Taken { from: b.from, to: b.to })));
    }

    /// An address of original code, for one in a clone.
    #[must_use]
    pub fn original(&self, at: Avma) -> Avma {
        self.clones.iter().find_map(|m| m.original_of_interior(at)).unwrap_or(at)
    }

    /// Carries samples in clones back to original code. A process that was rebuilt often has clones by the hundred thousand.
    fn carry_back(&mut self) {
        let ranges = |m| -> Vec<_> { AddressMap::fragments(m).ranges().map(|r| (r, m)).collect() };
        let mut places: Vec<_> = self.clones.iter().flat_map(ranges).collect();
        places.sort_unstable_by_key(|(r, _)| r.start);
        for ip in &mut self.ips {
            let after = places.partition_point(|(r, _)| r.start <= *ip);
            let place = after.checked_sub(1).and_then(|i| places.get(i)).filter(|(r, _)| r.contains(*ip));
            *ip = place.and_then(|(_, map)| map.original_of_interior(*ip)).unwrap_or(*ip);
        }
    }
}

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
    let mut samples = Samples { source: Some(sampler.source()), clones, ..Samples::default() };
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
        sampler.drain(|s| samples.add(&s))?;
        progress(Progress::Sampling { samples: samples.ips.len(), left });
    }
    sampler.stop()?;
    sampler.drain(|s| samples.add(&s))?;
    samples.lost = sampler.lost();
    samples.carry_back();
    Ok(samples)
}
