//! CPU times as the kernel reports them: of a target, of its threads, of the host.

use crate::Error;
use engine::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The unit of times in /proc, in seconds (`USER_HZ`): a hundredth of a second on x86, whatever the kernel's
/// own tick.
const TICK: f64 = 0.01;

/// Reads a file of /proc.
fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|source| Error::Kernel { path: path.to_owned(), source })
}

fn unknown(path: &str) -> Error {
    Error::Kernel { path: path.to_owned(), source: std::io::ErrorKind::InvalidData.into() }
}

/// Returns the seconds that a process has spent in user mode so far. The kernel splits CPU time into user and
/// system time coarsely.
pub fn user_seconds(pid: Pid) -> Result<f64, Error> {
    let path = format!("/proc/{pid}/stat");
    user_ticks(&read(&path)?).map(|t| t * TICK).ok_or_else(|| unknown(&path))
}

fn user_ticks(stat: &str) -> Option<f64> {
    tracee::stat_field(stat, 14).map(|ticks| ticks as f64)
}

/// Returns the seconds in which the host's CPUs had nothing to do so far, summed over all CPUs. Waiting for
/// I/O is included.
pub fn host_idle_seconds() -> Result<f64, Error> {
    let path = "/proc/stat";
    idle_ticks(&read(path)?).map(|t| t * TICK).ok_or_else(|| unknown(path))
}

fn idle_ticks(stat: &str) -> Option<f64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().skip(3);
    let (idle, waiting): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(idle + waiting)
}

/// Returns the number of CPUs that the host has switched on, at least 1.
pub fn host_cpus() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "));
    (cpus.count() as f64).max(1.0)
}

/// Returns the number of CPUs that the target can use at once. This is the smallest of three numbers: the
/// CPUs on which its main thread may run, the quotas of its control groups, and the host's CPUs.
pub fn capacity(pid: Pid) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed:")).map_or(f64::MAX, bits);
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = groups.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or_default();
    let quota = Path::new("/sys/fs/cgroup")
        .join(group)
        .ancestors()
        .take_while(|a| a.starts_with("/sys/fs/cgroup"))
        .fold(f64::MAX, |least, folder| {
            let limit = fs::read_to_string(folder.join("cpu.max")).ok();
            limit.and_then(|text| share(&text)).unwrap_or(f64::MAX).min(least)
        });
    allowed.min(quota).min(host_cpus())
}

/// Returns the number of set bits of a mask like `ff,00000003`; at least 1, since a thread can run somewhere.
fn bits(mask: &str) -> f64 {
    f64::from(mask.chars().filter_map(|c| c.to_digit(16)).map(u32::count_ones).sum::<u32>().max(1))
}

/// Returns the number of CPUs that a quota like `150000 100000` allows; `None` for `max`.
fn share(cpu_max: &str) -> Option<f64> {
    let (quota, period) = cpu_max.trim().split_once(' ')?;
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then_some(quota / period)
}

/// Returns, by thread id, the nanoseconds in which each thread ran or waited for a CPU. The rest of its time
/// it slept.
pub fn awake(pid: Pid) -> BTreeMap<String, f64> {
    let folders = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let threads = folders.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((thread.file_name().into_string().ok()?, awake_ns(&text)?))
    });
    threads.collect()
}

fn awake_ns(schedstat: &str) -> Option<f64> {
    let mut fields = schedstat.split_ascii_whitespace();
    let (ran, waited): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(ran + waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_parsed() {
        let stat = "7 (odd) name) S 1 2 3 4 5 6 7 8 9 10 42 17 0 0 20 0 1 0 100";
        assert_eq!(user_ticks(stat), Some(42.0));
        assert_eq!(user_ticks("7 (x"), None);
        assert_eq!(idle_ticks("cpu  10 1 5 70 3 0 0 9 0 0\ncpu0 1 2 3\n"), Some(73.0));
        assert_eq!(bits("ff,00000003"), 10.0);
        assert_eq!(bits("\t3"), 2.0);
        assert_eq!(share("150000 100000\n"), Some(1.5));
        assert_eq!((share("max 100000\n"), share("1 0"), share("")), (None, None, None));
        assert_eq!(awake_ns("100 20 3\n"), Some(120.0));
    }

    #[test]
    fn cpu_times_of_this_process_can_be_read() {
        let me = Pid(std::process::id().cast_signed());
        assert!(user_seconds(me).unwrap() >= 0.0 && host_idle_seconds().unwrap() > 0.0);
        assert!(capacity(me) > 0.0 && capacity(me) <= host_cpus());
        assert!(!awake(me).is_empty());
        assert!(user_seconds(Pid(i32::MAX)).is_err());
    }
}
