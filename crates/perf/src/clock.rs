//! The clock of `perf record -k mono`.

/// Returns `CLOCK_MONOTONIC`, nanoseconds; 0 if the kernel has no such clock, which does not happen.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec.cast_unsigned().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let first = monotonic_ns();
        assert!(first > 0 && monotonic_ns() >= first);
    }
}
