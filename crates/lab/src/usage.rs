//! The CPU time of a server: of one process, or of a family of processes.

use crate::error::Error;
use crate::host::Host;
use crate::procfs;
use crate::target::Target;
use std::collections::BTreeMap;

/// CPU seconds since the processes began.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTime {
    /// All of it, of all threads at one moment, those that have ended included. Exact on this host; on another
    /// one a sum of whole clock ticks.
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
    host: Host,
    pid: i32,
    is_family: bool,
    /// The last value of each process, by its pid and when it began.
    seen: BTreeMap<(i32, u64), CpuTime>,
}

impl Usage {
    /// Returns `None` if the server is on another host that no shell reaches.
    pub fn of(server: &dyn Target, host: &Host) -> Option<Self> {
        let (pid, is_family) = (server.pid()?, server.is_family());
        Some(Self { host: host.clone(), pid, is_family, seen: BTreeMap::new() })
    }

    /// Returns the processes on this host that exist now.
    pub fn processes(&self) -> Vec<i32> {
        if self.host.is_here() { self.all() } else { Vec::new() }
    }

    fn all(&self) -> Vec<i32> {
        if self.is_family { procfs::family(self.pid) } else { vec![self.pid] }
    }

    /// Returns the CPU time until now.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell to the server's host fails.
    pub fn read(&mut self) -> Result<CpuTime, Error> {
        for pid in self.all() {
            // A process may end between the listing and this read.
            if let Some((stat, all)) = self.host.process(pid)? {
                self.seen.insert((pid, stat.begun), CpuTime { all, user: stat.user, system: stat.system });
            }
        }
        Ok(self.seen.values().fold(CpuTime::default(), |sum, time| CpuTime {
            all: sum.all + time.all,
            user: sum.user + time.user,
            system: sum.system + time.system,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Commands;
    use crate::interrupt::Interrupt;
    use std::process::Command;

    /// A child that has ended is still in the sum.
    #[test]
    fn the_time_of_a_family_never_falls() {
        let me = i32::try_from(std::process::id()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let commands = Commands::new(dir.path(), Interrupt::default()).unwrap();
        let of =
            |is_family| Usage { host: Host::new(&commands, None), pid: me, is_family, seen: BTreeMap::new() };
        let (mut usage, mut alone) = (of(true), of(false));
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let of_child = || procfs::process_cpu(i32::try_from(child.id()).unwrap()).unwrap();
        while of_child() < 0.2 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (family, without) = (usage.read().unwrap().all, alone.read().unwrap().all);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.read().unwrap().all >= family);
        assert!(usage.read().unwrap().all - alone.read().unwrap().all >= 0.2, "{family} {without}");
    }
}
