//! Threads and channels, locks and scoped borrowing.
//#Lang: rust

#[path = "support/guest.rs"]
mod guest;

use guest::mix;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

#[inline(never)]
fn hot(mut x: u64, n: u64) -> u64 {
    for i in 0..n {
        x = match x % 5 {
            0 => x + 3,
            1 => x ^ (x >> 9),
            2 => x.wrapping_mul(7),
            3 => !x,
            _ => mix(x, i),
        };
    }
    x
}

fn round() -> u64 {
    let (send, receive) = mpsc::sync_channel::<(u64, u64)>(8);
    let shared = Arc::new(Mutex::new(Vec::new()));
    let total = AtomicU64::new(0);
    let workers: Vec<_> = (0..4u64)
        .map(|i| {
            let (send, shared) = (send.clone(), Arc::clone(&shared));
            std::thread::spawn(move || {
                for j in 0..60 {
                    let x = hot(i * 1000 + j, 60);
                    if j % 10 == 0 {
                        shared.lock().unwrap().push(x);
                    }
                    send.send((i, x)).unwrap();
                }
            })
        })
        .collect();
    drop(send);
    let mut sums = [0u64; 4];
    for (i, x) in receive {
        let slot = &mut sums[usize::try_from(i).unwrap()];
        *slot = mix(*slot, x);
    }
    workers.into_iter().for_each(|w| w.join().unwrap());
    let mut list = shared.lock().unwrap().clone();
    list.sort_unstable();
    std::thread::scope(|scope| {
        for part in list.chunks(8) {
            let total = &total;
            scope.spawn(move || part.iter().for_each(|x| drop(total.fetch_add(hot(*x, 50), Ordering::Relaxed))));
        }
    });
    sums.iter().fold(total.load(Ordering::Relaxed), |x, s| mix(x, *s))
}

fn main() {
    guest::run("channels", round);
}
