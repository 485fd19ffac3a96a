//! Windows of both sides, and their resampling for intervals. Pure.

use crate::estimate::{Estimate, Random, median};
use crate::report::Comparison;
use crate::window::{Side, Window};

/// How many times a sample is redrawn for an interval.
const RESAMPLES: usize = 2000;
/// The number of neighbouring slices of a classic comparison that are drawn together. So the interval
/// includes the variation that neighbours share.
const BLOCK: usize = 5;

/// The windows of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub with: Vec<Window>,
    pub without: Vec<Window>,
    /// Whether windows with the same index on both sides are a pair.
    is_paired: bool,
    /// The number of pairs, or slices, that were left out.
    pub void: usize,
}

impl Sample {
    /// Collects the pairs that have work on both sides.
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

    /// Collects the slices of each side that have work.
    pub fn of_slices(windows: &[Window]) -> Self {
        let of =
            |side| windows.iter().filter(|w| w.side == side && !w.is_void()).copied().collect::<Vec<_>>();
        let (with, without) = (of(Side::With), of(Side::Without));
        let void = windows.len() - with.len() - without.len();
        Self { with, without, is_paired: false, void }
    }

    /// Compares a figure that is valid for single windows: the medians of both sides, and the median of the
    /// ratios within pairs. Returns `None` if the windows are not paired. The classic method compares the
    /// sums of its slices instead.
    pub fn medians(&self, seed: u64, figure: impl Fn(&Window) -> f64) -> Option<Comparison> {
        if !self.is_paired {
            return None;
        }
        let [with, without] = self.sides().map(|side| side.iter().map(&figure).collect::<Vec<_>>());
        let ratios: Vec<f64> = with.iter().zip(&without).map(|(w, o)| w / o).collect();
        let mut taken = Vec::new();
        self.compare(seed, |drawn| {
            let mut of = |values: &[f64], indices: &[usize]| {
                taken.clear();
                taken.extend(indices.iter().map(|&i| values[i]));
                median(&mut taken)
            };
            let [in_with, in_without] = drawn;
            [of(&without, in_without), of(&with, in_with), of(&ratios, in_with)]
        })
    }

    /// Compares a figure that is valid only for sums: on each side, the sum of `above` divided by the sum of
    /// `below`. Returns `None` if any window lacks one of the two values.
    pub fn pooled(
        &self,
        seed: u64,
        above: impl Fn(&Window) -> Option<f64>,
        below: impl Fn(&Window) -> Option<f64>,
    ) -> Option<Comparison> {
        let values =
            |side: &[Window]| side.iter().map(|w| Some((above(w)?, below(w)?))).collect::<Option<Vec<_>>>();
        let (with, without) = (values(&self.with)?, values(&self.without)?);
        let ratio = |values: &[(f64, f64)], indices: &[usize]| {
            let sum = indices.iter().map(|&i| values[i]).fold((0.0, 0.0), |s, v| (s.0 + v.0, s.1 + v.1));
            sum.0 / sum.1
        };
        self.compare(seed, |[in_with, in_without]| {
            let (with, without) = (ratio(&with, in_with), ratio(&without, in_without));
            [without, with, with / without]
        })
    }

    fn sides(&self) -> [&[Window]; 2] {
        [&self.with, &self.without]
    }

    /// Returns a comparison with an interval for each of its values. `figures` computes these values
    /// (without, with, change) from the indices of the windows that were drawn on both sides. The same seed
    /// draws the same windows for every figure.
    fn compare(
        &self,
        seed: u64,
        mut figures: impl FnMut(&[Vec<usize>; 2]) -> [f64; 3],
    ) -> Option<Comparison> {
        let mut drawn = self.sides().map(|side| (0..side.len()).collect::<Vec<_>>());
        let values = figures(&drawn);
        let mut random = Random(seed);
        let mut redrawn = [const { Vec::new() }; 3];
        for _ in 0..RESAMPLES {
            self.redraw(&mut drawn, &mut random);
            for (all, one) in redrawn.iter_mut().zip(figures(&drawn)) {
                all.push(one);
            }
        }
        let mut next = redrawn.iter_mut().zip(values).map(|(all, value)| Estimate::of(value, all));
        let mut take = || next.next().flatten();
        Some(Comparison { without: take()?, with: take()?, change: take()? })
    }

    /// Draws as many windows of each side as there are, with repetition. Pairs stay together.
    fn redraw(&self, drawn: &mut [Vec<usize>; 2], random: &mut Random) {
        let [with, without] = drawn;
        if self.is_paired {
            let pairs = with.len();
            with.iter_mut().for_each(|i| *i = random.below(pairs));
            without.clone_from(with);
        } else {
            redraw_blocks(with, random);
            redraw_blocks(without, random);
        }
    }
}

/// Draws as many slices as there are, in runs of neighbours. The last slice and the first are neighbours.
fn redraw_blocks(indices: &mut [usize], random: &mut Random) {
    let count = indices.len();
    for block in indices.chunks_mut(BLOCK) {
        let start = random.below(count);
        block.iter_mut().enumerate().for_each(|(i, index)| *index = (start + i) % count);
    }
}
