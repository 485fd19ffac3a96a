//! The host of a run, and reasons to doubt figures taken on it. The host is checked before the first step,
//! and the report shows the findings.

mod identity;
mod placement;
#[cfg(test)]
mod recorded;
mod topology;
mod tree;

pub use identity::{Cache, Cpu, Disk};
pub use placement::{Placement, Wanted, place};
pub use topology::Topology;

use crate::error::Error;
use crate::events::Uncounted;
use crate::interrupt::Interrupt;
use crate::procfs::{self, CpuTicks, CpuTimes};
use crate::stats;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: String,
    /// CPUs that the lab may use.
    pub cpus: usize,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The CPU's vendor and numbers.
    #[serde(default)]
    pub identity: Cpu,
    /// The caches of the first CPU.
    #[serde(default)]
    pub caches: Vec<Cache>,
    /// The cores that the lab may use.
    #[serde(default)]
    pub topology: Topology,
    /// The distribution, `None` if /etc/os-release does not name it.
    #[serde(default)]
    pub distribution: Option<String>,
    /// The disks that hold the run and the data of private servers.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// The version that sysbench reports. `None` if the scenario does not use it.
    #[serde(default)]
    pub sysbench: Option<String>,
    /// Whether the host is the guest of a hypervisor.
    pub virtual_machine: bool,
    /// The CPU frequency governor: `performance`, `powersave`…; `None` if the host does not report it.
    pub governor: Option<String>,
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
    /// Examines the host, for about two seconds. `folders` are those that the run writes to, `sysbench` is the
    /// version of sysbench, `uncounted` the reason if no events are counted, `shell` leads to the server if it is on
    /// another host.
    ///
    /// # Errors
    /// [`Error::Interrupted`] on an interrupt.
    pub fn check(
        interrupt: &Interrupt,
        folders: &[&Path],
        sysbench: Option<String>,
        uncounted: Option<&Uncounted>,
        shell: Option<&str>,
    ) -> Result<Self, Error> {
        let before = CpuTicks::now();
        interrupt.sleep(Duration::from_secs(1))?;
        let spent = CpuTicks::now().since(&before);
        let noise = noise(interrupt)?;
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| identity::cpuinfo(&cpuinfo, name);
        let cpus = allowed_cpus();
        let disks = folders.iter().filter_map(|f| identity::disk(&tree::live, &f.canonicalize().ok()?));
        let governor = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        let mut machine = Self {
            cpu: field("model name").unwrap_or_else(|| "unknown CPU".to_owned()),
            cpus: cpus.len(),
            memory_mib: procfs::memory_kib() / 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            virtual_machine: field("flags").is_some_and(|f| f.split(' ').any(|w| w == "hypervisor")),
            identity: Cpu::parse(&cpuinfo),
            caches: identity::caches(&tree::live, cpus.first().copied().unwrap_or(0)),
            topology: Topology::here(),
            distribution: tree::live("/etc/os-release").and_then(|text| identity::distribution(&text)),
            disks: disks.collect(),
            sysbench,
            governor: governor.ok().map(|g| g.trim().to_owned()),
            steal: share(spent.steal, &spent),
            busy: share(spent.capacity - spent.idle - spent.steal, &spent),
            noise,
            pmu: uncounted.is_none(),
            findings: Vec::new(),
        };
        let is_apart =
            shell.is_some() || place(&machine.topology, Wanted::default()).is_ok_and(|p| p.is_apart());
        machine.findings = machine.judge(is_apart, uncounted);
        if let Some(shell) = shell {
            let server = format!(
                "The server is on another host ({shell}). Its CPU times, idle CPU and iowait are from there; what is said of the machine is true of the clients' host."
            );
            machine.findings.insert(0, server);
        }
        Ok(machine)
    }

    /// `is_apart`: whether clients and server have CPUs of their own.
    fn judge(&self, is_apart: bool, uncounted: Option<&Uncounted>) -> Vec<String> {
        let mut found = Vec::new();
        let percent = |v: f64| format!("{:.1}%", v * 100.0);
        if let Some(g) = self.governor.as_deref().filter(|g| *g != "performance") {
            found.push(format!(
                "The clock's governor is {g}: set it to performance (cpupower frequency-set -g performance)."
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
            found.push(format!("Too few CPUs ({}) to keep clients and server apart: they share caches and time, so throughput gains less than the server does.", self.cpus));
        }
        found.extend(uncounted.map(|why| {
            format!(
                "{}: front-end events are modelled from exact counts of what ran, and marked so.",
                why.words()
            )
        }));
        if self.virtual_machine {
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
