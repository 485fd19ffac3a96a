//! Reads the CPU's performance counters, if there are any.

use crate::window::HardwareCounts;
use engine::Pid;
use perf::{Counted, Counter};

/// The counters of one target. A counter is `None` if the CPU cannot count the event.
#[derive(Debug)]
pub struct Hardware {
    counters: [Option<Counter>; 6],
}

/// The events, in the order of the fields of [`HardwareCounts`].
const EVENTS: [Counted; 6] = [
    Counted::Cycles,
    Counted::Instructions,
    Counted::InstructionCacheMisses,
    Counted::InstructionTlbMisses,
    Counted::BranchMisses,
    Counted::FrontEndStalls,
];

impl Hardware {
    /// Starts counting. Returns `None` if not even cycles can be counted, as in most virtual machines.
    pub fn open(pid: Pid) -> Option<Self> {
        let cycles = Counter::open(pid.0, EVENTS[0]).ok()?;
        let mut counters = EVENTS.map(|_| None);
        for (slot, event) in counters.iter_mut().zip(EVENTS).skip(1) {
            *slot = Counter::open(pid.0, event).ok();
        }
        counters[0] = Some(cycles);
        Some(Self { counters })
    }

    /// Returns the counts so far.
    pub fn read(&mut self) -> HardwareCounts {
        let mut next = self.counters.iter_mut().map(|counter| {
            let count = counter.as_mut()?.read().ok()?;
            // If events share counters in turns, each count is scaled up to the whole time.
            let scale = count.enabled_ns as f64 / count.running_ns as f64;
            (count.running_ns > 0).then_some(count.counted as f64 * scale)
        });
        let mut take = || next.next().flatten();
        HardwareCounts {
            cycles: take(),
            instructions: take(),
            icache_misses: take(),
            itlb_misses: take(),
            branch_misses: take(),
            frontend_stalls: take(),
        }
    }
}

/// Returns the increase of each count between two readings.
pub fn between(before: HardwareCounts, after: HardwareCounts) -> HardwareCounts {
    let less = |a: Option<f64>, b: Option<f64>| Some((a? - b?).max(0.0));
    HardwareCounts {
        cycles: less(after.cycles, before.cycles),
        instructions: less(after.instructions, before.instructions),
        icache_misses: less(after.icache_misses, before.icache_misses),
        itlb_misses: less(after.itlb_misses, before.itlb_misses),
        branch_misses: less(after.branch_misses, before.branch_misses),
        frontend_stalls: less(after.frontend_stalls, before.frontend_stalls),
    }
}
