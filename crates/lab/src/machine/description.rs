//! What a host is: its CPU, memory and system.

use super::identity::{self, Cache, Cpu};
use super::topology::Topology;
use super::tree::{self, Read, list};
use crate::error::Error;
use crate::host::Host;
use serde::{Deserialize, Serialize};

/// The files that [`Description::read`] reads, as patterns of the shell.
const FILES: &str = "/proc/cpuinfo /proc/meminfo /etc/os-release /proc/sys/kernel/osrelease \
    /sys/devices/system/cpu/online /sys/devices/system/cpu/smt/active \
    /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor \
    /sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list \
    /sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id \
    /sys/devices/system/cpu/cpu0/cache/index[0-9]/level /sys/devices/system/cpu/cpu0/cache/index[0-9]/type \
    /sys/devices/system/cpu/cpu0/cache/index[0-9]/size \
    /sys/devices/system/cpu/cpu[0-9]*/cache/index[0-9]/shared_cpu_list \
    /sys/devices/system/node/online /sys/devices/system/node/node[0-9]*/cpulist";

/// What a host is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// The CPU's name.
    pub cpu: String,
    /// CPUs that the lab may use; of the host of a server that a shell reaches, all that are online.
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
    /// The cores of these CPUs.
    #[serde(default)]
    pub topology: Topology,
    /// Whether both threads of cores are in use, also by programs on CPUs that the lab may not use.
    #[serde(default)]
    pub smt: bool,
    /// The distribution, `None` if /etc/os-release does not name it.
    #[serde(default)]
    pub distribution: Option<String>,
    /// Whether the host is the guest of a hypervisor.
    pub virtual_machine: bool,
    /// The CPU frequency governor: `performance`, `powersave`…; `None` if the host does not report it.
    pub governor: Option<String>,
}

impl Description {
    /// Describes this host.
    pub fn here() -> Self {
        Self::read(&tree::live, &super::allowed_cpus())
    }

    /// Describes the host that a shell reaches, by one command. `None` if that host lets no file be read.
    ///
    /// # Errors
    /// [`Error::Shell`] if the shell fails.
    pub fn there(host: &Host) -> Result<Option<Self>, Error> {
        let files = tree::parse(&host.lines(FILES)?);
        let read = |path: &str| files.get(path).cloned();
        let online = read("/sys/devices/system/cpu/online").map(|l| list(&l)).unwrap_or_default();
        Ok((!files.is_empty()).then(|| Self::read(&read, &online)))
    }

    fn read(read: Read<'_>, cpus: &[usize]) -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| identity::cpuinfo(&cpuinfo, name);
        let memory = read("/proc/meminfo").map_or(0, |text| crate::procfs::memory_kib(&text));
        Self {
            cpu: field("model name").unwrap_or_else(|| "unknown CPU".to_owned()),
            cpus: cpus.len(),
            memory_mib: memory / 1024,
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            identity: Cpu::parse(&cpuinfo),
            caches: identity::caches(read, cpus.first().copied().unwrap_or(0)),
            topology: Topology::read(read, cpus),
            smt: read("/sys/devices/system/cpu/smt/active").as_deref() == Some("1"),
            distribution: read("/etc/os-release").and_then(|text| identity::distribution(&text)),
            virtual_machine: field("flags").is_some_and(|f| f.split(' ').any(|w| w == "hypervisor")),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        }
    }

    /// Describes the CPUs and the memory in words.
    pub fn words(&self) -> String {
        format!(
            "{} ({}), {} CPUs, {} GiB",
            self.cpu,
            self.identity.words(),
            self.cpus,
            self.memory_mib / 1024
        )
    }

    /// Describes the caches in words. Empty if none are known.
    pub fn cache_words(&self) -> String {
        self.caches.iter().map(Cache::words).collect::<Vec<_>>().join(", ")
    }

    /// Describes distribution and kernel in words.
    pub fn system(&self) -> String {
        let distribution = self.distribution.as_deref().unwrap_or("unknown distribution");
        format!("{distribution}, Linux {}", self.kernel)
    }
}
