//! CPU time, as the kernel reports it in /proc.

use std::fs;

/// CPU time of the whole machine, in seconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct CpuTimes {
    /// CPUs were idle. Waiting for a disk counts as idle.
    pub idle: f64,
    /// The hypervisor ran other guests.
    pub steal: f64,
    /// All CPU time.
    pub capacity: f64,
}

impl CpuTimes {
    /// Returns the time spent since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            idle: (self.idle - before.idle).max(0.0),
            steal: (self.steal - before.steal).max(0.0),
            capacity: (self.capacity - before.capacity).max(0.0),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks per second are few")]
fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second().max(1) as f64
}

/// Reads the machine's CPU time from the first line of /proc/stat. Zeros if the file cannot be read.
pub fn cpu_times() -> CpuTimes {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    parse_cpu_times(&stat, ticks_per_second())
}

fn parse_cpu_times(stat: &str, hertz: f64) -> CpuTimes {
    let line = stat.lines().next().unwrap_or_default();
    // The fields are: user nice system idle iowait irq softirq steal. The guest times behind them are part of
    // the first two already.
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|w| w.parse::<f64>().ok())
        .map(|t| t / hertz)
        .collect();
    let at = |i: usize| ticks.get(i).copied().unwrap_or(0.0);
    CpuTimes { idle: at(3) + at(4), steal: at(7), capacity: ticks.iter().sum() }
}

/// Returns the CPU seconds of a process: exact, as the sum over its threads' schedstat. Threads that have
/// ended are not included. `None` if the process is gone.
pub fn process_cpu(pid: i32) -> Option<f64> {
    let mut nanoseconds = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        // A thread may end between the listing and this read.
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        nanoseconds += text.split(' ').next().and_then(|w| w.parse::<f64>().ok()).unwrap_or(0.0);
    }
    Some(nanoseconds / 1e9)
}

/// Returns the user and system CPU seconds of a process, in the kernel's coarse split.
pub fn process_ticks(pid: i32) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in the second field may hold anything. The text behind its last parenthesis is regular.
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace().skip(11).map(|w| w.parse::<f64>().unwrap_or(0.0));
    let hertz = ticks_per_second();
    Some((fields.next()? / hertz, fields.next()? / hertz))
}

/// Returns whether a process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Returns the memory of the machine in KiB, or 0 if it cannot be read.
pub fn memory_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    line.and_then(|l| l.split_whitespace().next()).and_then(|w| w.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_time_is_not_counted_twice() {
        let t = parse_cpu_times("cpu  100 0 50 800 50 0 0 25 100 0\ncpu0 1 2 3\n", 100.0);
        assert!(
            (t.idle - 8.5).abs() < 1e-9 && (t.steal - 0.25).abs() < 1e-9 && (t.capacity - 10.25).abs() < 1e-9
        );
    }

    #[test]
    fn this_process_uses_time_and_lives() {
        let me = i32::try_from(std::process::id()).unwrap();
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 50 {
            std::hint::spin_loop();
        }
        assert!(is_alive(me) && process_cpu(me).unwrap() > 0.0 && process_ticks(me).is_some());
    }
}
