//! Whether the figures can be read as they are: was the load steady, was the CPU the bottleneck. Pure.

use crate::estimate::median;
use crate::window::Window;

/// The load's parts, in time, are compared by so many blocks at most.
const BLOCKS: usize = 10;
/// Fewest pairs of a block: less is noise.
const SMALLEST: usize = 3;
/// Work per second in the busiest part over that in the quietest beyond which a load is not steady.
pub const STEADY: f64 = 1.6;
/// A share of time beyond which something is taken to be in use all the time.
const FULL: f64 = 0.85;
/// CPU seconds per second below which a target has nothing to do: no figure about it means anything.
pub const IDLE: f64 = 0.02;

/// How many times the work per second of the quietest part of a run the busiest did, as medians of blocks of windows in
/// time. Both sides of a pair are in the same block, in equal parts, so what whet gains is not in it. 1 of nothing.
pub fn variation(windows: &[Window]) -> f64 {
    let rates: Vec<f64> = windows.chunks(2).filter(|c| c.len() == 2).map(pair_rate).collect();
    let size = rates.len().div_ceil(BLOCKS).max(SMALLEST);
    let levels: Vec<f64> = rates
        .chunks(size)
        // The last, if it is too small to speak for itself.
        .filter(|block| block.len() >= SMALLEST)
        .map(|block| median(&mut block.to_vec()))
        .collect();
    let most = levels.iter().copied().fold(0.0, f64::max);
    let least = levels.iter().copied().fold(f64::INFINITY, f64::min);
    match (levels.len(), least) {
        (0 | 1, _) => 1.0,
        (_, 0.0) => f64::INFINITY,
        _ => most / least,
    }
}

/// The geometric mean of the two windows of a pair.
fn pair_rate(pair: &[Window]) -> f64 {
    pair.iter().map(|w| if w.is_void() { 0.0 } else { w.rate() }).product::<f64>().sqrt()
}

/// What the windows and the host say about the bottleneck.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bottleneck {
    /// CPU seconds per second that the target used.
    pub usage: f64,
    /// How many it could have used.
    pub capacity: f64,
    /// The share of the host's CPU time that somebody used.
    pub host_busy: f64,
    /// The share of time in which the target's busiest thread was not asleep.
    pub busiest_thread: f64,
}

impl Bottleneck {
    /// From the windows, and what is known of host and target besides.
    pub fn new(windows: &[Window], capacity: f64, host_cpus: f64, busiest_thread: f64) -> Self {
        let sum = |value: fn(&Window) -> f64| windows.iter().map(value).sum::<f64>();
        let seconds = sum(|w| w.seconds).max(f64::MIN_POSITIVE);
        let host_idle = sum(|w| w.host_idle) / (seconds * host_cpus);
        let usage = sum(|w| w.cpu) / seconds;
        Self { usage, capacity, host_busy: (1.0 - host_idle).clamp(0.0, 1.0), busiest_thread }
    }

    /// Whether more CPU time would have meant more work: the host had none left, or the target used all that it may, or
    /// one of its threads was never asleep.
    pub fn is_cpu(&self) -> bool {
        self.host_busy >= FULL || self.usage >= FULL * self.capacity || self.busiest_thread >= FULL
    }

    /// Whether the target had nothing to do.
    pub fn is_idle(&self) -> bool {
        self.usage < IDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Side;

    fn windows(rates: &[f64]) -> Vec<Window> {
        let window = |(i, &rate): (usize, &f64)| Window {
            pair: u32::try_from(i / 2).unwrap(),
            side: if i % 2 == 0 { Side::With } else { Side::Without },
            seconds: 0.5,
            work: rate * 0.5,
            cpu: 0.25,
            user: 0.2,
            host_idle: 0.1,
            hardware: None,
        };
        rates.iter().enumerate().map(window).collect()
    }

    #[test]
    fn a_gain_is_no_variation() {
        assert_eq!(variation(&windows(&[130.0, 100.0].repeat(40))), 1.0);
        assert_eq!(variation(&windows(&[])), 1.0);
    }

    #[test]
    fn outliers_are_no_variation_but_a_step_is() {
        let mut rates = vec![100.0; 80];
        (0..80).step_by(8).for_each(|i| rates[i] = 1000.0);
        assert_eq!(variation(&windows(&rates)), 1.0);
        rates = [vec![100.0; 40], vec![200.0; 40]].concat();
        assert!((variation(&windows(&rates)) - 2.0).abs() < 1e-9);
        rates = [vec![100.0; 40], vec![0.0; 40]].concat();
        assert_eq!(variation(&windows(&rates)), f64::INFINITY);
    }

    #[test]
    fn bottlenecks() {
        // Half a CPU of two; the others leave 0.2 of a second idle each second.
        let w = windows(&[10.0; 4]);
        let b = Bottleneck::new(&w, 2.0, 2.0, 0.3);
        assert!((b.usage - 0.5).abs() < 1e-9 && (b.host_busy - 0.9).abs() < 1e-9);
        assert!(b.is_cpu() && !b.is_idle());
        assert!(!Bottleneck::new(&w, 8.0, 0.5, 0.3).is_cpu());
        assert!(Bottleneck::new(&w, 0.5, 0.5, 0.3).is_cpu());
        assert!(Bottleneck::new(&w, 8.0, 0.5, 0.95).is_cpu());
        assert!(Bottleneck::new(&[], 8.0, 1.0, 0.0).is_idle());
    }
}
