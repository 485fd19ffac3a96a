//! Sums of the CPU's records of its last taken branches.
//!
//! No other branch was taken between two consecutive ones of a stack. So the code from the destination of the
//! older branch to the newer branch ran once: a run. A stack of n entries gives n - 1 runs, and the branch at
//! the end of each. The branch of the oldest entry has no run before it and is left out, so runs and branches
//! have the same scale.

use addr::Avma;
use std::collections::HashMap;

/// A taken branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Taken {
    /// The address of the branch instruction.
    pub from: Avma,
    /// The destination.
    pub to: Avma,
}

/// Code that ran from one instruction to another without a taken branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// The address of the first instruction.
    pub first: Avma,
    /// The address of the last instruction, which took a branch.
    pub last: Avma,
}

/// Sums of branch stacks: how often each branch was taken and each run was executed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BranchStacks {
    taken: HashMap<Taken, u64>,
    runs: HashMap<Run, u64>,
    stacks: u64,
}

impl BranchStacks {
    /// Adds a stack, newest branch first. `None` marks a gap: nothing is known about the code between its
    /// neighbours, as after an aborted transaction. The caller leaves out branches that ran only by a wrong
    /// prediction. Branches into and out of the kernel are not counted, but the runs of user code next to
    /// them are.
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

    /// Adds `n` executions of a run. Ignores the run if either end is in the kernel.
    pub fn add_run(&mut self, run: Run, n: u64) {
        if is_user(run.first) && is_user(run.last) {
            let sum = self.runs.entry(run).or_default();
            *sum = sum.saturating_add(n);
        }
    }

    /// Adds `n` executions of a branch. Ignores the branch if either end is in the kernel.
    pub fn add_taken(&mut self, taken: Taken, n: u64) {
        if is_user(taken.from) && is_user(taken.to) {
            let sum = self.taken.entry(taken).or_default();
            *sum = sum.saturating_add(n);
        }
    }

    /// Returns the number of stacks with at least one pair of consecutive branches.
    #[must_use]
    pub fn stacks(&self) -> u64 {
        self.stacks
    }

    /// Returns whether no run and no branch has been recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.taken.is_empty()
    }

    /// Returns all runs and how often each was executed, by rising address.
    #[must_use]
    pub fn runs(&self) -> Vec<(Run, u64)> {
        sorted(&self.runs)
    }

    /// Returns all branches and how often each was taken, by rising address.
    #[must_use]
    pub fn taken(&self) -> Vec<(Taken, u64)> {
        sorted(&self.taken)
    }
}

/// Returns whether an address is in the lower half of the address space, which belongs to the user.
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
    fn a_gap_gives_no_run() {
        let mut s = BranchStacks::default();
        s.add([taken(0x30, 0x40), None, taken(0x20, 0x28)]);
        s.add([taken(1, 2)]);
        s.add([None, None]);
        s.add([]);
        assert!(s.is_empty() && s.stacks() == 0);
    }

    #[test]
    fn runs_next_to_kernel_code_are_kept() {
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
