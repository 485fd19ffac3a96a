//! Where the target's user time goes, by program counter, and by which branches it came there.

use addr::Avma;
use emit::AddressMap;
use profile::BranchStacks;

/// User-mode samples of a whole process.
#[derive(Debug, Default)]
pub struct Samples {
    /// Program counters in original code (samples in clones are carried back).
    pub ips: Vec<Avma>,
    /// Samples the kernel dropped.
    pub lost: u64,
    /// The stable name of what they were taken by; `None` where none were taken.
    pub source: Option<&'static str>,
    /// The branches that were taken before them, where the CPU records those: where they were, be it in clones.
    pub stacks: BranchStacks,
    /// Clones that may have run meanwhile.
    pub clones: Vec<AddressMap>,
}

impl Samples {
    /// An address of original code, for one in a clone.
    #[must_use]
    pub fn original(&self, at: Avma) -> Avma {
        self.clones.iter().find_map(|m| m.original_of_interior(at)).unwrap_or(at)
    }

    /// Carries samples in clones back to original code. A process that was rebuilt often has clones by the hundred thousand.
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
