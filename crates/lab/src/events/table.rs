//! The events of each kind of CPU, in perf's spelling, under the names of this lab.
//!
//! Codes are those of Linux's event lists (`tools/perf/pmu-events/arch/x86`). Two events of different CPUs
//! under one name count nearly the same; [`Table::notes`] says where they differ.

use super::counts::Counts;
use crate::machine::Cpu;

/// The events of a kind of CPU.
#[derive(Debug)]
pub struct Table {
    /// The kind of CPU.
    pub cpu: &'static str,
    /// Events that are counted at the same time, group by group. The kernel takes turns between the groups if
    /// there are fewer counters.
    pub groups: &'static [&'static [&'static str]],
    /// The slots of which `frontend-stalls` counts the lost ones.
    pub slots: Slots,
    /// A note that readers need on these events.
    pub notes: &'static str,
}

/// The slots in which an operation may enter the back end. On Intel's CPUs the active threads of a core divide its
/// slots among them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Slots {
    /// So many for each cycle of the thread; 1 if `frontend-stalls` counts cycles.
    PerCycle(f64),
    /// So many for each cycle of the core: half of them in cycles in which the other thread is active too. That share is
    /// one minus `alone` over `reference-cycles` (Intel's metric `Frontend_Bound_SMT`).
    PerCoreCycle(f64),
    /// `frontend-slots` counts them.
    Counted,
}

impl Slots {
    /// Adds the number of slots to the counts. If what it is computed from was not counted, the lost slots are removed,
    /// because sums over windows need both.
    pub fn complete(self, counts: &mut Counts) {
        let get = |name: &str| counts.get(name).copied();
        let cycles = get("cycles");
        let slots = match self {
            Self::Counted => get("frontend-slots"),
            Self::PerCycle(each) => cycles.map(|n| n * each),
            Self::PerCoreCycle(each) => {
                let reference = get("reference-cycles").filter(|n| *n > 0.0);
                let alone = get("alone").zip(reference).map(|(alone, all)| (alone / all).min(1.0));
                cycles.zip(alone).map(|(n, alone)| n * each * f64::midpoint(1.0, alone))
            }
        };
        match slots.filter(|_| counts.contains_key("frontend-stalls")) {
            Some(slots) => counts.insert("frontend-slots".to_owned(), slots),
            None => counts.remove("frontend-stalls"),
        };
    }
}

/// Instructions, cycles and branches of all these CPUs of Intel.
const INTEL_BRANCHES: &[&str] = &[
    "instructions:u",
    "cycles:u",
    "cpu/event=0xc4,umask=0x00,name=branches/u",
    "cpu/event=0xc5,umask=0x00,name=branch-misses/u",
    "cpu/event=0xc4,umask=0x20,name=taken-branches/u",
];

const INTEL_STALLS: &str = "cpu/event=0x9c,umask=0x01,name=frontend-stalls/u";
const INTEL_SLOTS: &str = "cpu/event=0xa4,umask=0x01,name=frontend-slots/u";
const SKYLAKE_CACHE_MISSES: &str = "cpu/event=0x83,umask=0x02,name=L1-icache-load-misses/u";
const SKYLAKE_TLB_HITS: &str = "cpu/event=0x85,umask=0x20,name=iTLB-second-level-hits/u";
const SKYLAKE_TLB_MISSES: &str = "cpu/event=0x85,umask=0x0e,name=iTLB-load-misses/u";

const SKYLAKE: Table = Table {
    cpu: "Intel Skylake",
    groups: &[INTEL_BRANCHES, &[SKYLAKE_CACHE_MISSES, SKYLAKE_TLB_HITS, SKYLAKE_TLB_MISSES, INTEL_STALLS]],
    slots: Slots::PerCycle(4.0),
    notes: "Instruction cache misses are of 64-byte lines (ICACHE_64B.IFTAG_MISS); front-end stalls are lost slots (IDQ_UOPS_NOT_DELIVERED.CORE).",
};

/// Skylake with both threads of its cores in use.
const SKYLAKE_SMT: Table = Table {
    groups: &[
        INTEL_BRANCHES,
        &[SKYLAKE_CACHE_MISSES, SKYLAKE_TLB_HITS, SKYLAKE_TLB_MISSES],
        &[
            INTEL_STALLS,
            "cpu/event=0x3c,umask=0x02,name=alone/u",
            "cpu/event=0x3c,umask=0x01,name=reference-cycles/u",
        ],
    ],
    slots: Slots::PerCoreCycle(4.0),
    ..SKYLAKE
};

/// Ice Lake has the codes of Skylake, and counts slots. With instructions and cycles in fixed counters, all other events
/// fit into the eight that there are; where the kernel's watchdog holds the one of cycles, the groups take turns.
const ICE_LAKE: Table = Table {
    cpu: "Intel Ice Lake",
    groups: &[
        INTEL_BRANCHES,
        &[SKYLAKE_CACHE_MISSES, SKYLAKE_TLB_HITS, SKYLAKE_TLB_MISSES, INTEL_STALLS, INTEL_SLOTS],
    ],
    slots: Slots::Counted,
    ..SKYLAKE
};

const SAPPHIRE_RAPIDS: Table = Table {
    cpu: "Intel Sapphire Rapids",
    groups: &[
        INTEL_BRANCHES,
        &[
            "cpu/event=0x24,umask=0xe4,name=L1-icache-load-misses/u",
            "cpu/event=0x11,umask=0x20,name=iTLB-second-level-hits/u",
            "cpu/event=0x11,umask=0x0e,name=iTLB-load-misses/u",
            INTEL_STALLS,
            INTEL_SLOTS,
        ],
    ],
    slots: Slots::Counted,
    notes: "Instruction cache misses are requests for code to the second level (L2_RQSTS.ALL_CODE_RD), prefetches included; front-end stalls are lost slots (IDQ_BUBBLES.CORE).",
};

/// Instructions, cycles and branches of all Zen CPUs.
const ZEN_BRANCHES: &[&str] = &[
    "instructions:u",
    "cycles:u",
    "cpu/event=0xc2,name=branches/u",
    "cpu/event=0xc3,name=branch-misses/u",
    "cpu/event=0xc4,name=taken-branches/u",
];

const ZEN_2: Table = Table {
    cpu: "AMD Zen 2",
    groups: &[
        ZEN_BRANCHES,
        &[
            "cpu/event=0x81,name=L1-icache-load-misses/u",
            "cpu/event=0x84,name=iTLB-second-level-hits/u",
            "cpu/event=0x85,umask=0x07,name=iTLB-load-misses/u",
            "cpu/event=0xa9,name=frontend-stalls/u",
        ],
    ],
    slots: Slots::PerCycle(1.0),
    notes: "Instruction cache misses are of 32-byte fetch windows (ic_fw32_miss); front-end stalls are cycles with an empty queue of operations (de_dis_uop_queue_empty_di0).",
};

const ZEN_3: Table = Table {
    cpu: "AMD Zen 3",
    groups: &[
        ZEN_BRANCHES,
        &[
            "cpu/event=0x18e,umask=0x18,name=L1-icache-load-misses/u",
            "cpu/event=0x84,name=iTLB-second-level-hits/u",
            "cpu/event=0x85,umask=0x0f,name=iTLB-load-misses/u",
            "cpu/event=0xa9,name=frontend-stalls/u",
        ],
    ],
    slots: Slots::PerCycle(1.0),
    notes: "Front-end stalls are cycles with an empty queue of operations (de_dis_uop_queue_empty_di0).",
};

const ZEN_4: Table = Table {
    cpu: "AMD Zen 4",
    groups: &[
        ZEN_BRANCHES,
        &[
            "cpu/event=0x18e,umask=0x18,name=L1-icache-load-misses/u",
            "cpu/event=0x84,name=iTLB-second-level-hits/u",
            "cpu/event=0x85,umask=0x0f,name=iTLB-load-misses/u",
            "cpu/event=0x1a0,umask=0x01,name=frontend-stalls/u",
        ],
    ],
    slots: Slots::PerCycle(6.0),
    notes: "Front-end stalls are lost slots (de_no_dispatch_per_slot.no_ops_from_frontend).",
};

/// perf's own names, for all other CPUs. Each is a group of its own, as a CPU may lack some of them.
const OTHER: Table = Table {
    cpu: "a CPU without a table of its own",
    groups: &[
        &["instructions:u"],
        &["cycles:u"],
        &["branches:u"],
        &["branch-misses:u"],
        &["L1-icache-load-misses:u"],
        &["iTLB-load-misses:u"],
    ],
    slots: Slots::PerCycle(1.0),
    notes: "By perf's general names, whose meaning depends on the CPU.",
};

/// Returns the events of a CPU. `smt` is whether both threads of its cores are in use.
pub fn table(cpu: &Cpu, smt: bool) -> &'static Table {
    match (cpu.vendor.as_str(), cpu.family, cpu.model) {
        ("GenuineIntel", 6, 0x4e | 0x5e | 0x8e | 0x9e | 0x55 | 0xa5 | 0xa6) => {
            if smt {
                &SKYLAKE_SMT
            } else {
                &SKYLAKE
            }
        }
        ("GenuineIntel", 6, 0x6a | 0x6c | 0x7d | 0x7e) => &ICE_LAKE,
        ("GenuineIntel", 6, 0x8f | 0xcf) => &SAPPHIRE_RAPIDS,
        ("AuthenticAMD", 0x17, 0x30..=0xff) => &ZEN_2,
        ("AuthenticAMD", 0x19, 0x00..=0x0f | 0x20..=0x5f) => &ZEN_3,
        ("AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0xaf) => &ZEN_4,
        _ => &OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: [&Table; 7] = [&SKYLAKE, &SKYLAKE_SMT, &ICE_LAKE, &SAPPHIRE_RAPIDS, &ZEN_2, &ZEN_3, &ZEN_4];

    fn cpu(vendor: &str, family: u32, model: u32) -> Cpu {
        Cpu { vendor: vendor.to_owned(), family, model, stepping: 0 }
    }

    #[test]
    fn cpus_have_their_tables() {
        let known = [
            ("GenuineIntel", 6, 0x55, "Intel Skylake"),
            ("GenuineIntel", 6, 0x6a, "Intel Ice Lake"),
            ("GenuineIntel", 6, 0x8f, "Intel Sapphire Rapids"),
            ("AuthenticAMD", 0x17, 0x31, "AMD Zen 2"),
            ("AuthenticAMD", 0x19, 0x01, "AMD Zen 3"),
            ("AuthenticAMD", 0x19, 0x11, "AMD Zen 4"),
            ("AuthenticAMD", 0x17, 0x01, "a CPU without a table of its own"),
            ("GenuineIntel", 0x19, 0x11, "a CPU without a table of its own"),
        ];
        for (vendor, family, model, name) in known {
            assert_eq!(table(&cpu(vendor, family, model), false).cpu, name);
        }
        let of_both = |model| table(&cpu("GenuineIntel", 6, model), true).slots;
        assert_eq!([of_both(0x55), of_both(0x6a)], [Slots::PerCoreCycle(4.0), Slots::Counted]);
    }

    /// Every table gives all figures that the report has for hardware. A group fits the counters of the CPU.
    /// Intel: four for any event, eight since Ice Lake, if both threads of a core are in use, and two fixed ones. AMD: six.
    #[test]
    fn every_table_counts_what_the_figures_need_in_groups_that_fit() {
        for table in ALL {
            let counters = if table.slots == Slots::Counted { 8 } else { 4 };
            let mut counts = Counts::new();
            for group in table.groups {
                let general = group.iter().filter(|e| e.starts_with("cpu/")).count();
                assert!(general <= counters && group.len() <= 6, "{}: {group:?}", table.cpu);
                for event in *group {
                    let name =
                        event.split("name=").last().unwrap().trim_end_matches("/u").trim_end_matches(":u");
                    assert!(counts.insert(name.to_owned(), 1.0).is_none(), "{name} twice");
                }
            }
            table.slots.complete(&mut counts);
            let missing: Vec<&str> =
                super::super::METRICS.iter().filter(|m| (m.of)(&counts).is_none()).map(|m| m.name).collect();
            assert_eq!(missing, ["branch target buffer misses"], "{}", table.cpu);
        }
    }

    /// Returns a number of an event's description, 0 if it is not given.
    fn term(event: &str, name: &str) -> u64 {
        let found = event.split(['/', ',']).find_map(|t| t.strip_prefix(name)?.strip_prefix("=0x"));
        found.map_or(0, |digits| u64::from_str_radix(digits, 16).unwrap())
    }

    #[test]
    fn codes_are_those_of_the_makers_lists() {
        let listed = include_str!("../../tests/perf/events.txt").lines().filter(|l| !l.starts_with('#'));
        let listed: BTreeSet<(String, String, u64, u64)> = listed
            .map(|line| {
                let [cpu, name, _, code, mask] = line.split(';').collect::<Vec<_>>()[..] else {
                    panic!("{line}")
                };
                let number = |text: &str| u64::from_str_radix(&text[2..], 16).unwrap();
                (cpu.to_owned(), name.to_owned(), number(code), number(mask))
            })
            .collect();
        let mut found = BTreeSet::new();
        for table in ALL {
            for event in table.groups.iter().flat_map(|g| g.iter()).filter(|e| e.starts_with("cpu/")) {
                let name = event.split("name=").last().unwrap().trim_end_matches("/u").to_owned();
                found.insert((table.cpu.to_owned(), name, term(event, "event"), term(event, "umask")));
            }
        }
        assert_eq!(found, listed);
    }
}
