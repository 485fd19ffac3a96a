//! Asks the kernel for each part, and again for those that were in use.

use super::choose::{Unit, runs};
use crate::{Error, Interrupt};
use addr::AvmaRange;
use std::io;
use std::time::Duration;

/// How many units are moved by one call: some tenths of a second, after which an interrupt is heeded.
const AT_A_TIME: usize = 32;
/// How often the kernel is asked.
const PASSES: usize = 3;
/// The time between two passes, for those who have pages in use.
const PAUSE: Duration = Duration::from_millis(100);

/// What the kernel has done.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What is in huge pages now.
    pub(super) huge: Vec<Unit>,
    /// Why not all of it.
    pub(super) refused: Option<io::Error>,
    pub(super) was_interrupted: bool,
}

/// Moves the units. `collapse` moves one range; `is_huge` returns what is in huge pages; `done` is told how many units
/// were tried.
///
/// # Errors
/// Errors of `is_huge`.
pub(super) fn move_units(
    units: &[Unit],
    interrupt: &Interrupt,
    mut collapse: impl FnMut(AvmaRange) -> io::Result<()>,
    is_huge: impl Fn() -> Result<Vec<AvmaRange>, Error>,
    mut done: impl FnMut(usize),
) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    let mut left = units.to_vec();
    for pass in 0..PASSES {
        // The kernel ends a call at the first part that it can't move for some reasons: those behind it get a
        // call each.
        let ranges = runs(&left, if pass == 0 { AT_A_TIME } else { 1 });
        outcome.refused = None;
        let mut ends = false;
        for range in ranges {
            outcome.was_interrupted = interrupt.is_wanted();
            ends = ends || outcome.was_interrupted;
            if ends {
                break;
            }
            if let Err(e) = collapse(range) {
                // No huge page is free, or the process has ended: the next call would fail as well.
                ends = matches!(e.raw_os_error(), Some(libc::ENOMEM | libc::ESRCH));
                outcome.refused = Some(e);
            }
            if pass == 0 {
                done(left.iter().take_while(|u| u.at < range.end).count());
            }
        }
        let huge = is_huge()?;
        let covered = |unit: &Unit| {
            // The first range that ends behind the unit's start.
            let at = huge.partition_point(|r| r.end <= unit.at);
            huge.get(at).is_some_and(|r| r.covers(&unit.range()))
        };
        let (now, not): (Vec<Unit>, Vec<Unit>) = left.iter().partition(|unit| covered(unit));
        outcome.huge.extend(now);
        left = not;
        if left.is_empty() {
            outcome.refused = None;
            break;
        }
        if ends || pass + 1 == PASSES {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::{Addr, Avma};
    use splice::HUGE;
    use std::cell::RefCell;

    /// A kernel that answers the calls for a range, one after the other, and the ranges that it was asked for.
    struct Kernel {
        huge: RefCell<Vec<AvmaRange>>,
        asked: RefCell<Vec<(u64, u64)>>,
    }

    const AT: Avma = Avma(0x7f00_0000_0000);

    fn range(first: u64, units: u64) -> AvmaRange {
        AvmaRange::with_len(AT.add(first * HUGE), units * HUGE)
    }

    /// Runs with a kernel that refuses some calls, by the number of the call, the first unit and their number.
    fn run(
        units: u64,
        refuses: impl Fn(usize, u64, u64) -> Option<i32>,
    ) -> (Outcome, Vec<(u64, u64)>, Vec<usize>) {
        let units: Vec<Unit> = (0..units).map(|i| Unit { at: AT.add(i * HUGE), holes: 0 }).collect();
        let kernel = Kernel { huge: RefCell::default(), asked: RefCell::default() };
        let mut done = Vec::new();
        let collapse = |r: AvmaRange| {
            let asked = ((r.start.0 - AT.0) / HUGE, r.len() / HUGE);
            kernel.asked.borrow_mut().push(asked);
            if let Some(errno) = refuses(kernel.asked.borrow().len(), asked.0, asked.1) {
                return Err(io::Error::from_raw_os_error(errno));
            }
            kernel.huge.borrow_mut().push(r);
            kernel.huge.borrow_mut().sort_by_key(|r| r.start);
            Ok(())
        };
        let outcome = move_units(
            &units,
            &Interrupt::default(),
            collapse,
            || Ok(kernel.huge.borrow().clone()),
            |n| done.push(n),
        );
        (outcome.unwrap(), kernel.asked.into_inner(), done)
    }

    #[test]
    fn all_in_few_calls() {
        let (outcome, asked, done) = run(70, |_, _, _| None);
        assert_eq!((outcome.huge.len(), outcome.refused.is_none()), (70, true));
        assert_eq!(asked, [(0, 32), (32, 32), (64, 6)]);
        assert_eq!(done, [32, 64, 70]);
    }

    #[test]
    fn what_was_in_use_is_asked_for_again() {
        // The first call for all three; of the single calls, one is refused once and one always.
        let (outcome, asked, _) =
            run(3, |n, first, len| (len > 1 || first == 2 || (first == 1 && n < 5)).then_some(libc::EAGAIN));
        assert_eq!(asked, [(0, 3), (0, 1), (1, 1), (2, 1), (1, 1), (2, 1)]);
        assert_eq!(outcome.huge.iter().map(|u| (u.at.0 - AT.0) / HUGE).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(outcome.refused.unwrap().raw_os_error(), Some(libc::EAGAIN));
    }

    #[test]
    fn without_huge_pages_it_ends_at_once() {
        let (outcome, asked, _) = run(70, |n, _, _| (n == 2).then_some(libc::ENOMEM));
        assert_eq!(asked, [(0, 32), (32, 32)]);
        assert_eq!(outcome.huge.len(), 32);
        assert_eq!(outcome.refused.unwrap().raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn an_interrupt_keeps_what_was_moved() {
        let interrupt = Interrupt::default();
        let units: Vec<Unit> = (0..70).map(|i| Unit { at: AT.add(i * HUGE), holes: 0 }).collect();
        let collapse = |_| {
            interrupt.cell().store(2, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        let outcome = move_units(&units, &interrupt, collapse, || Ok(vec![range(0, 32)]), |_| ()).unwrap();
        assert_eq!((outcome.huge.len(), outcome.was_interrupted), (32, true));
    }
}
