//! Chooses which loops are unrolled in clones.
//!
//! A loop takes a branch in each iteration, whatever the order of its blocks. In loads that iterate over
//! strings or rows, most of the remaining taken branches are of this kind. Unrolling makes the back edge
//! rarer.

use crate::analyse::program::FuncId;
use crate::base::passes::{Pass, Style};
use crate::plan::laid_out::{Inlined, LaidOut};
use crate::plan::loop_copies::loop_trips;
use crate::plan::shuffle::Rng;
use code::{BlockId, Dest};
use emit::Unroll;
use std::cmp::Reverse;

/// The smallest average number of iterations per entry. Control may leave the loop behind any copy, by a
/// branch that is then taken.
const MIN_TRIPS: u64 = 8;
/// The largest number of copies.
const MOST_COPIES: u32 = 4;
/// The largest size of all copies together.
const MOST_BYTES: u64 = 256;
/// Bytes by which a short branch of the original grows if it leaves the loop.
const LONGER: u64 = 4;

/// Chooses the loops of each function. With a random layout, the number of copies is random. Of loops that
/// share blocks, chooses the loop with the most iterations.
pub(crate) fn choose(inlined: Vec<Inlined>, Style { shuffle, passes }: Style) -> Vec<LaidOut> {
    let laid_out = |inlined: Inlined| {
        let unrolls = if passes.has(Pass::Loops) { unrolls(&inlined, shuffle) } else { Vec::new() };
        LaidOut { inlined, unrolls }
    };
    inlined.into_iter().map(laid_out).collect()
}

fn unrolls(c: &Inlined, shuffle: Option<u64>) -> Vec<Unroll> {
    let order = c.layout.order.all();
    let mut found: Vec<(u64, Unroll)> = emit::loops(&c.analysed.cfg, order)
        .into_iter()
        .map(|r| match shuffle {
            Some(seed) => (0, Unroll { copies: by_chance(seed, c.id, order[r.first]), ..r }),
            None => wanted(c, r),
        })
        .filter(|(_, r)| r.copies > 1)
        .collect();
    found.sort_by_key(|(round, r)| (Reverse(*round), r.first, r.blocks));
    let mut unrolls: Vec<Unroll> = Vec::new();
    for (_, r) in found {
        let apart = |o: &Unroll| o.first + o.blocks <= r.first || r.first + r.blocks <= o.first;
        if unrolls.iter().all(apart) {
            unrolls.push(r);
        }
    }
    unrolls
}

/// Uses only facts that are the same in each process; addresses are not.
fn by_chance(seed: u64, of: FuncId, b: BlockId) -> u32 {
    let which = u64::from(of.module.0) << 48 ^ u64::from(of.index) << 20 ^ u64::from(b.0);
    let copies = Rng::new(Rng::new(seed).next() ^ which).below(MOST_COPIES as usize) + 1;
    u32::try_from(copies).unwrap_or(1)
}

/// Returns how often a loop iterates, and how many copies it gets. Counts inferred from samples show that a
/// loop iterates, but not how often; it then gets one copy.
fn wanted(c: &Inlined, r: Unroll) -> (u64, Unroll) {
    let order = &c.layout.order;
    let blocks = &order.all()[r.first..r.first + r.blocks];
    let cfg = &c.analysed.cfg;
    let goes = |from: BlockId, to: BlockId| {
        let (mut n, mut edges) = (0, c.counts.edges(from).iter());
        cfg.successors(from, |d| {
            let way = edges.next().copied().unwrap_or(0);
            n = if d == Dest::Block(to) { way.saturating_add(n) } else { n };
        });
        n
    };
    let (round, entered) = loop_trips(blocks, |b| c.counts.block(b), goes);
    let entered = entered.max(1);
    let bytes: u64 = blocks.iter().map(|b| cfg.blocks[b.index()].range.len() + LONGER).sum();
    let is_hot = r.first + r.blocks <= order.hot().len();
    let often = c.is_counted() && is_hot && round.saturating_add(entered) / entered >= MIN_TRIPS;
    let room = u32::try_from(MOST_BYTES / bytes.max(1)).unwrap_or(1).clamp(1, MOST_COPIES);
    (round, Unroll { copies: if often { room } else { 1 }, ..r })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::passes::Passes;
    use crate::plan::candidate::{Certainty, Counted};
    use crate::plan::test_candidate::{LOOP, counted, inlined, set_edges};

    fn chosen(round: u64, entered: u64, hot: usize, style: Style) -> Vec<(usize, u32)> {
        unrolled(inlined(looped(round, entered), &[0, 1], hot), style)
    }

    fn looped(round: u64, entered: u64) -> Counted {
        let mut c = counted(1, &[round + entered, entered], 0);
        c.measured.candidate.analysed.cfg = code::parse(LOOP).unwrap();
        set_edges(&mut c.measured.counts, &[&[round, entered], &[]]);
        c
    }

    fn unrolled(c: Inlined, style: Style) -> Vec<(usize, u32)> {
        choose(vec![c], style)[0].unrolls.iter().map(|r| (r.first, r.copies)).collect()
    }

    #[test]
    fn loops_with_many_iterations_are_unrolled() {
        let style = Style::default();
        assert_eq!(chosen(70, 10, 2, style), [(0, 4)]);
        assert_eq!(chosen(69, 10, 2, style), [], "too rarely");
        assert_eq!(chosen(1000, 0, 2, style), [(0, 4)], "nobody has left it yet");
        assert_eq!(chosen(70, 10, 0, style), [], "it lies among the warm code");
        let without = Style { passes: Passes::without(&[Pass::Loops]), ..style };
        assert_eq!(chosen(70, 10, 2, without), []);
        let mut estimated = looped(70, 10);
        estimated.measured.certainty = Certainty::Estimated;
        assert_eq!(unrolled(inlined(estimated, &[0, 1], 2), style), [], "nobody has counted");
    }

    /// `jmp b2; b1: inc; b2: dec; jne b1; b3: ret`
    const ENTERED_BEHIND: &str = "\
function 0x1000
part 0x1000..0x100a
block b0 0x1000
  eb 02
  jump b2
block b1 0x1002
  ff c0
  fall b2
block b2 0x1004
  48 ff c8
  75 f9
  cond ne b1 else b3
block b3 0x1009
  c3
  return
";

    #[test]
    fn loops_of_several_blocks() {
        let loops = |order: [u32; 4], round: u64| {
            let mut c = counted(1, &[10, round, round + 10, 10], 0);
            c.measured.candidate.analysed.cfg = code::parse(ENTERED_BEHIND).unwrap();
            set_edges(&mut c.measured.counts, &[&[10], &[round], &[round, 10], &[]]);
            unrolled(inlined(c, &order, 4), Style::default())
        };
        assert_eq!(loops([0, 1, 2, 3], 70), [(1, 4)]);
        assert_eq!(loops([0, 2, 1, 3], 70), [(1, 4)], "behind its branch");
        assert_eq!(loops([0, 1, 2, 3], 69), [], "too rarely");
        assert_eq!(loops([0, 1, 3, 2], 70), [], "it lies in two pieces");
    }

    #[test]
    fn random_layouts_have_any_number_of_copies() {
        let by = |seed| chosen(0, 0, 2, Style { shuffle: Some(seed), ..Style::default() });
        let all: std::collections::BTreeSet<_> = (0..40).map(by).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [vec![], vec![(0, 2)], vec![(0, 3)], vec![(0, 4)]]);
    }
}
