//! The CPU time of a server: of one process, or of a family of processes.

use crate::error::Error;
use crate::host::Host;
use crate::procfs::{self, Spent, Stat};
use crate::target::Target;
use std::collections::BTreeMap;

/// CPU seconds since the processes began.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTime {
    /// Of all threads, counted in nanoseconds.
    pub all: f64,
    /// User seconds, by the kernel's coarse split.
    pub user: f64,
    /// System seconds, likewise.
    pub system: f64,
}

impl CpuTime {
    /// Returns the mean of two readings.
    pub fn midpoint(&self, other: &Self) -> Self {
        Self {
            all: f64::midpoint(self.all, other.all),
            user: f64::midpoint(self.user, other.user),
            system: f64::midpoint(self.system, other.system),
        }
    }
}

/// Sums the CPU time of a server. A process that ends keeps its last value in the sum, as does a thread where
/// threads are counted, so the sum never falls. What it used since the last reading is lost.
#[derive(Debug)]
pub struct Usage {
    host: Host,
    pid: i32,
    is_family: bool,
    /// The last value of each process, by its pid and when it began.
    seen: BTreeMap<(i32, u64), Seen>,
}

/// What is known of one process.
#[derive(Default, Debug)]
struct Seen {
    time: CpuTime,
    /// The last value of each thread, where threads are counted.
    threads: BTreeMap<i32, f64>,
    /// The time of ended threads whose ids have gone to others.
    ended: f64,
}

impl Seen {
    fn update(&mut self, stat: &Stat, spent: Spent) {
        let all = match spent {
            Spent::Clock(all) => all,
            Spent::Threads(threads) => {
                for (tid, now) in threads {
                    let before = self.threads.insert(tid, now).unwrap_or(0.0);
                    self.ended += if now < before { before } else { 0.0 };
                }
                self.ended + self.threads.values().sum::<f64>()
            }
        };
        self.time = CpuTime { all, user: stat.user, system: stat.system };
    }
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
            if let Some((stat, spent)) = self.host.process(pid)? {
                self.seen.entry((pid, stat.begun)).or_default().update(&stat, spent);
            }
        }
        Ok(self.seen.values().fold(CpuTime::default(), |sum, Seen { time, .. }| CpuTime {
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

    #[test]
    fn threads_that_have_ended_stay_in_the_sum() {
        let stat = Stat { begun: 1, user: 0.0, system: 0.0 };
        let mut seen = Seen::default();
        let mut sum = |threads: &[(i32, f64)]| {
            seen.update(&stat, Spent::Threads(threads.to_vec()));
            seen.time.all
        };
        assert_eq!(sum(&[(1, 5.0), (2, 3.0)]), 8.0);
        assert_eq!(sum(&[(1, 6.0)]), 9.0);
        // Another thread has the id.
        assert_eq!(sum(&[(1, 6.0), (2, 0.5)]), 9.5);
        assert_eq!(sum(&[(1, 6.0), (2, 1.5)]), 10.5);
    }

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
        while of_child() < 0.25 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let (family, without) = (usage.read().unwrap().all, alone.read().unwrap().all);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(usage.read().unwrap().all >= family);
        assert!(usage.read().unwrap().all - alone.read().unwrap().all >= 0.2, "{family} {without}");
    }
}
