//! CPU times as the kernel reports them: of a target, of its threads, of the host.

use crate::Error;
use engine::Pid;
use std::collections::BTreeMap;
use std::fs;

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
        assert_eq!(awake_ns("100 20 3\n"), Some(120.0));
    }

    #[test]
    fn cpu_times_of_this_process_can_be_read() {
        let me = Pid(std::process::id().cast_signed());
        assert!(user_seconds(me).unwrap() >= 0.0 && host_idle_seconds().unwrap() > 0.0);
        assert!(!awake(me).is_empty());
        assert!(user_seconds(Pid(i32::MAX)).is_err());
    }
}
