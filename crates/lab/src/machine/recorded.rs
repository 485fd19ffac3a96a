//! Topologies of real machines, and how server and clients are placed on them. `tests/topologies/README.md` says
//! where each was recorded.

use super::placement::{Placement, Wanted, place};
use super::topology::tests::host;
use super::topology::{Core, Topology, cpus_of};
use super::tree::ranges;
use std::collections::BTreeSet;

/// A machine of two sockets.
struct Machine {
    text: &'static str,
    /// NUMA nodes with CPUs, last-level caches, cores, threads of a core.
    has: [usize; 4],
    /// The server's CPUs by default, which are those of one socket.
    server: &'static str,
    /// The same with one thread of each core. Empty if the cores have one thread.
    smt_off: &'static str,
    /// The server's CPUs on both sockets.
    both: &'static str,
}

macro_rules! machine {
    ($name:literal, $has:expr, $server:literal, $smt_off:literal, $both:literal) => {
        Machine {
            text: include_str!(concat!("../../tests/topologies/", $name, ".txt")),
            has: $has,
            server: $server,
            smt_off: $smt_off,
            both: $both,
        }
    };
}

const MACHINES: [Machine; 11] = [
    machine!("skylake-sp-80", [2, 2, 40, 2], "0-19,40-59", "0-19", "0-9,20-29,40-49,60-69"),
    // A node has every second or third core of its socket.
    machine!(
        "skylake-sp-snc-80",
        [4, 2, 40, 2],
        "0-19,40-59",
        "0-19",
        "0-2,5-6,10-12,15-16,20-22,25-26,30-32,35-36,40-42,45-46,50-52,55-56,60-62,65-66,70-72,75-76"
    ),
    // Neighbours in number are in different sockets.
    machine!(
        "skylake-sp-interleaved-112",
        [4, 2, 56, 2],
        "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58,60,62,64,66,68,70,72,\
         74,76,78,80,82,84,86,88,90,92,94,96,98,100,102,104,106,108,110",
        "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54",
        "0-1,4-5,8-9,12-13,16-17,20-21,24-25,28-29,32-33,36-37,40-41,44-45,48-49,52-53,56-57,60-61,64-65,68-69,72-73,\
         76-77,80-81,84-85,88-89,92-93,96-97,100-101,104-105,108-109"
    ),
    machine!("ice-lake-sp-144", [2, 2, 72, 2], "0-35,72-107", "0-35", "0-17,36-53,72-89,108-125"),
    machine!("sapphire-rapids-160", [1, 2, 80, 2], "0-39,80-119", "0-39", "0-19,40-59,80-99,120-139"),
    machine!("sapphire-rapids-snc-64", [4, 2, 64, 1], "0-31", "", "0-15,32-47"),
    machine!("zen2-nps4-256", [8, 32, 128, 2], "0-63,128-191", "0-63", "0-31,64-95,128-159,192-223"),
    machine!("zen2-ccx3-48", [8, 16, 48, 1], "0-23", "", "0-11,24-35"),
    machine!("zen3-nps4-256", [8, 16, 128, 2], "0-63,128-191", "0-63", "0-31,64-95,128-159,192-223"),
    machine!("zen4-nps4-192", [8, 24, 192, 1], "0-95", "", "0-47,96-143"),
    machine!("zen4-l3-256", [16, 16, 128, 2], "0-63,128-191", "0-63", "0-31,64-95,128-159,192-223"),
];

/// Places server and clients, and checks that no core is divided between them, and that the clients have all
/// that the server's cores leave.
fn placed(topology: &Topology, smt: Option<bool>, sockets: Option<usize>) -> Placement {
    let placement = place(topology, Wanted { smt, sockets }).unwrap();
    let servers = of_server(topology, &placement);
    let clients: Vec<Core> = topology.cores.iter().filter(|core| !servers.contains(core)).cloned().collect();
    assert_eq!(placement.clients, cpus_of(&clients));
    assert!(placement.is_apart() && !placement.clients.is_empty());
    placement
}

/// Returns the cores that the server uses.
fn of_server(topology: &Topology, placement: &Placement) -> Vec<Core> {
    let is_used = |core: &&Core| core.cpus.iter().any(|cpu| placement.server.contains(cpu));
    topology.cores.iter().filter(is_used).cloned().collect()
}

/// Returns the values that cores of the server have in common with cores of the clients.
fn shared<T: Ord + Clone>(topology: &Topology, placement: &Placement, level: fn(&Core) -> T) -> usize {
    let servers = of_server(topology, placement);
    let (ours, theirs): (Vec<_>, Vec<_>) = topology.cores.iter().partition(|core| servers.contains(core));
    let of = |cores: Vec<&Core>| cores.into_iter().map(level).collect::<BTreeSet<T>>();
    of(ours).intersection(&of(theirs)).count()
}

#[test]
fn topologies_are_read_as_they_are() {
    for machine in &MACHINES {
        let topology = host(machine.text);
        let count =
            |level: fn(&Core) -> usize| topology.cores.iter().map(level).collect::<BTreeSet<_>>().len();
        let found = [count(|c| c.node), count(|c| c.cache), topology.cores.len(), topology.threads()];
        assert_eq!((found, topology.sockets()), (machine.has, vec![0, 1]), "{}", machine.text);
    }
}

#[test]
fn the_server_has_a_socket_and_the_clients_the_other() {
    for machine in &MACHINES {
        let topology = host(machine.text);
        let by_default = placed(&topology, None, None);
        assert_eq!(ranges(&by_default.server), machine.server, "{}", machine.text);
        assert_eq!(placed(&topology, None, Some(1)), by_default, "{}", machine.text);
        assert_eq!(shared(&topology, &by_default, |c| c.socket), 0, "{}", machine.text);
        assert_eq!(by_default.server.len(), by_default.clients.len(), "{}", machine.text);
    }
}

#[test]
fn smt_off_leaves_one_thread_of_each_core_to_the_server() {
    for machine in &MACHINES {
        let topology = host(machine.text);
        if topology.threads() == 1 {
            let refused = place(&topology, Wanted { smt: Some(false), sockets: None }).unwrap_err();
            assert!(refused.contains("one thread per core"), "{refused}");
            continue;
        }
        assert_eq!(placed(&topology, Some(true), None), placed(&topology, None, None), "{}", machine.text);
        for sockets in [None, Some(1), Some(2)] {
            let (on, off) = (placed(&topology, Some(true), sockets), placed(&topology, Some(false), sockets));
            assert_eq!(of_server(&topology, &on), of_server(&topology, &off), "{}", machine.text);
            assert_eq!((on.server.len(), on.clients), (2 * off.server.len(), off.clients.clone()));
            // The first threads of all cores come first, so any number of CPUs is on as many cores.
            assert!(on.server.starts_with(&off.server), "{}", machine.text);
            if sockets != Some(2) {
                assert_eq!(ranges(&off.server), machine.smt_off, "{}", machine.text);
            }
        }
    }
}

/// On both sockets, and on a host that has one of them, the cut lies between nodes, else between caches.
#[test]
fn both_sockets_are_halved_where_nodes_or_caches_end() {
    for machine in &MACHINES {
        let topology = host(machine.text);
        let both = placed(&topology, None, Some(2));
        assert_eq!(ranges(&both.server), machine.both, "{}", machine.text);
        assert_eq!(shared(&topology, &both, |c| c.socket), 2, "{}", machine.text);
        let [nodes, caches, ..] = machine.has;
        if nodes > 2 {
            assert_eq!(shared(&topology, &both, |c| c.node), 0, "{}", machine.text);
        }
        if caches > 2 {
            assert_eq!(shared(&topology, &both, |c| c.cache), 0, "{}", machine.text);
        }
        let first = Topology { cores: topology.cores.into_iter().filter(|c| c.socket == 0).collect() };
        let alone = placed(&first, None, None);
        let of_first: Vec<usize> =
            both.server.iter().copied().filter(|cpu| cpus_of(&first.cores).contains(cpu)).collect();
        assert_eq!(alone.server, of_first, "{}", machine.text);
    }
    let refused = place(&host(MACHINES[0].text), Wanted { smt: None, sockets: Some(3) }).unwrap_err();
    assert_eq!(refused, "this host has 2 sockets, not 3");
}
