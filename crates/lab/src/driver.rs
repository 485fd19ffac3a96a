//! The lab's own load: threads with one session each, latencies by side, at full speed or at a fixed rate.
//!
//! At a fixed rate, requests are scheduled at random moments, with exponential gaps as independent clients
//! have. The latency of a request is counted from its scheduled moment. So a request that waits behind a slow
//! request is as late as its client would see it (no coordinated omission).

use crate::error::Error;
use crate::load::{Load, LoadFigures};
use crate::record::{Latency, Side};
use hdrhistogram::Histogram;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Percentiles that are recorded.
const KEPT: [f64; 12] = [0.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.99, 100.0];

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// For reasons of the data: the worker goes on with a new request.
    Data,
    /// For any other reason, which ends the load.
    Broken(String),
}

impl From<mysql::Error> for Failure {
    /// Deadlock, lock wait timeout and a record changed since the snapshot come from the data.
    fn from(e: mysql::Error) -> Self {
        match e {
            mysql::Error::MySqlError(m) if [1213, 1205, 1020].contains(&m.code) => Self::Data,
            e => Self::Broken(e.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::Broken(e.to_string())
    }
}

/// One client of the load.
pub trait Worker: Send + 'static {
    /// Does one request and returns the index of its kind.
    ///
    /// # Errors
    /// The server's error.
    fn request(&mut self, rng: &mut Pcg64Mcg) -> Result<usize, Failure>;
}

/// Latencies in microseconds: by side and kind, and of the time since the last report (`fresh`).
#[derive(Debug)]
struct Times {
    sides: [Vec<Histogram<u64>>; 2],
    fresh: Histogram<u64>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// 0 while the load settles, else 1 plus the index of the side.
    side: AtomicU8,
    done: AtomicU64,
    retried: AtomicU64,
    failed: Mutex<Option<String>>,
}

/// All clients of a load.
#[derive(Debug)]
pub struct Driver {
    shared: Arc<Shared>,
    times: Vec<Arc<Mutex<Times>>>,
    kinds: Vec<String>,
    threads: Vec<JoinHandle<()>>,
    last_report: Instant,
}

fn histogram() -> Histogram<u64> {
    // Three significant digits from a microsecond to a minute. The histogram grows for longer times.
    let mut h = Histogram::new_with_bounds(1, 60_000_000, 3)
        .unwrap_or_else(|_| Histogram::new(3).expect("3 digits are allowed"));
    h.auto(true);
    h
}

impl Driver {
    /// Starts one thread for each worker. `rate` is in requests per second, of all workers together.
    pub fn start<W: Worker>(workers: Vec<W>, kinds: &[&str], seed: u64, rate: Option<f64>) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            side: AtomicU8::new(0),
            done: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            failed: Mutex::new(None),
        });
        #[expect(clippy::cast_precision_loss, reason = "threads are few")]
        let gap = rate.map(|r| workers.len() as f64 / r);
        let mut times = Vec::new();
        let mut threads = Vec::new();
        for (n, worker) in workers.into_iter().enumerate() {
            let mine = Arc::new(Mutex::new(Times {
                sides: [0, 1].map(|_| kinds.iter().map(|_| histogram()).collect()),
                fresh: histogram(),
            }));
            times.push(Arc::clone(&mine));
            let shared = Arc::clone(&shared);
            let rng = Pcg64Mcg::seed_from_u64(seed.wrapping_add(n as u64));
            threads.push(std::thread::spawn(move || work(worker, &shared, &mine, rng, gap)));
        }
        let kinds = kinds.iter().map(|k| (*k).to_owned()).collect();
        Self { shared, times, kinds, threads, last_report: Instant::now() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of minutes at most")]
fn latency(side: Side, kind: &str, h: &Histogram<u64>) -> Latency {
    Latency {
        side,
        of: kind.to_owned(),
        count: h.len(),
        mean_ms: h.mean() / 1e3,
        max_ms: h.max() as f64 / 1e3,
        percentiles: KEPT.map(|p| (p, h.value_at_percentile(p) as f64 / 1e3)).to_vec(),
    }
}

/// Runs one client until the driver stops or a request fails. `gap` is the mean gap between requests in
/// seconds, or `None` for full speed.
fn work<W: Worker>(
    mut worker: W,
    shared: &Shared,
    times: &Mutex<Times>,
    mut rng: Pcg64Mcg,
    gap: Option<f64>,
) {
    let mut meant = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        match gap {
            Some(gap) => {
                let gaps = -(1.0 - rng.random::<f64>()).ln();
                meant += Duration::from_secs_f64((gap * gaps).clamp(0.0, 3600.0));
                if !wait_until(meant, &shared.stop) {
                    return;
                }
            }
            None => meant = Instant::now(),
        }
        let side = shared.side.load(Ordering::Relaxed);
        match worker.request(&mut rng) {
            Ok(kind) => {
                let micros = u64::try_from(meant.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
                shared.done.fetch_add(1, Ordering::Relaxed);
                let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = times.fresh.record(micros);
                let mine = usize::from(side).checked_sub(1).and_then(|s| times.sides.get_mut(s));
                if let Some(h) = mine.and_then(|kinds| kinds.get_mut(kind)) {
                    let _ = h.record(micros);
                }
            }
            Err(Failure::Data) => {
                shared.retried.fetch_add(1, Ordering::Relaxed);
            }
            Err(Failure::Broken(why)) => {
                let mut failed = shared.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(why);
                return;
            }
        }
    }
}

/// Waits until `moment`. Returns false if the driver stops first.
fn wait_until(moment: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

impl Load for Driver {
    fn check(&mut self) -> Result<(), Error> {
        let failed = self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &*failed {
            return Err(Error::Load { load: self.kinds.join(", "), why: format!("failed: {why}") });
        }
        // A thread ends when the driver is dropped or a request fails. Neither is the case here, so a thread
        // that has ended panicked.
        if self.threads.iter().any(JoinHandle::is_finished) {
            return Err(Error::Bug("a client of the lab's own load panicked".to_owned()));
        }
        Ok(())
    }

    fn work(&self) -> Option<u64> {
        Some(self.shared.done.load(Ordering::Relaxed))
    }

    fn side(&mut self, side: Option<Side>) {
        let code = match side {
            None => 0,
            Some(Side::With) => 1,
            Some(Side::Without) => 2,
        };
        self.shared.side.store(code, Ordering::Relaxed);
    }

    fn latencies(&self) -> Vec<Latency> {
        let mut all = Vec::new();
        for (s, side) in Side::BOTH.into_iter().enumerate() {
            for (k, kind) in self.kinds.iter().enumerate() {
                let mut sum = histogram();
                for times in &self.times {
                    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(h) = times.sides.get(s).and_then(|kinds| kinds.get(k)) {
                        let _ = sum.add(h);
                    }
                }
                if !sum.is_empty() {
                    all.push(latency(side, kind, &sum));
                }
            }
        }
        all
    }

    /// None of these requests is sent again: the worker goes on with a new request.
    fn retried(&self) -> u64 {
        self.shared.retried.load(Ordering::Relaxed)
    }

    fn figures(&mut self) -> Option<LoadFigures> {
        let mut sum = histogram();
        for times in &self.times {
            let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = sum.add(&times.fresh);
            times.fresh.reset();
        }
        let seconds = self.last_report.elapsed().as_secs_f64().max(1e-6);
        self.last_report = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "of a second")]
        let figures = LoadFigures {
            tps: sum.len() as f64 / seconds,
            response_ms: sum.mean() / 1e3,
            p95_ms: sum.value_at_percentile(95.0) as f64 / 1e3,
        };
        Some(figures)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Slow(bool);
    impl Worker for Slow {
        fn request(&mut self, _: &mut Pcg64Mcg) -> Result<usize, Failure> {
            // The first request stalls for 200 ms.
            if std::mem::take(&mut self.0) {
                std::thread::sleep(Duration::from_millis(200));
            }
            Ok(0)
        }
    }

    struct Panics;
    impl Worker for Panics {
        fn request(&mut self, _: &mut Pcg64Mcg) -> Result<usize, Failure> {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_panic_of_a_client_is_reported() {
        let mut driver = Driver::start(vec![Panics], &["r"], 1, None);
        let until = Instant::now() + Duration::from_secs(10);
        while driver.check().is_ok() {
            assert!(Instant::now() < until, "nobody said so");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All requests scheduled during the stall are late, not only the request that stalled.
    #[test]
    fn a_stall_delays_all_requests_behind_it() {
        let mut driver = Driver::start(vec![Slow(true)], &["r"], 1, Some(1000.0));
        driver.side(Some(Side::With));
        std::thread::sleep(Duration::from_millis(600));
        let latencies = driver.latencies();
        let (_, p75) = latencies[0].percentiles[3];
        assert!(latencies[0].count > 200, "{latencies:?}");
        let (_, p90) = latencies[0].percentiles[4];
        assert!(p90 > 20.0, "90th percentile {p90} ms, 75th {p75} ms");
    }
}
