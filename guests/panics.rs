//! Panics that are caught and resumed, with cleanups, through hot functions and threads.
//#Lang: rust

#[path = "support/guest.rs"]
mod guest;

use guest::{mix, next_random};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

struct Guard<'a>(&'a mut u64, u64);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *self.0 = mix(*self.0, self.1 + u64::from(std::thread::panicking()));
    }
}

#[inline(never)]
fn hot(mut x: u64, n: u64) -> u64 {
    for i in 0..n {
        x = if x & 1 == 1 { x.wrapping_mul(3).wrapping_add(1) } else { mix(x, i) };
    }
    x
}

#[inline(never)]
fn descend(depth: u64, x: u64, digest: &mut u64) -> u64 {
    let guard = Guard(digest, depth);
    let x = hot(x, 3);
    if depth == 0 {
        match x % 6 {
            0 => panic!("number {}", x % 100),
            1 => resume_unwind(Box::new(x)),
            2 => {
                let small = [1u64, 2, 3];
                return small[usize::try_from(std::hint::black_box(x % 7)).unwrap_or(9)];
            }
            3 => return (x % 5).checked_sub(3).expect("below zero"),
            _ => return x,
        }
    }
    let y = descend(depth - 1, x, guard.0);
    mix(y, x)
}

#[inline(never)]
fn catching(depth: u64, x: u64, digest: &mut u64) -> u64 {
    match catch_unwind(AssertUnwindSafe(|| descend(depth, x, digest))) {
        Ok(y) => y,
        Err(payload) => match payload.downcast::<u64>() {
            Ok(n) => *n + 1,
            Err(payload) => payload.downcast_ref::<String>().map_or(3, |s| hot(s.len() as u64, 2)),
        },
    }
}

fn round() -> u64 {
    let mut r = guest::seed();
    let mut x = 1;
    let mut digest = 1;
    for i in 0..300 {
        x = mix(x, catching(i % 12, next_random(&mut r), &mut digest));
        // Another panic is caught, and the digest of all cleanups so far is mixed in.
        x = mix(x, catching(2, x, &mut digest) ^ digest);
    }
    let threads: Vec<_> = (0..4u64)
        .map(|i| {
            std::thread::spawn(move || {
                let mut own = i;
                let x = (0..40).fold(i, |x, j| mix(x, catching(j % 5, x, &mut own)));
                if i % 2 == 0 {
                    resume_unwind(Box::new(x ^ own));
                }
                x ^ own
            })
        })
        .collect();
    for t in threads {
        x = mix(x, t.join().unwrap_or_else(|p| p.downcast::<u64>().map_or(0, |n| *n + 7)));
    }
    x
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    guest::run("panics", round);
}
