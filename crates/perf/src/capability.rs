//! What this machine offers for sampling.

use crate::event::{self, Source};
use crate::record::field;
use perf_event_open_sys::bindings::perf_event_attr;
use std::fs;
use std::str::FromStr;

/// What sampling this process could do here, found by trying it on itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    /// Whether the CPU's cycle counter can be used.
    pub cycles: bool,
    /// What the CPU's record of its last taken branches can be had with, if it can (Intel's LBR; AMD's BRS and LbrExtV2).
    pub branch_stacks: Option<Source>,
    /// Whether the kernel's CPU clock can be used. If not, nothing can.
    pub cpu_clock: bool,
    /// `kernel.perf_event_paranoid`: above 2, or above 1 on some kernels, only root and CAP_PERFMON may sample.
    pub paranoid: Option<i32>,
    /// `kernel.perf_event_max_sample_rate`: the kernel throttles beyond. Samples per second.
    pub max_rate: Option<u32>,
}

impl Capability {
    /// What samples would be taken by.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        match (self.cycles, self.cpu_clock) {
            (true, _) => Some(Source::Cycles),
            (false, true) => Some(Source::CpuClock),
            (false, false) => None,
        }
    }
}

/// Asks the kernel. Opens and closes a few events of this thread; costs well under a millisecond.
#[must_use]
pub fn capability() -> Capability {
    let attributes = |source| event::attributes(source, 1000, field::IP | field::TID, 1);
    Capability {
        cycles: opens(&attributes(Source::Cycles)),
        branch_stacks: with_branches(attributes),
        cpu_clock: opens(&attributes(Source::CpuClock)),
        paranoid: paranoid(),
        max_rate: sysctl("perf_event_max_sample_rate"),
    }
}

/// The first source that comes with branch stacks; `attributes` describes its event without them. Where the CPU, or the
/// hypervisor, has none the kernel says `EOPNOTSUPP`, and `ENOENT` where it does not know the source.
pub(crate) fn with_branches(attributes: impl Fn(Source) -> perf_event_attr) -> Option<Source> {
    let sources = [Source::Cycles, Source::TakenBranches];
    sources.into_iter().find(|&source| opens(&event::with_branches(attributes(source))))
}

fn opens(attr: &perf_event_attr) -> bool {
    event::open(attr, 0, -1).is_ok()
}

pub(crate) fn paranoid() -> Option<i32> {
    sysctl("perf_event_paranoid")
}

fn sysctl<T: FromStr>(name: &str) -> Option<T> {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_offers_something() {
        let c = capability();
        eprintln!("{c:?}");
        assert!(c.cpu_clock && c.source().is_some());
        // Branch records come from the unit that counts cycles.
        assert!(c.cycles || c.branch_stacks.is_none());
    }
}
