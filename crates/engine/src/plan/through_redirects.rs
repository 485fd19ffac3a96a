//! Chooses the calls of clones that go through the redirect at the callee's original entry.
//!
//! Clones call clones, so a thread in a clone continues there whatever is undone. A thread may stay in one
//! function as long as it lives, in the loop that serves a connection or takes jobs off a queue. It would
//! continue in clones that were undone, that count although the round is over, or that were laid out for
//! another load. So such a loop calls the originals' entries. This costs one more jump, and an undo, a redo
//! or a rebuild takes effect for the thread with the loop's next iteration.
//!
//! The analysis cannot show how long a thread stays, but it shows how often a loop iterates. A loop that
//! makes many of all calls must not become slower: a thread in it calls clones until it leaves the loop.

use crate::base::passes::Style;
use crate::plan::candidate::Measured;
use crate::plan::inlining::{calls, made};
use crate::plan::shuffle::Rng;
use code::InstId;

/// The smallest average number of executions of such a call per entry of its function.
const MIN_CALLS_PER_ENTRY: u64 = 32;
/// A call that makes more than one in `FEW` of all calls goes to the clone directly.
const FEW: u64 = 500;
/// At most one in `FEW_SAMPLES` samples may be in such a function while it counts.
const FEW_SAMPLES: u64 = 2000;

/// Chooses the calls of functions through redirects. With a random layout and without counts, the choice is
/// random.
pub(crate) struct Stays {
    chance: Option<Rng>,
    /// How many calls all functions made.
    all: u64,
}

impl Stays {
    /// Prepares the choice for all functions of a layout.
    pub(crate) fn new<'a>(all: impl Iterator<Item = &'a Measured>, Style { shuffle, .. }: Style) -> Self {
        Self { chance: shuffle.map(|seed| Rng::new(seed ^ 0x1a)), all: made(all) }
    }

    /// Returns the calls of one of the functions. The random choice depends on the calls of this before.
    pub(crate) fn calls(&mut self, c: &Measured) -> Vec<InstId> {
        let coin = self.chance.as_mut().map(|rng| rng.below(2) == 0);
        let entered = c.counts.entry;
        in_loops(c, |n| match coin {
            Some(coin) if !c.is_counted() => coin,
            // The threads in this function entered it before counting began.
            _ if c.is_counted() && entered == 0 => true,
            _ => n / MIN_CALLS_PER_ENTRY >= entered.max(1) && n <= self.all / FEW,
        })
    }
}

/// Returns the same for a counting clone, before the counts of its loops are known. A function with hardly
/// any of `samples` makes few calls.
pub(crate) fn while_it_counts(c: &Measured, samples: u64) -> Vec<InstId> {
    if c.samples <= samples / FEW_SAMPLES { in_loops(c, |_| true) } else { Vec::new() }
}

/// Returns the calls that a function can repeat without being left, ascending, if their counts are `wanted`.
fn in_loops(c: &Measured, wanted: impl Fn(u64) -> bool) -> Vec<InstId> {
    let mut wanted = calls(c).filter(|call| wanted(call.count)).peekable();
    if wanted.peek().is_none() {
        return Vec::new();
    }
    let in_cycle = code::in_cycles(&c.analysed.cfg);
    let mut through: Vec<InstId> =
        wanted.filter(|call| in_cycle[call.block.index()]).map(|call| call.place).collect();
    through.sort_unstable();
    through
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::candidate::{Certainty, Counted};
    use crate::plan::test_candidate::counted;

    /// `call; b1: call; dec; jne b1; call; ret`
    const SERVES: &str = "\
function 0x1000
part 0x1000..0x1015
block b0 0x1000
  e8 00 01 00 00
  fall b1
block b1 0x1005
  e8 00 01 00 00
  48 ff c8
  75 f6
  cond ne b1 else b2
block b2 0x100f
  e8 00 01 00 00
  c3
  return
";

    fn serves(entered: u64, calls_in_loop: u64, certainty: Certainty) -> Measured {
        let Counted { mut measured, .. } = counted(1, &[entered, calls_in_loop, entered], 0);
        measured.candidate.analysed.cfg = code::parse(SERVES).unwrap();
        measured.counts.entry = entered;
        Measured { certainty, ..measured }
    }

    /// Chooses beside a function with `others` calls.
    fn chosen(serves: Measured, others: u64) -> Vec<InstId> {
        let all = [serves, self::serves(others, 0, Certainty::Counted)];
        let mut stays = Stays::new(all.iter(), Style::default());
        let [chosen, none] = all.each_ref().map(|c| stays.calls(c));
        assert!(none.is_empty());
        chosen
    }

    #[test]
    fn calls_in_long_loops_with_few_calls_go_through_redirects() {
        for certainty in [Certainty::Counted, Certainty::Estimated] {
            let through =
                |entered, calls_in_loop| chosen(serves(entered, calls_in_loop, certainty), 1_000_000);
            assert_eq!((through(10, 320), through(10, 319)), (vec![InstId(1)], vec![]));
            assert_eq!((through(10, 4000), through(10, 5000)), (vec![InstId(1)], vec![]));
        }
    }

    #[test]
    fn calls_in_loops_entered_before_counting_go_through_redirects() {
        assert_eq!(chosen(serves(0, 0, Certainty::Counted), 10), [InstId(1)]);
        assert_eq!(chosen(serves(0, 1_000_000, Certainty::Counted), 10), [InstId(1)]);
        assert!(chosen(serves(0, 1_000_000, Certainty::Estimated), 10).is_empty());
    }

    #[test]
    fn calls_in_rarely_sampled_counting_loops_go_through_redirects() {
        let through = |samples| {
            let mut c = serves(0, 0, Certainty::Estimated);
            c.candidate.samples = samples;
            while_it_counts(&c, 10_000)
        };
        assert_eq!((through(5), through(6)), (vec![InstId(1)], vec![]));
    }

    #[test]
    fn random_layouts_choose_both_ways() {
        let through = |seed| {
            let c = serves(0, 0, Certainty::Estimated);
            let style = Style { shuffle: Some(seed), ..Style::default() };
            !Stays::new([&c].into_iter(), style).calls(&c).is_empty()
        };
        assert!((0..20).any(through) && !(0..20).all(through));
    }
}
