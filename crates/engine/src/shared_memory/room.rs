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
    if let Some(left) = left.filter(|left| holes > 0 && *left < holes.saturating_add(SPARE)) {
        return short("its file system", holes, left);
    }
    memory_limit::check(pid, need).map_err(|e| (e.code(), e.to_string()))?;
    let available = available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    match available < need.saturating_add(SPARE) {
        true => short("the host", need, available),
        false => Ok(()),
    }
}

/// Watches the room of a process's control groups. Memory is charged to the process through which it is moved, and may
/// have been another group's before: the first to touch a page is charged for it.
#[derive(Debug)]
pub(super) struct Watch {
    pid: Pid,
    /// What must stay free: half of what was. Bytes; `None` without a limit.
    least: Option<u64>,
}

impl Watch {
    pub(super) fn new(pid: Pid) -> Self {
        Self { pid, least: memory_limit::left(pid).map(|left| left / 2) }
    }

    /// Returns whether there is room for so many bytes.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.least.is_none_or(|least| {
            memory_limit::left(self.pid).is_none_or(|left| left >= least.saturating_add(bytes))
        })
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
        assert!(check(me, &units.map(|u| Unit { holes: 0, ..u }), Some(0)).is_ok());
    }
}
