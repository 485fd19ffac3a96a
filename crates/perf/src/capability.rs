//! The means of sampling on this machine.

use crate::event::{self, Source};
use crate::record::field;
use perf_event_open_sys::bindings::perf_event_attr;
use std::fs;
use std::str::FromStr;

/// The means by which this process can sample here, found by trying them on itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    /// Whether the CPU's cycle counter can be used.
    pub cycles: bool,
    /// The source with which the CPU records its last taken branches, if it can (Intel's LBR; AMD's BRS and
    /// LbrExtV2).
    pub branch_stacks: Option<Source>,
    /// Whether the kernel's CPU clock can be used. If not, no source can.
    pub cpu_clock: bool,
    /// `kernel.perf_event_paranoid`: above 2, or above 1 on some kernels, only root and CAP_PERFMON can
    /// sample.
    pub paranoid: Option<i32>,
    /// `kernel.perf_event_max_sample_rate`: the kernel throttles above this rate. Samples per second.
    pub max_rate: Option<u32>,
}

impl Capability {
    /// Returns the source of samples that would be used.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        match (self.cycles, self.cpu_clock) {
            (true, _) => Some(Source::Cycles),
            (false, true) => Some(Source::CpuClock),
            (false, false) => None,
        }
    }
}

/// Tries the kernel's events. Opens and closes a few events of this thread; takes well under a millisecond.
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

/// Returns the first source with branch stacks; `attributes` describes its event without them. If the CPU or
/// the hypervisor has none, the kernel returns `EOPNOTSUPP`; if the kernel lacks the source, `ENOENT`.
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
