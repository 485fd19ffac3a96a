//! What the CPU's records of its last taken branches say, summed up.
//!
//! Between two branches that were taken one after the other no other was: all that lies between where the older led and
//! where the newer is ran, once. So a stack of n entries tells of n - 1 runs and of the branch behind each; the
//! oldest entry's own branch has no run before it and is left out, so that runs and branches are of one scale.

use addr::Avma;
use std::collections::HashMap;

/// A branch that was taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Taken {
    /// The branch instruction.
    pub from: Avma,
    /// Where it went.
    pub to: Avma,
}

/// Code that ran from one instruction to another without a branch being taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// The first instruction.
    pub first: Avma,
    /// The last one, which took a branch.
    pub last: Avma,
}

/// Branch stacks, summed up: how often each branch was taken and each run ran.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BranchStacks {
    taken: HashMap<Taken, u64>,
    runs: HashMap<Run, u64>,
    stacks: u64,
}

impl BranchStacks {
    /// Adds a stack, newest branch first. `None` is where nothing is known of what came in between, as in an aborted
    /// transaction; what ran by a wrong guess is to be left out. Of branches into the kernel and out of it only the user's
    /// side counts.
    pub fn add(&mut self, newest_first: impl IntoIterator<Item = Option<Taken>>) {
        let mut newer: Option<Taken> = None;
        let mut any = false;
        for older in newest_first {
            if let (Some(newer), Some(older)) = (newer, older) {
                any = true;
                self.add_run(Run { first: older.to, last: newer.from }, 1);
                self.add_taken(newer, 1);
            }
            newer = older;
        }
        self.stacks = self.stacks.saturating_add(any.into());
    }

    /// Adds a run that ran `n` times; nothing where either end is in the kernel.
    pub fn add_run(&mut self, run: Run, n: u64) {
        if is_user(run.first) && is_user(run.last) {
            let sum = self.runs.entry(run).or_default();
            *sum = sum.saturating_add(n);
        }
    }

    /// Adds a branch that was taken `n` times; nothing where either end is in the kernel.
    pub fn add_taken(&mut self, taken: Taken, n: u64) {
        if is_user(taken.from) && is_user(taken.to) {
            let sum = self.taken.entry(taken).or_default();
            *sum = sum.saturating_add(n);
        }
    }

    /// Stacks that told of anything.
    #[must_use]
    pub fn stacks(&self) -> u64 {
        self.stacks
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.taken.is_empty()
    }

    /// What ran, and how often, in the order of addresses.
    #[must_use]
    pub fn runs(&self) -> Vec<(Run, u64)> {
        sorted(&self.runs)
    }

    /// What was taken, and how often, in the order of addresses.
    #[must_use]
    pub fn taken(&self) -> Vec<(Taken, u64)> {
        sorted(&self.taken)
    }
}

/// The lower half of the address space is the user's.
fn is_user(at: Avma) -> bool {
    at.0 >> 63 == 0
}

fn sorted<K: Copy + Ord>(map: &HashMap<K, u64>) -> Vec<(K, u64)> {
    let mut all: Vec<(K, u64)> = map.iter().map(|(&key, &n)| (key, n)).collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    fn taken(from: u64, to: u64) -> Option<Taken> {
        Some(Taken { from: Avma(from), to: Avma(to) })
    }

    fn run(first: u64, last: u64) -> Run {
        Run { first: Avma(first), last: Avma(last) }
    }

    #[test]
    fn a_run_lies_between_two_branches() {
        let mut s = BranchStacks::default();
        s.add([taken(0x30, 0x40), taken(0x20, 0x28), taken(0x10, 0x18)]);
        s.add([taken(0x30, 0x50), taken(0x20, 0x28)]);
        assert_eq!(s.runs(), [(run(0x18, 0x20), 1), (run(0x28, 0x30), 2)]);
        let wanted = [(0x20, 0x28), (0x30, 0x40), (0x30, 0x50)].map(|(f, t)| (taken(f, t).unwrap(), 1));
        assert_eq!(s.taken(), wanted);
        assert_eq!(s.stacks(), 2);
    }

    #[test]
    fn nothing_is_told_across_a_break() {
        let mut s = BranchStacks::default();
        s.add([taken(0x30, 0x40), None, taken(0x20, 0x28)]);
        s.add([taken(1, 2)]);
        s.add([None, None]);
        s.add([]);
        assert!(s.is_empty() && s.stacks() == 0);
    }

    #[test]
    fn of_the_kernel_only_the_users_side_counts() {
        let mut s = BranchStacks::default();
        // A system call at 0x24: into the kernel, within it, and out of it.
        let kernel = [taken(KERNEL + 8, 0x26), taken(KERNEL, KERNEL + 4), taken(0x24, KERNEL)];
        s.add([taken(0x30, 0x40)].into_iter().chain(kernel).chain([taken(0x10, 0x20)]));
        assert_eq!(s.runs(), [(run(0x20, 0x24), 1), (run(0x26, 0x30), 1)]);
        assert_eq!(s.taken(), [(taken(0x30, 0x40).unwrap(), 1)]);
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut s = BranchStacks::default();
        for _ in 0..2 {
            s.add_run(run(1, 2), u64::MAX);
            s.add_taken(taken(2, 1).unwrap(), u64::MAX);
        }
        assert_eq!((s.runs()[0].1, s.taken()[0].1), (u64::MAX, u64::MAX));
    }
}
