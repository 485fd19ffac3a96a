//! Whether there is memory for what huge pages may take more.

use super::choose::Unit;
use crate::Error;
use crate::build::memory_limit;
use splice::HUGE;
use tracee::Pid;

/// What the host keeps. Bytes.
const SPARE: u64 = 64 << 20;

/// Checks that the process's control groups and the host have room.
///
/// # Errors
/// [`Error::MemoryLimit`]; [`Error::Unsupported`] if the host is short of memory.
pub(super) fn check(pid: Pid, units: &[Unit]) -> Result<(), Error> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (need, free) = (need(units, &meminfo), available(&meminfo));
    memory_limit::check(pid, need)?;
    if free < need.saturating_add(SPARE) {
        let why = format!("its huge pages may take {need} bytes more, and the host has {free} bytes left");
        return Err(Error::Unsupported { pid, code: "memory_short", why });
    }
    Ok(())
}

/// Returns how much more memory the units may take. The kernel fills their holes, reads back what was swapped out, and
/// has one huge page more than it frees at a time.
fn need(units: &[Unit], meminfo: &str) -> u64 {
    let swapped = value(meminfo, "SwapTotal:").saturating_sub(value(meminfo, "SwapFree:"));
    let holes: u64 = units.iter().map(|u| u.holes).sum();
    holes + swapped.min(units.len() as u64 * HUGE - holes) + HUGE
}

fn available(meminfo: &str) -> u64 {
    value(meminfo, "MemAvailable:")
}

/// Returns a value of `/proc/meminfo` in bytes.
fn value(meminfo: &str, word: &str) -> u64 {
    let kb = meminfo.lines().find_map(|l| l.strip_prefix(word)?.trim().strip_suffix(" kB")?.parse().ok());
    kb.unwrap_or(0u64).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::Avma;

    #[test]
    fn holes_and_swapped_pages_take_memory() {
        let units = [4096, 0].map(|holes| Unit { at: Avma(0), holes });
        let host = |swapped: u64| {
            format!(
                "MemTotal: 9 kB\nMemAvailable:    2048 kB\nSwapTotal: 9000 kB\nSwapFree: {} kB\n",
                9000 - swapped
            )
        };
        assert_eq!(need(&units, &host(0)), 4096 + HUGE);
        assert_eq!(need(&units, &host(100)), 4096 + 100 * 1024 + HUGE);
        assert_eq!(need(&units, &host(9000)), 2 * HUGE + HUGE);
        assert_eq!(available(&host(0)), 2 << 20);
        assert_eq!(available(""), 0);
    }
}
