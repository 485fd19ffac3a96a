//! Whether there is memory for what huge pages may take more.

use super::choose::Unit;
use crate::build::memory_limit;
use splice::HUGE;
use tracee::Pid;

/// What the host and the memory's file system keep. Bytes.
const SPARE: u64 = 64 << 20;

/// Checks that the process's control groups, the host and the memory's file system have room. `left` is what the file
/// system may still take. Returns the name of the reason if there is no room, and the reason.
pub(super) fn check(pid: Pid, units: &[Unit], left: Option<u64>) -> Result<(), (&'static str, String)> {
    let (holes, need) = need(units);
    let short = |of: &str, need: u64, left: u64| {
        Err((
            "memory_short",
            format!("huge pages may take {need} bytes more, and {of} has {left} bytes left"),
        ))
    };
    if let Some(left) = left.filter(|left| *left < holes.saturating_add(SPARE)) {
        return short("its file system", holes, left);
    }
    // All of it is charged to the process through which it is moved.
    let moved = units.len() as u64 * HUGE;
    memory_limit::check_shared(pid, need, moved).map_err(|e| (e.code(), e.to_string()))?;
    let available = available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    match available < need.saturating_add(SPARE) {
        true => short("the host", need, available),
        false => Ok(()),
    }
}

/// Returns the holes of the units, and how much more memory they may take in all: the kernel fills their holes, reads
/// back what was swapped out, and has one huge page more than it frees at a time.
fn need(units: &[Unit]) -> (u64, u64) {
    let holes = units.iter().map(|u| u.holes).sum();
    let swapped: u64 = units.iter().map(|u| u.swapped).sum();
    (holes, holes + swapped + HUGE)
}

/// Returns what the host can give, by `/proc/meminfo`. Bytes.
fn available(meminfo: &str) -> u64 {
    let kb = |line: &str| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok();
    meminfo.lines().find_map(kb).unwrap_or(0u64).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Avma;

    #[test]
    fn holes_and_swapped_pages_take_memory() {
        let units = [(4096, 0), (0, 8192), (4096, 0)];
        let units = units.map(|(holes, swapped)| Unit { at: Avma(0), holes, swapped });
        assert_eq!(need(&units), (8192, 16384 + HUGE));
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), 2 << 20);
        assert_eq!(available(""), 0);
    }

    #[test]
    fn a_full_file_system() {
        let me = Pid(std::process::id().cast_signed());
        let units = [Unit { at: Avma(0), holes: 4096, swapped: 0 }];
        let (code, why) = check(me, &units, Some(SPARE)).unwrap_err();
        assert_eq!(code, "memory_short");
        assert!(why.contains("file system"), "{why}");
    }
}
