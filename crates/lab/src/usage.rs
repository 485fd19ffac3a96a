//! The CPU time of a server: of one process, or of a family of processes.

use crate::procfs;
use crate::target::Target;
use std::collections::BTreeMap;

/// CPU seconds since the processes began.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTime {
    /// Exact, of all threads that live.
    pub all: f64,
    /// User seconds, by the kernel's coarse split.
    pub user: f64,
    /// System seconds, likewise.
    pub system: f64,
}

/// Sums the CPU time of a server. A process that ends keeps its last value in the sum, which therefore never
/// falls. What it used since the last reading is lost.
#[derive(Debug)]
pub struct Usage {
    pid: i32,
    is_family: bool,
    /// The last value of each process, by its pid and when it began.
    seen: BTreeMap<(i32, u64), CpuTime>,
}

impl Usage {
    /// Returns `None` if the server is on another host.
    pub fn of(server: &dyn Target) -> Option<Self> {
        Some(Self { pid: server.pid()?, is_family: server.is_family(), seen: BTreeMap::new() })
    }

    /// Returns the processes that exist now.
    pub fn processes(&self) -> Vec<i32> {
        if self.is_family { procfs::family(self.pid) } else { vec![self.pid] }
    }

    /// Returns the CPU time until now.
    pub fn read(&mut self) -> CpuTime {
        for pid in self.processes() {
            // A process may end between the listing and this read.
            if let (Some(stat), Some(all)) = (procfs::process_stat(pid), procfs::process_cpu(pid)) {
                self.seen.insert((pid, stat.begun), CpuTime { all, user: stat.user, system: stat.system });
            }
        }
        self.seen.values().fold(CpuTime::default(), |sum, time| CpuTime {
            all: sum.all + time.all,
            user: sum.user + time.user,
            system: sum.system + time.system,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A child that has ended is still in the sum.
    #[test]
    fn the_time_of_a_family_never_falls() {
        let me = i32::try_from(std::process::id()).unwrap();
        let mut usage = Usage { pid: me, is_family: true, seen: BTreeMap::new() };
        let mut alone =
            Usage { is_family: false, ..Usage { pid: me, is_family: true, seen: BTreeMap::new() } };
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let of_child = || procfs::process_cpu(i32::try_from(child.id()).unwrap()).unwrap();
        while of_child() < 0.2 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (family, without) = (usage.read().all, alone.read().all);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.read().all >= family);
        assert!(usage.read().all - alone.read().all >= 0.2, "{family} {without}");
    }
}
