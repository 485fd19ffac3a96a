//! The host of a run, and reasons to doubt figures taken on it. The host is checked before the first step,
//! and the report shows the findings.

mod description;
mod identity;
mod placement;
#[cfg(test)]
mod recorded;
mod topology;
mod tree;

pub use description::Description;
pub use identity::{Cpu, Disk};
pub use placement::{Placement, Wanted, place};
pub use topology::Topology;

use crate::error::Error;
use crate::events::Uncounted;
use crate::interrupt::Interrupt;
use crate::procfs::{CpuTicks, CpuTimes};
use crate::stats;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

/// The host of the lab and its clients, and what the server's host is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// CPU, memory and system of the lab's host.
    #[serde(flatten)]
    pub host: Description,
    /// CPU, memory and system of the server's host, if that is another one and a shell reaches it.
    #[serde(default)]
    pub server: Option<Description>,
    /// The disks that hold the run and the data of private servers.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The version that sysbench reports. `None` if the scenario does not use it.
    #[serde(default)]
    pub sysbench: Option<String>,
    /// Share of CPU time that went to other guests.
    pub steal: f64,
    /// Share of CPU time that other programs used.
    pub busy: f64,
    /// Spread of the times that the same short work takes: interquartile range over median.
    pub noise: f64,
    /// Whether perf counts hardware events here.
    pub pmu: bool,
    /// Reasons to doubt the figures, with advice.
    pub findings: Vec<String>,
}

impl Machine {
    /// Examines this host, `host`, for about two seconds. `folders` are those that the run writes to, `sysbench` is
    /// the version of sysbench, `uncounted` the reason if no events are counted, `server` the command of the shell and what
    /// the server's host is, if that is another one.
    ///
    /// # Errors
    /// [`Error::Interrupted`] on an interrupt.
    pub fn check(
        interrupt: &Interrupt,
        host: Description,
        folders: &[&Path],
        sysbench: Option<String>,
        uncounted: Option<&Uncounted>,
        server: Option<&(&str, Option<Description>)>,
    ) -> Result<Self, Error> {
        let before = CpuTicks::now();
        interrupt.sleep(Duration::from_secs(1))?;
        let spent = CpuTicks::now().since(&before);
        let noise = noise(interrupt)?;
        let disks = folders.iter().filter_map(|f| identity::disk(&tree::live, &f.canonicalize().ok()?));
        let mut machine = Self {
            host,
            server: server.and_then(|(_, description)| description.clone()),
            disks: disks.collect(),
            sysbench,
            steal: share(spent.steal, &spent),
            busy: share(spent.capacity - spent.idle - spent.steal, &spent),
            noise,
            pmu: uncounted.is_none(),
            findings: Vec::new(),
        };
        let is_apart =
            server.is_some() || place(&machine.host.topology, Wanted::default()).is_ok_and(|p| p.is_apart());
        machine.findings = machine.judge(is_apart, uncounted);
        if let Some((shell, _)) = server {
            let elsewhere = format!(
                "The server is on another host ({shell}). Its CPU times, idle CPU and iowait are from there; noise, steal, others' CPU and disks are those of the clients' host."
            );
            machine.findings.insert(0, elsewhere);
        }
        Ok(machine)
    }

    /// `is_apart`: whether clients and server have CPUs of their own.
    fn judge(&self, is_apart: bool, uncounted: Option<&Uncounted>) -> Vec<String> {
        let mut found = Vec::new();
        let percent = |v: f64| format!("{:.1}%", v * 100.0);
        let of_server = self.server.as_ref().unwrap_or(&self.host);
        if let Some(g) = of_server.governor.as_deref().filter(|g| *g != "performance") {
            found.push(format!(
                "The clock's governor is {g} on the server's host: set it to performance (cpupower frequency-set -g performance)."
            ));
        }
        if self.steal > 0.01 {
            found.push(format!("Other guests of this host take {} of the CPU time: absolute figures drift; ratios are from windows in turn and stand it.", percent(self.steal)));
        }
        if self.busy > 0.05 {
            found.push(format!(
                "Other programs here use {} of the CPU: end them, or take throughput and latency with care.",
                percent(self.busy)
            ));
        }
        if self.noise > 0.05 {
            found.push(format!(
                "The same work takes times that differ by {} (middle half): take more pairs.",
                percent(self.noise)
            ));
        }
        if !is_apart {
            found.push(format!("Too few CPUs ({}) to keep clients and server apart: they share caches and time, so throughput gains less than the server does.", self.host.cpus));
        }
        found.extend(uncounted.map(|why| {
            format!(
                "{}: front-end events are modelled from exact counts of what ran, and marked so.",
                why.words()
            )
        }));
        if of_server.virtual_machine {
            found.push("A virtual machine: only the CPU time of other guests is visible.".to_owned());
        }
        found
    }
}

fn share(part: f64, of: &CpuTimes) -> f64 {
    if of.capacity > 0.0 { (part / of.capacity).clamp(0.0, 1.0) } else { 0.0 }
}

/// Returns the CPUs that this process may run on.
fn allowed_cpus() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
}

/// Measures the spread of the times that the same arithmetic takes (see [`Machine::noise`]): 60 rounds of
/// about 10 ms. After one second the measurement ends, but not before 20 rounds.
fn noise(interrupt: &Interrupt) -> Result<f64, Error> {
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_secs(1);
    while times.len() < 20 || (times.len() < 60 && Instant::now() < until) {
        interrupt.check()?;
        let begin = Instant::now();
        let mut x = std::hint::black_box(1_u64);
        for _ in 0..5_000_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        std::hint::black_box(x);
        times.push(begin.elapsed().as_secs_f64());
    }
    let q = |share| stats::quantile(&times, share).unwrap_or(0.0);
    Ok((q(0.75) - q(0.25)) / q(0.5).max(1e-9))
}
