//! The topology of CPUs, as the kernel reports it in /sys: which CPUs are threads of one core, and which
//! cores share a last-level cache, a NUMA node or a socket.

use super::tree::{Read, list};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The folder of the kernel's CPUs.
const CPUS: &str = "/sys/devices/system/cpu";
/// The folder of the kernel's NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// A core, with those of its hardware threads that the lab may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Core {
    /// CPUs that are threads of this core, ascending.
    pub cpus: Vec<usize>,
    /// The number of its socket.
    pub socket: usize,
    /// The number of its NUMA node.
    pub node: usize,
    /// The lowest CPU that shares the last-level cache with it.
    pub cache: usize,
}

/// The cores that the lab may use, ordered by socket, node, last-level cache and lowest CPU. So neighbours
/// in this order share as much as possible.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Topology {
    /// The cores.
    pub cores: Vec<Core>,
}

impl Topology {
    /// Reads the topology of this host.
    pub fn here() -> Self {
        Self::read(&super::tree::live, &super::allowed_cpus())
    }

    /// Reads the topology of the CPUs in `allowed`. If the kernel does not describe a CPU, the CPU counts as
    /// a core of its own, in socket 0 and node 0.
    pub fn read(read: Read<'_>, allowed: &[usize]) -> Self {
        let nodes = nodes(read);
        let node_of = |cpu: usize| nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map_or(0, |n| n.0);
        let mut cores: Vec<Core> = Vec::new();
        for &cpu in allowed {
            let of_cpu = |name: &str| read(&format!("{CPUS}/cpu{cpu}/{name}"));
            let siblings = of_cpu("topology/thread_siblings_list").map(|l| list(&l)).unwrap_or_default();
            if let Some(core) = cores.iter_mut().find(|c| c.cpus.iter().any(|other| siblings.contains(other)))
            {
                core.cpus.push(cpu);
                core.cpus.sort_unstable();
                continue;
            }
            // Virtual machines without a known socket report -1.
            let socket = of_cpu("topology/physical_package_id").and_then(|id| id.parse().ok()).unwrap_or(0);
            cores.push(Core { cpus: vec![cpu], socket, node: node_of(cpu), cache: last_cache(read, cpu) });
        }
        cores.sort_by_key(|c| (c.socket, c.node, c.cache, c.cpus.first().copied()));
        Self { cores }
    }

    /// Returns the numbers of the sockets, ascending.
    pub fn sockets(&self) -> Vec<usize> {
        self.cores.iter().map(|c| c.socket).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the largest number of hardware threads of a core.
    pub fn threads(&self) -> usize {
        self.cores.iter().map(|c| c.cpus.len()).max().unwrap_or(0)
    }

    /// Describes the topology in words.
    pub fn words(&self) -> String {
        let count = |get: fn(&Core) -> usize| self.cores.iter().map(get).collect::<BTreeSet<_>>().len();
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let groups = self.cores.iter().map(|c| (c.socket, c.cache)).collect::<BTreeSet<_>>().len();
        format!(
            "{}, {}, {} that share a last-level cache, {}, {} per core",
            plural(count(|c| c.socket), "socket"),
            plural(count(|c| c.node), "NUMA node"),
            plural(groups, "group"),
            plural(self.cores.len(), "core"),
            plural(self.threads(), "thread"),
        )
    }
}

/// Returns the CPUs of some cores: first a CPU of each core, then the second threads of all cores. So the
/// first N CPUs are on as many cores as possible.
pub fn cpus_of(cores: &[Core]) -> Vec<usize> {
    let most = cores.iter().map(|c| c.cpus.len()).max().unwrap_or(0);
    (0..most).flat_map(|thread| cores.iter().filter_map(move |c| c.cpus.get(thread).copied())).collect()
}

/// Returns the CPUs of each NUMA node. Nodes without CPUs (of memory alone) are included.
fn nodes(read: Read<'_>) -> Vec<(usize, Vec<usize>)> {
    let online = read(&format!("{NODES}/online")).unwrap_or_default();
    let cpus = |node: usize| read(&format!("{NODES}/node{node}/cpulist")).map(|l| list(&l));
    list(&online).into_iter().filter_map(|node| Some((node, cpus(node)?))).collect()
}

/// Returns the lowest CPU that shares the highest-numbered cache of `cpu`; `cpu` itself if the kernel lists
/// no caches.
fn last_cache(read: Read<'_>, cpu: usize) -> usize {
    let shared = (0..8).rev().find_map(|n| read(&format!("{CPUS}/cpu{cpu}/cache/index{n}/shared_cpu_list")));
    shared.and_then(|l| list(&l).into_iter().min()).unwrap_or(cpu)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A host's files, from a text that lists groups of CPUs: those that share a core, a last-level cache, a
    /// NUMA node, a socket.
    pub fn tree(text: &str) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
            let mut words = line.split_whitespace();
            let kind = words.next().unwrap();
            for (number, group) in words.enumerate() {
                if kind == "nodes" {
                    files.insert(format!("{NODES}/node{number}/cpulist"), group.to_owned());
                    files.insert(format!("{NODES}/online"), format!("0-{number}"));
                }
                for cpu in list(group) {
                    let (name, value) = match kind {
                        "cores" => ("topology/thread_siblings_list", group.to_owned()),
                        "caches" => ("cache/index3/shared_cpu_list", group.to_owned()),
                        "sockets" => ("topology/physical_package_id", number.to_string()),
                        "nodes" => break,
                        other => panic!("{other}"),
                    };
                    files.insert(format!("{CPUS}/cpu{cpu}/{name}"), value);
                }
            }
        }
        files
    }

    /// Returns the topology of a host in `tests/topologies`, and its CPUs.
    pub fn host(text: &str) -> Topology {
        let files = tree(text);
        let mut cpus: Vec<usize> = files
            .keys()
            .filter_map(|path| path.strip_prefix(CPUS)?.strip_prefix("/cpu")?.split('/').next()?.parse().ok())
            .collect();
        cpus.sort_unstable();
        cpus.dedup();
        Topology::read(&|path| files.get(path).cloned(), &cpus)
    }

    pub const VM: &str = include_str!("../../tests/topologies/vm-2.txt");
    pub const ADJACENT: &str = include_str!("../../tests/topologies/adjacent-8.txt");
    pub const APART: &str = include_str!("../../tests/topologies/apart-16.txt");
    pub const TWO_SOCKETS: &str = include_str!("../../tests/topologies/two-sockets-64.txt");
    pub const CCX: &str = include_str!("../../tests/topologies/ccx-32.txt");

    #[test]
    fn hosts_are_told_apart() {
        let words = [VM, ADJACENT, APART, TWO_SOCKETS, CCX].map(|text| host(text).words());
        let of = |s: &str, n: &str, g: &str, c: &str, t: &str| {
            format!("{s}, {n}, {g} that share a last-level cache, {c}, {t} per core")
        };
        assert_eq!(
            words,
            [
                of("1 socket", "1 NUMA node", "1 group", "2 cores", "1 thread"),
                of("1 socket", "1 NUMA node", "1 group", "4 cores", "2 threads"),
                of("1 socket", "1 NUMA node", "1 group", "8 cores", "2 threads"),
                of("2 sockets", "2 NUMA nodes", "2 groups", "32 cores", "2 threads"),
                of("1 socket", "1 NUMA node", "4 groups", "16 cores", "2 threads"),
            ]
        );
    }

    #[test]
    fn first_threads_of_all_cores_come_before_second_ones() {
        assert_eq!(cpus_of(&host(ADJACENT).cores), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(cpus_of(&host(APART).cores), (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn a_host_without_sys_has_a_core_for_each_cpu() {
        let topology = Topology::read(&|_| None, &[3, 5]);
        assert_eq!(
            (topology.cores.len(), cpus_of(&topology.cores), topology.sockets()),
            (2, vec![3, 5], vec![0])
        );
    }

    /// A container may use one thread of a core only, and not CPU 0.
    #[test]
    fn only_allowed_cpus_count() {
        let files = tree(ADJACENT);
        let topology = Topology::read(&|path| files.get(path).cloned(), &[1, 2, 3]);
        let cores: Vec<&[usize]> = topology.cores.iter().map(|c| c.cpus.as_slice()).collect();
        assert_eq!(cores, [&[1][..], &[2, 3]]);
    }

    #[test]
    fn this_host_has_all_its_cpus() {
        let allowed = super::super::allowed_cpus();
        let mut cpus = cpus_of(&Topology::here().cores);
        cpus.sort_unstable();
        assert_eq!(cpus, allowed);
    }
}
