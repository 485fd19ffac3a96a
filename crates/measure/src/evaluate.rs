//! From windows to figures. Pure.

use crate::estimate::{Estimate, Random};
use crate::report::{Comparison, Verdict};
use crate::window::{Side, Window};

/// The figures of paired windows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// Work per second.
    pub qps: Comparison,
    /// CPU seconds per second.
    pub cpu_usage: Comparison,
    /// Work per CPU second, with over without.
    pub factor: Estimate,
    /// The same of user mode, pooled; None where no user time was seen.
    pub user_factor: Option<Estimate>,
    /// Pairs used.
    pub pairs: u32,
    /// Pairs left out.
    pub void: u32,
}

/// Fewest pairs that give an interval at all.
const FEWEST: usize = 5;

/// The figures; None where fewer than half of the pairs (or than five) saw work on both sides.
#[must_use]
pub fn evaluate(windows: &[Window], seed: u64) -> Option<Figures> {
    let (pairs, void) = paired(windows);
    if pairs.len() < FEWEST.max(void) {
        return None;
    }
    let mut random = Random(seed);
    let mut compare = |figure: fn(&Window) -> f64| {
        let mut of = |value: &dyn Fn(&Pair) -> f64| {
            Estimate::of_median(&pairs.iter().map(value).collect::<Vec<_>>(), &mut random)
        };
        Comparison {
            without: of(&|p| figure(&p.without)),
            with: of(&|p| figure(&p.with)),
            change: of(&|p| figure(&p.with) / figure(&p.without)),
        }
    };
    let (qps, cpu_usage, worth) = (compare(Window::rate), compare(Window::usage), compare(Window::worth));
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Some(Figures {
        qps,
        cpu_usage,
        factor: worth.change,
        user_factor: user_factor(&pairs, &mut random),
        pairs: count(pairs.len()),
        void: count(void),
    })
}

/// What an interval around 1 says.
#[must_use]
pub fn verdict(factor: &Estimate) -> Verdict {
    if factor.low > 1.0 {
        Verdict::Better
    } else if factor.high < 1.0 {
        Verdict::Worse
    } else {
        Verdict::NoDifference
    }
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    with: Window,
    without: Window,
}

/// Pairs with work on both sides, and how many others there are.
fn paired(windows: &[Window]) -> (Vec<Pair>, usize) {
    let of = |side| windows.iter().filter(move |w| w.side == side);
    let mut pairs = Vec::new();
    let mut void = 0;
    for with in of(Side::With) {
        let Some(without) = of(Side::Without).find(|w| w.pair == with.pair) else { continue };
        if with.is_void() || without.is_void() {
            void += 1;
        } else {
            pairs.push(Pair { with: *with, without: *without });
        }
    }
    (pairs, void)
}

/// Work per second of user time, all windows of a side together, drawn by pairs.
fn user_factor(pairs: &[Pair], random: &mut Random) -> Option<Estimate> {
    // The kernel's split is by ticks, scaled to the exact sum: a side's share over all windows is meaningful, not one
    // window's.
    let ratio = |drawn: &[usize]| {
        let sum = |value: &dyn Fn(&Pair) -> f64| drawn.iter().map(|&i| value(&pairs[i])).sum::<f64>();
        let with = sum(&|p| p.with.work) / sum(&|p| p.with.user);
        let without = sum(&|p| p.without.work) / sum(&|p| p.without.user);
        with / without
    };
    let estimate = Estimate::bootstrap(pairs.len(), random, ratio);
    [estimate.value, estimate.low, estimate.high]
        .iter()
        .all(|v| v.is_finite() && *v > 0.0)
        .then_some(estimate)
}
