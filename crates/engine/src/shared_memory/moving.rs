//! Asks the kernel for each part, and again for those that were in use.

use super::choose::{Unit, neighbours};
use crate::Interrupt;
use addr::AvmaRange;
use splice::HUGE;
use std::io;
use std::time::Duration;

/// How long a call may take: an interrupt is heeded after it.
const CALL: Duration = Duration::from_millis(100);
/// The most units of one call.
const AT_A_TIME: u32 = 32;
/// A process that touches a unit while it is moved has to wait. The kernel takes longer if more processes have mapped the
/// memory. If units take this long, so many times in a row, moving ends.
const SLOW: Duration = Duration::from_millis(250);
const SLOW_CALLS: usize = 3;
/// So many refusals for lack of room, one after the other, end it. Single ones have another cause.
const FULL_CALLS: usize = 3;
/// How often the kernel is asked for a unit in use.
const PASSES: usize = 3;
/// The time between two passes, in which pages in use may be released.
const PAUSE: Duration = Duration::from_millis(100);

/// What the kernel has done.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What is in huge pages now.
    pub(super) huge: Vec<Unit>,
    /// Why the others are not.
    pub(super) end: Option<End>,
    /// True if further calls would be of no use, or are not wanted.
    pub(super) ends: bool,
}

/// Why moving ended with some units in small pages.
#[derive(Debug)]
pub(super) enum End {
    /// A signal asked for it.
    Interrupted,
    /// It took so long that others would notice: the time for one unit.
    Slow(Duration),
    /// The kernel refused.
    Refused(io::Error),
}

/// Moves units by `collapse`, which moves one range, or fails if it cannot move all of it, and tells how long that took.
/// Calls `show` with the number of units in huge pages so far.
pub(super) fn move_units(
    units: &[Unit],
    interrupt: &Interrupt,
    collapse: impl FnMut(AvmaRange) -> (io::Result<()>, Duration),
    show: impl FnMut(usize),
) -> Outcome {
    let mut mover = Mover {
        interrupt,
        collapse,
        show,
        at_a_time: 1,
        slow: 0,
        full: 0,
        left: Vec::new(),
        outcome: Outcome::default(),
    };
    let mut rest = units;
    while !rest.is_empty() {
        let (group, behind) = neighbours(rest, mover.at_a_time as usize);
        // A call ends at the first unit that cannot be moved for some reasons.
        if !mover.tries(group) {
            group.chunks(1).for_each(|unit| mover.moves(unit));
        }
        rest = behind;
    }
    for _ in 1..PASSES {
        if mover.left.is_empty() || mover.outcome.ends {
            break;
        }
        std::thread::sleep(PAUSE);
        let left = std::mem::take(&mut mover.left);
        left.chunks(1).for_each(|unit| mover.moves(unit));
    }
    if mover.left.is_empty() {
        (mover.outcome.end, mover.outcome.ends) = (None, false);
    }
    mover.outcome
}

struct Mover<'a, C, S> {
    interrupt: &'a Interrupt,
    collapse: C,
    show: S,
    /// How many units the next call may have.
    at_a_time: u32,
    /// How many calls were slow, one after the other.
    slow: usize,
    /// How many units were refused for lack of room, one after the other.
    full: usize,
    /// Units that were refused.
    left: Vec<Unit>,
    outcome: Outcome,
}

impl<C: FnMut(AvmaRange) -> (io::Result<()>, Duration), S: FnMut(usize)> Mover<'_, C, S> {
    /// Moves neighbours, or leaves them for the next pass.
    fn moves(&mut self, group: &[Unit]) {
        if !self.tries(group) {
            self.left.extend(group);
        }
    }

    /// Moves neighbours. Returns false if not all of them are in huge pages.
    fn tries(&mut self, group: &[Unit]) -> bool {
        if self.interrupt.is_wanted() {
            self.end(End::Interrupted);
        }
        let Some(first) = group.first().filter(|_| !self.outcome.ends) else { return false };
        let (moved, took) = (self.collapse)(AvmaRange::with_len(first.at, group.len() as u64 * HUGE));
        self.paces(took / u32::try_from(group.len()).unwrap_or(u32::MAX));
        match moved {
            Ok(()) => {
                self.full = 0;
                self.outcome.huge.extend(group);
                (self.show)(self.outcome.huge.len());
                true
            }
            Err(e) => {
                // Of a group, the units before the one that failed have been moved, and are asked for one by one.
                let is_one = group.len() == 1;
                let is_full = e.raw_os_error() == Some(libc::EBUSY);
                self.full = if is_full { self.full + usize::from(is_one) } else { 0 };
                // There is no huge page, or no process.
                let is_last = matches!(e.raw_os_error(), Some(libc::ENOMEM | libc::ESRCH));
                match is_one && is_last || self.full == FULL_CALLS {
                    true => self.end(End::Refused(e)),
                    false if !self.outcome.ends => self.outcome.end = Some(End::Refused(e)),
                    false => {}
                }
                false
            }
        }
    }

    /// Takes note of the time for one unit.
    fn paces(&mut self, unit: Duration) {
        let fits = CALL.as_micros() / unit.as_micros().max(1);
        self.at_a_time = u32::try_from(fits).unwrap_or(u32::MAX).clamp(1, AT_A_TIME);
        self.slow = if unit >= SLOW { self.slow + 1 } else { 0 };
        if self.slow == SLOW_CALLS {
            self.end(End::Slow(unit));
        }
    }

    fn end(&mut self, why: End) {
        if !self.outcome.ends {
            (self.outcome.ends, self.outcome.end) = (true, Some(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use addr::{Addr, Avma};
    use std::sync::atomic::Ordering;

    const AT: Avma = Avma(0x7f00_0000_0000);
    const QUICK: Duration = Duration::from_millis(1);

    fn units(n: u64) -> Vec<Unit> {
        (0..n).map(|i| Unit { at: AT.add(i * HUGE), holes: 0, swapped: 0 }).collect()
    }

    /// Runs with a kernel that takes this time for a unit, and refuses some calls, by the number of the call, the first
    /// unit and their number. Returns the outcome and the calls.
    fn run(
        n: u64,
        unit: Duration,
        refuses: impl Fn(usize, u64, u64) -> Option<i32>,
    ) -> (Outcome, Vec<(u64, u64)>) {
        let mut asked = Vec::new();
        let collapse = |r: AvmaRange| {
            let (first, len) = ((r.start.0 - AT.0) / HUGE, r.len() / HUGE);
            asked.push((first, len));
            let refused = refuses(asked.len(), first, len);
            let moved = refused.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
            (moved, unit * u32::try_from(len).unwrap())
        };
        let outcome = move_units(&units(n), &Interrupt::default(), collapse, |_| ());
        (outcome, asked)
    }

    fn errno(outcome: &Outcome) -> Option<i32> {
        match outcome.end.as_ref()? {
            End::Refused(e) => e.raw_os_error(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn calls_are_as_long_as_they_may_be() {
        for (unit, asked_for) in [
            (QUICK, vec![(0, 1), (1, 32), (33, 32), (65, 5)]),
            (Duration::from_millis(3), vec![(0, 1), (1, 32), (33, 32), (65, 5)]),
            (Duration::from_millis(4), vec![(0, 1), (1, 25), (26, 25), (51, 19)]),
            (Duration::from_millis(120), (0..70).map(|i| (i, 1)).collect()),
        ] {
            let (outcome, asked) = run(70, unit, |_, _, _| None);
            assert_eq!((&outcome.huge, errno(&outcome)), (&units(70), None));
            assert_eq!(asked, asked_for);
        }
    }

    #[test]
    fn what_others_would_notice_ends() {
        let (outcome, asked) = run(70, Duration::from_millis(250), |_, _, _| None);
        assert_eq!((outcome.huge.len(), asked.len()), (3, 3));
        assert!(matches!(outcome.end, Some(End::Slow(_))) && outcome.ends, "{outcome:?}");
        // If it was the last unit, there is nothing to give a reason for.
        let (outcome, _) = run(3, Duration::from_millis(250), |_, _, _| None);
        assert!(outcome.end.is_none() && !outcome.ends, "{outcome:?}");
    }

    #[test]
    fn what_was_in_use_is_asked_for_again() {
        // The call for three is refused, that for the second of them once, that for the third always.
        let refuses =
            |n, first, len| (len > 1 || first == 3 || (first == 2 && n < 6)).then_some(libc::EAGAIN);
        let (outcome, asked) = run(4, QUICK, refuses);
        assert_eq!(asked, [(0, 1), (1, 3), (1, 1), (2, 1), (3, 1), (2, 1), (3, 1), (3, 1)]);
        assert_eq!((&outcome.huge[..], errno(&outcome)), (&units(4)[..3], Some(libc::EAGAIN)));
        // What is moved at last leaves no error.
        let (outcome, _) = run(4, QUICK, |n, _, _| (n > 1 && n < 6).then_some(libc::EAGAIN));
        assert_eq!((outcome.huge.len(), errno(&outcome)), (4, None));
        let (outcome, _) = run(4, QUICK, |n, _, _| (n == 2).then_some(libc::EAGAIN));
        assert_eq!((outcome.huge.len(), errno(&outcome)), (4, None));
    }

    #[test]
    fn it_ends_when_there_is_no_huge_page() {
        for (end, calls) in [(libc::ENOMEM, 1), (libc::ESRCH, 1), (libc::EBUSY, 3)] {
            let (outcome, asked) = run(70, QUICK, |_, first, len| (first + len > 35).then_some(end));
            let last = (35..).map(|first| (first, 1)).take(calls);
            let expected = [(0, 1), (1, 32), (33, 32), (33, 1), (34, 1)].into_iter().chain(last);
            assert_eq!(asked, expected.collect::<Vec<_>>());
            assert_eq!((&outcome.huge, errno(&outcome)), (&units(35), Some(end)));
        }
        // A single one has another cause.
        let (outcome, _) =
            run(70, QUICK, |_, first, len| (first..first + len).contains(&35).then_some(libc::EBUSY));
        assert_eq!((outcome.huge.len(), errno(&outcome)), (69, Some(libc::EBUSY)));
    }

    #[test]
    fn an_interrupt_keeps_what_was_moved() {
        let interrupt = Interrupt::default();
        let collapse = |_| {
            interrupt.cell().store(2, Ordering::Relaxed);
            (Ok(()), QUICK)
        };
        let mut shown = Vec::new();
        let outcome = move_units(&units(70), &interrupt, collapse, |n| shown.push(n));
        assert_eq!((outcome.huge, shown), (units(1), vec![1]));
        assert!(matches!(outcome.end, Some(End::Interrupted)));
    }
}
