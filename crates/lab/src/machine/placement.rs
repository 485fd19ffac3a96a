//! Which CPUs the server gets and which the clients get. Pure.
//!
//! Server and clients never share a core, since threads of one core compete for its front end. Where they
//! can, they do not share a last-level cache or a socket either.

use super::topology::{Core, Topology, cpus_of};
use super::tree::ranges;
use serde::{Deserialize, Serialize};

/// CPUs of the server and of everything else.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// CPUs of the server: first a CPU of each core, then the second threads.
    pub server: Vec<usize>,
    /// CPUs of the clients, in the same order. Equal to `server` if there are too few to divide.
    pub clients: Vec<usize>,
}

/// The properties of the server's CPUs that the run varies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// Whether the server uses both threads of each core. `None`: as the host is.
    pub smt: Option<bool>,
    /// How many sockets the server uses. `None`: half of the cores, wherever they are.
    pub sockets: Option<usize>,
}

/// Divides the cores. Returns a message for the user if the host has no such cores.
///
/// The server gets half of the cores. The cut lies between sockets, else between nodes, else between
/// last-level caches, if one of these is close to the middle. With `sockets`, the server gets this many
/// sockets and the clients the others; of all sockets, it gets half of the cores of each. Fewer than four
/// CPUs, or fewer than two cores, are shared.
pub fn place(topology: &Topology, wanted: Wanted) -> Result<Placement, String> {
    let cores = &topology.cores;
    if wanted.smt.is_some() && topology.threads() < 2 {
        return Err("this host has one thread per core, so --smt has nothing to vary".to_owned());
    }
    let sockets = topology.sockets();
    let (mut server, clients) = match wanted.sockets {
        Some(n) if n == 0 || n > sockets.len() => {
            return Err(format!("this host has {} sockets, not {n}", sockets.len()));
        }
        Some(n) if n < sockets.len() => {
            let mine = sockets.get(..n).unwrap_or_default();
            cores.iter().cloned().partition(|c| mine.contains(&c.socket))
        }
        Some(_) => halves_of_each(cores, &sockets),
        None => half(cores),
    };
    if wanted.smt == Some(false) {
        for core in &mut server {
            core.cpus.truncate(1);
        }
    }
    if clients.is_empty() {
        let server = cpus_of(&server);
        return Ok(Placement { clients: server.clone(), server });
    }
    Ok(Placement { server: cpus_of(&server), clients: cpus_of(&clients) })
}

impl Placement {
    /// Returns whether server and clients have CPUs of their own.
    pub fn is_apart(&self) -> bool {
        self.server.iter().all(|c| !self.clients.contains(c))
    }

    /// Describes the placement in words.
    pub fn words(&self) -> String {
        if self.is_apart() {
            format!("server on CPUs {}, clients on {}", ranges(&self.server), ranges(&self.clients))
        } else {
            format!("server and clients share CPUs {}", ranges(&self.server))
        }
    }
}

/// A level of the topology that two cores may share.
type Shared = fn(&Core) -> (usize, usize);

fn half(cores: &[Core]) -> (Vec<Core>, Vec<Core>) {
    let threads: usize = cores.iter().map(|c| c.cpus.len()).sum();
    if threads < 4 || cores.len() < 2 {
        return (cores.to_vec(), Vec::new());
    }
    let middle = cores.len() / 2;
    // A cut at most a sixth of all cores away from the middle still leaves both sides enough.
    let near = cores.len() / 6;
    let keys: [Shared; 3] = [|c| (c.socket, 0), |c| (c.socket, c.node), |c| (c.socket, c.cache)];
    let is_edge = |at: usize, key: Shared| {
        let key_at = |i: usize| cores.get(i).map(key);
        at > 0 && at < cores.len() && key_at(at - 1) != key_at(at)
    };
    let away = || (0..=near).flat_map(|d| [middle.saturating_sub(d), middle + d]);
    let cut = keys.iter().find_map(|key| away().find(|at| is_edge(*at, *key))).unwrap_or(middle);
    let (server, clients) = cores.split_at(cut);
    (server.to_vec(), clients.to_vec())
}

fn halves_of_each(cores: &[Core], sockets: &[usize]) -> (Vec<Core>, Vec<Core>) {
    let (mut server, mut clients) = (Vec::new(), Vec::new());
    for socket in sockets {
        let mine: Vec<Core> = cores.iter().filter(|c| c.socket == *socket).cloned().collect();
        let (a, b) = half(&mine);
        server.extend(a);
        clients.extend(b);
    }
    (server, clients)
}

#[cfg(test)]
mod tests {
    use super::super::topology::tests::{ADJACENT, APART, CCX, TWO_SOCKETS, VM, host};
    use super::*;

    fn placed(text: &str, smt: Option<bool>, sockets: Option<usize>) -> String {
        place(&host(text), Wanted { smt, sockets }).map_or_else(|e| e, |p| p.words())
    }

    #[test]
    fn server_and_clients_share_no_core() {
        for text in [ADJACENT, APART, TWO_SOCKETS, CCX] {
            let topology = host(text);
            let placement = place(&topology, Wanted::default()).unwrap();
            assert!(placement.is_apart());
            for core in &topology.cores {
                let mine = core.cpus.iter().filter(|c| placement.server.contains(c)).count();
                assert!(mine == 0 || mine == core.cpus.len(), "{placement:?} divides {core:?}");
            }
        }
    }

    #[test]
    fn halves_follow_sockets_and_caches_not_numbers() {
        assert_eq!(placed(VM, None, None), "server and clients share CPUs 0-1");
        assert_eq!(placed(ADJACENT, None, None), "server on CPUs 0-3, clients on 4-7");
        assert_eq!(placed(APART, None, None), "server on CPUs 0-3,8-11, clients on 4-7,12-15");
        assert_eq!(placed(TWO_SOCKETS, None, None), "server on CPUs 0-15,32-47, clients on 16-31,48-63");
        assert_eq!(placed(CCX, None, None), "server on CPUs 0-7,16-23, clients on 8-15,24-31");
    }

    /// Three core complexes have no edge in the middle: the cut moves to the nearest edge.
    #[test]
    fn a_cut_near_the_middle_moves_to_the_edge_of_a_cache() {
        let three = "cores 0 1 2 3 4 5 6 7 8\ncaches 0-3 4-5 6-8\nnodes 0-8\nsockets 0-8\n";
        assert_eq!(placed(three, None, None), "server on CPUs 0-3, clients on 4-8");
        let far = "cores 0 1 2 3 4 5 6 7 8\ncaches 0 1-8\nnodes 0-8\nsockets 0-8\n";
        assert_eq!(placed(far, None, None), "server on CPUs 0-3, clients on 4-8");
    }

    #[test]
    fn without_smt_the_server_has_one_thread_of_each_core() {
        assert_eq!(placed(ADJACENT, Some(false), None), "server on CPUs 0,2, clients on 4-7");
        assert_eq!(placed(APART, Some(false), None), "server on CPUs 0-3, clients on 4-7,12-15");
        assert_eq!(placed(APART, Some(true), None), placed(APART, None, None));
        assert!(placed(VM, Some(false), None).contains("one thread per core"));
    }

    #[test]
    fn sockets_are_given_whole_or_all_of_them_in_halves() {
        assert_eq!(placed(TWO_SOCKETS, None, Some(1)), "server on CPUs 0-15,32-47, clients on 16-31,48-63");
        assert_eq!(
            placed(TWO_SOCKETS, None, Some(2)),
            "server on CPUs 0-7,16-23,32-39,48-55, clients on 8-15,24-31,40-47,56-63"
        );
        assert_eq!(placed(CCX, None, Some(2)), "this host has 1 sockets, not 2");
    }

    /// Two threads of one core are not divided, though they are four with another core's two.
    #[test]
    fn few_cpus_are_shared() {
        assert_eq!(
            placed("cores 0-1\ncaches 0-1\nnodes 0-1\nsockets 0-1", None, None),
            "server and clients share CPUs 0-1"
        );
        assert_eq!(
            placed("cores 0-3\ncaches 0-3\nnodes 0-3\nsockets 0-3", None, None),
            "server and clients share CPUs 0-3"
        );
        assert_eq!(
            placed("cores 0-1 2-3\ncaches 0-3\nnodes 0-3\nsockets 0-3", None, None),
            "server on CPUs 0-1, clients on 2-3"
        );
    }
}
