//! Windows of both sides, drawn anew as often as an interval takes. Pure.

use crate::estimate::{Estimate, Random, median};
use crate::report::Comparison;
use crate::window::{Side, Window};

/// How many times a sample is drawn anew for an interval.
pub const RESAMPLES: usize = 4000;
/// Slices of a classic comparison that are drawn together: what neighbours have in common stays in the interval.
const BLOCK: usize = 5;

/// The windows of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub with: Vec<Window>,
    pub without: Vec<Window>,
    /// Whether the windows at the same place belong together.
    is_paired: bool,
    /// Pairs, or slices, left out.
    pub void: usize,
}

impl Sample {
    /// Pairs with work on both sides.
    pub fn of_pairs(windows: &[Window]) -> Self {
        let mut this = Self { with: Vec::new(), without: Vec::new(), is_paired: true, void: 0 };
        for with in windows.iter().filter(|w| w.side == Side::With) {
            let other = windows.iter().find(|w| w.side == Side::Without && w.pair == with.pair);
            match other {
                Some(without) if !with.is_void() && !without.is_void() => {
                    this.with.push(*with);
                    this.without.push(*without);
                }
                Some(_) => this.void += 1,
                None => {}
            }
        }
        this
    }

    /// All slices of each side with work in them.
    pub fn of_slices(windows: &[Window]) -> Self {
        let of =
            |side| windows.iter().filter(|w| w.side == side && !w.is_void()).copied().collect::<Vec<_>>();
        let (with, without) = (of(Side::With), of(Side::Without));
        let void = windows.len() - with.len() - without.len();
        Self { with, without, is_paired: false, void }
    }

    /// A figure that is good within single windows: medians of the sides, and of the ratios where windows are paired.
    pub fn medians(&self, seed: u64, figure: impl Fn(&Window) -> f64) -> Option<Comparison> {
        if !self.is_paired {
            // Slices of a minute say no more than their sums, which is what the classic protocol compares.
            return None;
        }
        self.compare(seed, |s| {
            let of = |side: &[Window]| median(&mut side.iter().map(&figure).collect::<Vec<_>>());
            let ratios = s.with.iter().zip(&s.without).map(|(w, o)| figure(w) / figure(o));
            [of(&s.without), of(&s.with), median(&mut ratios.collect::<Vec<_>>())]
        })
    }

    /// A figure that is good only in sums: the sum of one thing over that of another, on each side.
    pub fn pooled(
        &self,
        seed: u64,
        above: impl Fn(&Window) -> Option<f64>,
        below: impl Fn(&Window) -> Option<f64>,
    ) -> Option<Comparison> {
        let sum = |side: &[Window], value: &dyn Fn(&Window) -> Option<f64>| {
            side.iter().map(value).try_fold(0.0, |sum, v| Some(sum + v?)).unwrap_or(f64::NAN)
        };
        self.compare(seed, |s| {
            let [without, with] = [&s.without, &s.with].map(|side| sum(side, &above) / sum(side, &below));
            [without, with, with / without]
        })
    }

    /// Without, with, and the change, each with its interval. The same seed draws the same windows for every figure.
    fn compare(&self, seed: u64, figures: impl Fn(&Self) -> [f64; 3]) -> Option<Comparison> {
        let mut random = Random(seed);
        let mut redrawn = [const { Vec::new() }; 3];
        for _ in 0..RESAMPLES {
            let drawn = self.redraw(&mut random);
            for (all, one) in redrawn.iter_mut().zip(figures(&drawn)) {
                all.push(one);
            }
        }
        let values = figures(self);
        let mut next = redrawn.iter_mut().zip(values).map(|(all, value)| Estimate::of(value, all));
        let mut take = || next.next().flatten();
        Some(Comparison { without: take()?, with: take()?, change: take()? })
    }

    /// A sample of the same size, drawn from this one with repetition.
    fn redraw(&self, random: &mut Random) -> Self {
        let mut drawn = Self {
            with: Vec::with_capacity(self.with.len()),
            without: Vec::with_capacity(self.without.len()),
            is_paired: self.is_paired,
            void: self.void,
        };
        if self.is_paired {
            for _ in 0..self.with.len() {
                let i = random.below(self.with.len());
                drawn.with.push(self.with[i]);
                drawn.without.push(self.without[i]);
            }
        } else {
            drawn.with = blocks(&self.with, random);
            drawn.without = blocks(&self.without, random);
        }
        drawn
    }
}

/// As many slices as there are, in runs of neighbours; the last is the first's neighbour.
fn blocks(side: &[Window], random: &mut Random) -> Vec<Window> {
    let mut drawn = Vec::with_capacity(side.len() + BLOCK);
    while drawn.len() < side.len() {
        let start = random.below(side.len());
        drawn.extend(side.iter().cycle().skip(start).take(BLOCK));
    }
    drawn.truncate(side.len());
    drawn
}
