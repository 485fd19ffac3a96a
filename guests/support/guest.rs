//! The protocol of guest.h, for guests in Rust.

use std::process::exit;
use std::time::{Duration, Instant};

/// Mixes a value into a digest and returns the new digest.
#[inline]
pub fn mix(digest: u64, value: u64) -> u64 {
    let digest = (digest.rotate_left(5) ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_add(0x2545_f491_4f6c_dd1d);
    digest ^ (digest >> 29)
}

/// Returns the next of a sequence of pseudo-random numbers.
#[inline]
pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns the seed of all input, which the compiler does not know.
pub fn seed() -> u64 {
    std::hint::black_box(0x9e37_79b9_7f4a_7c15)
}

/// Runs rounds until the time is over, then prints their digest. Ends the program with 1 if a digest differs.
pub fn run(name: &str, round: fn() -> u64) {
    let round = std::hint::black_box(round);
    let seconds = std::env::var("GUEST_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.5);
    let stop = std::env::var_os("GUEST_STOP");
    let rests = std::env::var_os("GUEST_REST").is_some();
    let first = round();
    eprintln!("ready");
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        let begin = Instant::now();
        let digest = round();
        if digest != first {
            println!("mismatch: {name}: digest {digest:016x}, first was {first:016x}");
            exit(1);
        }
        if rests {
            std::thread::sleep(begin.elapsed().min(Duration::from_millis(20)));
        }
        if Instant::now() >= end || stop.as_ref().is_some_and(|s| std::path::Path::new(s).exists()) {
            break;
        }
    }
    println!("{name} {first:016x}");
}
