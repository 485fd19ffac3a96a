//! How many CPUs a process can use.

use crate::Pid;
use std::fs;
use std::path::Path;

/// Returns the number of CPUs that the host has switched on, at least 1.
#[must_use]
pub fn host_cpus() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpus = stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu "));
    (cpus.count() as f64).max(1.0)
}

/// Returns the number of CPUs that the target can use at once. This is the smallest of three numbers: the
/// CPUs on which its main thread may run, the quotas of its control groups, and the host's CPUs.
#[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_quotas_are_parsed() {
        assert_eq!(bits("ff,00000003"), 10.0);
        assert_eq!(bits("\t3"), 2.0);
        assert_eq!(share("150000 100000\n"), Some(1.5));
        assert_eq!((share("max 100000\n"), share("1 0"), share("")), (None, None, None));
    }

    #[test]
    fn this_process_can_use_some_of_the_hosts_cpus() {
        let me = Pid(std::process::id().cast_signed());
        assert!(capacity(me) > 0.0 && capacity(me) <= host_cpus());
    }
}
