//! The target's user time by program counter, and the branches taken before each sample.

use addr::Avma;
use emit::AddressMap;
use profile::BranchStacks;

/// User-mode samples of a whole process.
#[derive(Debug, Default)]
pub struct Samples {
    /// Program counters in original code (samples in clones are translated).
    pub ips: Vec<Avma>,
    /// Samples that the kernel dropped.
    pub lost: u64,
    /// The stable name of the sampled event; `None` without sampling.
    pub source: Option<&'static str>,
    /// The branches taken before the samples, if the CPU records them. Addresses may be in clones.
    pub stacks: BranchStacks,
    /// Clones that may have run during sampling.
    pub clones: Vec<AddressMap>,
}

impl Samples {
    /// Returns the original address for an address in a clone.
    #[must_use]
    pub fn original(&self, at: Avma) -> Avma {
        self.clones.iter().find_map(|m| m.original_of_interior(at)).unwrap_or(at)
    }

    /// Translates samples in clones to original code. A process that was rebuilt often has hundreds of
    /// thousands of clones.
    pub(crate) fn carry_back(&mut self) {
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
