//! Decides whether the figures can be read as they are: was the load steady, was the CPU the bottleneck.
//! Pure.

use crate::estimate::median;
use crate::window::Window;

/// The most blocks into which the pairs of a run are divided.
const BLOCKS: usize = 10;
/// The fewest pairs of a block. Fewer are mere noise.
const SMALLEST: usize = 3;
/// The largest ratio of work per second in the busiest block to the quietest at which a load counts as
/// steady.
pub const STEADY: f64 = 1.6;
/// The share of time from which a resource counts as in use all the time.
const FULL: f64 = 0.85;
/// CPU seconds per second below which a target is idle. No figure about an idle target has a meaning.
pub const IDLE: f64 = 0.02;

/// Returns the work per second of the busiest block of a run divided by that of the quietest. A block is a
/// run of pairs in time, and its rate is the median of its pairs. In a paired comparison both sides of a pair
/// are in the same block, so a gain does not count as variation. Returns 1 if there are fewer than two
/// blocks.
pub fn variation(windows: &[Window]) -> f64 {
    let rates: Vec<f64> = windows.chunks(2).filter(|c| c.len() == 2).map(pair_rate).collect();
    let size = rates.len().div_ceil(BLOCKS).max(SMALLEST);
    let levels: Vec<f64> = rates
        .chunks(size)
        // The last block is left out if it is too small.
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

/// Returns the geometric mean of work per second in the two windows of a pair. A void window counts as 0.
fn pair_rate(pair: &[Window]) -> f64 {
    pair.iter().map(|w| if w.is_void() { 0.0 } else { w.rate() }).product::<f64>().sqrt()
}

/// Figures that show whether the CPU was the bottleneck.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bottleneck {
    /// CPU seconds per second that the target used.
    pub usage: f64,
    /// The number of CPUs that the target could have used.
    pub capacity: f64,
    /// The share of the host's CPU time that was in use.
    pub host_busy: f64,
    /// The share of time in which the target's busiest thread did not sleep.
    pub busiest_thread: f64,
}

impl Bottleneck {
    /// Computes the figures from windows. `capacity` and `host_cpus` are numbers of CPUs, `busiest_thread` is
    /// a share of time.
    pub fn new(windows: &[Window], capacity: f64, host_cpus: f64, busiest_thread: f64) -> Self {
        let sum = |value: fn(&Window) -> f64| windows.iter().map(value).sum::<f64>();
        let seconds = sum(|w| w.seconds).max(f64::MIN_POSITIVE);
        let host_idle = sum(|w| w.host_idle) / (seconds * host_cpus);
        let usage = sum(|w| w.cpu) / seconds;
        Self { usage, capacity, host_busy: (1.0 - host_idle).clamp(0.0, 1.0), busiest_thread }
    }

    /// Returns whether more CPU time would have meant more work. This is so in three cases: the host had
    /// hardly any CPU time left, the target used nearly all that it may, or one of its threads hardly slept.
    pub fn is_cpu(&self) -> bool {
        self.host_busy >= FULL || self.usage >= FULL * self.capacity || self.busiest_thread >= FULL
    }

    /// Returns whether the target had nothing to do.
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
    fn a_gain_does_not_count_as_variation() {
        assert_eq!(variation(&windows(&[130.0, 100.0].repeat(40))), 1.0);
        assert_eq!(variation(&windows(&[])), 1.0);
    }

    #[test]
    fn a_step_counts_as_variation_and_outliers_do_not() {
        let mut rates = vec![100.0; 80];
        (0..80).step_by(8).for_each(|i| rates[i] = 1000.0);
        assert_eq!(variation(&windows(&rates)), 1.0);
        rates = [vec![100.0; 40], vec![200.0; 40]].concat();
        assert!((variation(&windows(&rates)) - 2.0).abs() < 1e-9);
        rates = [vec![100.0; 40], vec![0.0; 40]].concat();
        assert_eq!(variation(&windows(&rates)), f64::INFINITY);
    }

    #[test]
    fn the_bottleneck_is_recognised() {
        // The target uses half a CPU of two. The host is idle for 0.2 CPU seconds each second.
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
