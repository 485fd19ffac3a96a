//! Which windows are measured, how long, and in which order. Pure.

use crate::record::Side;
use rand::Rng;
use rand::seq::SliceRandom;
use std::time::Duration;

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Pairs of windows.
    pub pairs: usize,
    /// A/A pairs, spread evenly between the others.
    pub control: usize,
    /// The length of a window.
    pub window: Duration,
    /// The pause before each window, after the change of sides.
    pub settle: Duration,
    /// Whether the figures of each second are recorded as well.
    pub each_second: bool,
    /// The longest time of warming up.
    pub warm_up: Duration,
    /// Seconds for which whet samples, or `None` for whet's default.
    pub sampling: Option<f64>,
}

/// A pair of windows to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Its number among the pairs of its kind.
    pub number: usize,
    /// Whether it is an A/A pair.
    pub control: bool,
    /// The side that each window counts for, and the state that the server is in.
    pub halves: [(Side, Side); 2],
}

/// Returns all pairs of a step in random order within each pair, with the A/A pairs spread evenly. The state
/// of an A/A pair is drawn at random, so that both states are controlled.
pub fn schedule(pairs: usize, control: usize, rng: &mut impl Rng) -> Vec<Pair> {
    let mut all = Vec::with_capacity(pairs + control);
    let mut halves = |is_control: bool| {
        let mut order = Side::BOTH;
        order.shuffle(rng);
        let state = if rng.next_u32().is_multiple_of(2) { Side::With } else { Side::Without };
        order.map(|side| (side, if is_control { state } else { side }))
    };
    let mut controls = 0;
    for number in 0..pairs {
        all.push(Pair { number, control: false, halves: halves(false) });
        while controls * pairs < control * (number + 1) && controls < control {
            all.push(Pair { number: controls, control: true, halves: halves(true) });
            controls += 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats;

    #[test]
    fn control_pairs_are_spread_and_change_nothing() {
        let all = schedule(8, 2, &mut stats::generator(1, "x"));
        let controls: Vec<usize> = (0..all.len()).filter(|i| all[*i].control).collect();
        assert_eq!((all.len(), controls), (10, vec![1, 6]));
        let numbers: Vec<usize> = all.iter().filter(|p| !p.control).map(|p| p.number).collect();
        assert_eq!(numbers, (0..8).collect::<Vec<_>>());
        for pair in &all {
            let [(a, of_a), (b, of_b)] = pair.halves;
            assert!(a != b && if pair.control { of_a == of_b } else { of_a == a && of_b == b }, "{pair:?}");
        }
        assert!(schedule(3, 0, &mut stats::generator(1, "x")).iter().all(|p| !p.control));
    }

    /// Each side comes first about as often as the other, and A/A pairs are in either state.
    #[test]
    fn orders_and_states_are_drawn() {
        let all = schedule(200, 200, &mut stats::generator(5, "x"));
        let count = |f: &dyn Fn(&Pair) -> bool| all.iter().filter(|p| f(p)).count();
        for found in [
            count(&|p| !p.control && p.halves[0].0 == Side::With),
            count(&|p| p.control && p.halves[0].0 == Side::With),
            count(&|p| p.control && p.halves[0].1 == Side::With),
        ] {
            assert!((70..=130).contains(&found), "{found}");
        }
    }
}
