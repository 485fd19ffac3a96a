//! Runs the same work on many items, by several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use tracee::Pid;

/// The most cores that whet uses; the others remain for the target.
const CORES: usize = 2;
/// The number of shares for each core: some shares take longer than others.
const SHARES: usize = 8;

/// The most threads for work that waits for processes.
const MOST_WAITING: usize = 16;

/// Applies `work`, which computes, to each item. Results have the order of `items`, whichever thread computed
/// them.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    map_by(CORES, items.len().div_ceil(CORES * SHARES), items, work)
}

/// Same as [`map`] for work on processes, which mostly waits for them, by so many threads or fewer.
/// With more threads the work ends sooner, but until then the processes get less CPU time.
pub(crate) fn map_waiting<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    map_by(threads.min(MOST_WAITING), 1, items, work)
}

/// Returns how many CPUs both this process and another one may use, at least 1.
pub(crate) fn cpus_with(pid: Pid) -> usize {
    let own = std::thread::available_parallelism().map_or(1, usize::from);
    let theirs = tracee::capacity(pid);
    (1..own).find(|&n| n as f64 >= theirs).unwrap_or(own)
}

/// Applies `work` to each item by some threads, each of which takes `share` items at a time.
fn map_by<T: Sync, R: Send>(
    threads: usize,
    share: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    if items.len() < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(own) = items.chunks(share).nth(n) else { return done };
            done.push((n, own.iter().map(&work).collect::<Vec<R>>()));
        }
    };
    let mut done = std::thread::scope(|scope| {
        // Where no more threads can be started, those that are there do all of the work.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, run).ok();
        let others: Vec<_> = (1..threads.min(items.len())).map_while(start).collect();
        let mut done = run();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|d| d.0);
    done.into_iter().flat_map(|d| d.1).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn order_is_kept() {
        for n in [0, 1, 2, 3, 15, 16, 17, 1000] {
            let items: Vec<usize> = (0..n).collect();
            let doubled: Vec<usize> = items.iter().map(|i| i * 2).collect();
            assert_eq!(super::map(&items, |i| i * 2), doubled);
            assert_eq!(super::map_waiting(2, &items, |i| i * 2), doubled);
        }
    }
}
