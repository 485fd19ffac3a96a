//! Families: a parent and its children of the same kind are one target.
//!
//! Pure: what the members of a family have in common is passed in.

use crate::states::{Job, Moment};
use crate::watch::{Identity, Seen};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A target, as seen in one look.
#[derive(Debug)]
pub(crate) struct Unit {
    /// The parent, or a process without a family.
    pub(crate) head: Seen,
    /// Its family, itself excluded.
    pub(crate) members: Vec<Seen>,
}

/// Groups processes into families. A process belongs to its parent's family if both have the same program and
/// the same `kind`. A process that `is_apart` is the head of a family of its own. A child without a kind has
/// ended a moment ago, or may not be read: it is left out.
pub(crate) fn group<K: PartialEq>(
    seen: Vec<Seen>,
    kind: impl Fn(i32) -> Option<K>,
    is_apart: impl Fn(i32) -> bool,
) -> Vec<Unit> {
    let by_pid: HashMap<i32, &Seen> = seen.iter().map(|s| (s.id.pid, s)).collect();
    let mut kinds: HashMap<i32, Option<K>> = HashMap::new();
    let mut above: HashMap<i32, i32> = HashMap::new();
    let mut ended: HashSet<i32> = HashSet::new();
    for child in &seen {
        let Some(parent) = by_pid.get(&child.parent).filter(|p| p.exe == child.exe) else { continue };
        let (pid, parent) = (child.id.pid, parent.id.pid);
        for pid in [pid, parent] {
            kinds.entry(pid).or_insert_with(|| kind(pid));
        }
        match &kinds[&pid] {
            None => drop(ended.insert(pid)),
            own if *own == kinds[&parent] && !is_apart(pid) => drop(above.insert(pid, parent)),
            Some(_) => {}
        }
    }
    let head = |pid: i32| {
        let mut at = pid;
        // Processes are read one after the other, so they may contradict each other. No chain is longer than
        // the list.
        for _ in 0..=above.len() {
            match above.get(&at) {
                Some(&parent) if parent != pid => at = parent,
                _ => return at,
            }
        }
        pid
    };
    let heads: Vec<i32> = seen.iter().map(|s| head(s.id.pid)).collect();
    let (mut units, mut rest) = (BTreeMap::new(), Vec::new());
    for (seen, head) in seen.into_iter().zip(heads).filter(|(s, _)| !ended.contains(&s.id.pid)) {
        match seen.id.pid == head {
            true => drop(units.insert(head, Unit { head: seen, members: Vec::new() })),
            false => rest.push((seen, head)),
        }
    }
    for (seen, head) in rest {
        let pid = seen.id.pid;
        match units.get_mut(&head) {
            Some(unit) => unit.members.push(seen),
            None => drop(units.insert(pid, Unit { head: seen, members: Vec::new() })),
        }
    }
    units.into_values().collect()
}

/// The members of one target's family.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Whether there was ever a member. Others may come between two looks.
    forks: bool,
    /// Each member, and whether its journal is to be read.
    known: BTreeMap<Identity, bool>,
    /// Children that the parent has forked later have what the parent has. Clock ticks since boot; `None`
    /// while a worker changes the family, and before the first worker.
    settled: Option<u64>,
    /// CPU time of all processes, at the last scan. Seconds.
    spent: Option<(f64, Moment)>,
}

impl Members {
    /// Returns the number of members, the parent excluded.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns whether there is any member, or was one.
    pub(crate) fn is_family(&self) -> bool {
        self.forks
    }

    /// Returns whether a process was a member in the last scan.
    pub(crate) fn contains(&self, pid: i32) -> bool {
        let from = Identity { pid, start: 0 };
        self.known.range(from..=Identity { pid, start: u64::MAX }).next().is_some()
    }

    /// Returns the members.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Identity> + '_ {
        self.known.keys().copied()
    }

    /// Records what a look has seen. Returns the user CPU time of the family since the look before, percent
    /// of one CPU. The time of children that ended and were waited for is part of their parent's.
    pub(crate) fn see(&mut self, unit: &Unit, now: Moment) -> f64 {
        let head = unit.head.id.pid;
        let is_new = |m: &Seen| m.parent != head || self.settled.is_none_or(|at| m.id.start <= at + 1);
        let to_read = |m: &Seen| self.known.get(&m.id).copied().unwrap_or_else(|| is_new(m));
        self.known = unit.members.iter().map(|m| (m.id, to_read(m))).collect();
        self.forks |= !self.known.is_empty();
        let all = || unit.members.iter().chain([&unit.head]);
        if self.known.is_empty() {
            self.spent = None;
            return unit.head.cpu_percent;
        }
        let total: f64 = all().map(|s| s.spent).sum();
        match self.spent.replace((total, now)) {
            Some((before, at)) => {
                100.0 * (total - before).max(0.0) / now.saturating_sub(at).as_secs_f64().max(1e-3)
            }
            None => all().map(|s| s.cpu_percent).sum(),
        }
    }

    /// Records that a worker has begun a job on the family.
    pub(crate) fn begin(&mut self, job: Job) {
        if job.visits_members() {
            self.known.values_mut().for_each(|to_read| *to_read = false);
        }
        // A comparison changes one process, and its children inherit the state of the moment.
        if job != Job::Check {
            self.settled = None;
        }
    }

    /// Records that a worker has ended a job at a moment, in clock ticks since boot.
    pub(crate) fn end(&mut self, job: Job, now: u64) {
        if job != Job::Check {
            self.settled = Some(now);
        }
    }

    /// Returns the members whose journals are to be read.
    pub(crate) fn to_read(&self) -> impl Iterator<Item = Identity> + '_ {
        self.known.iter().filter(|(_, to_read)| **to_read).map(|(id, _)| *id)
    }

    /// Records that a member's journal was read.
    pub(crate) fn was_read(&mut self, id: Identity) {
        if let Some(to_read) = self.known.get_mut(&id) {
            *to_read = false;
        }
    }

    /// Requests that all journals be read again.
    pub(crate) fn read_again(&mut self) {
        self.known.values_mut().for_each(|to_read| *to_read = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn seen(pid: i32, parent: i32, exe: &str, start: u64, spent: f64) -> Seen {
        let id = Identity { pid, start };
        Seen { id, parent, exe: exe.to_owned(), cpu_percent: 1.0, spent, age: Duration::from_secs(9) }
    }

    fn groups(seen: Vec<Seen>, kind: fn(i32) -> Option<u8>, apart: i32) -> Vec<(i32, Vec<i32>)> {
        let units = group(seen, kind, |pid| pid == apart);
        units.iter().map(|u| (u.head.id.pid, u.members.iter().map(|m| m.id.pid).collect())).collect()
    }

    fn of(pid: i32, parent: i32) -> Seen {
        seen(pid, parent, "/server", 1, 0.0)
    }

    #[test]
    fn parents_and_children_of_one_kind() {
        let list = || vec![of(2, 1), of(3, 2), of(4, 3), of(5, 2), seen(6, 2, "/other", 1, 0.0), of(9, 1)];
        assert_eq!(groups(list(), |_| Some(0), 0), [(2, vec![3, 4, 5]), (6, vec![]), (9, vec![])]);
        // One executed the program anew; one cannot be read; a worker is at work on one.
        let kind = |pid| Some(u8::from(pid == 3));
        assert_eq!(
            groups(list(), kind, 0),
            [(2, vec![5]), (3, vec![]), (4, vec![]), (6, vec![]), (9, vec![])]
        );
        let kind = |pid| (pid != 3).then_some(0);
        assert_eq!(groups(list(), kind, 0), [(2, vec![5]), (4, vec![]), (6, vec![]), (9, vec![])]);
        let kind = |pid| (pid != 2).then_some(0);
        assert_eq!(
            groups(list(), kind, 0),
            [(2, vec![]), (3, vec![4]), (5, vec![]), (6, vec![]), (9, vec![])]
        );
        assert_eq!(groups(list(), |_| Some(0), 3), [(2, vec![5]), (3, vec![4]), (6, vec![]), (9, vec![])]);
        // Facts that contradict each other: every process is in one group.
        let ring = groups(vec![of(2, 3), of(3, 2), of(4, 4)], |_| Some(0), 0);
        assert_eq!(ring.iter().map(|(_, m)| 1 + m.len()).sum::<usize>(), 3, "{ring:?}");
    }

    #[test]
    fn only_members_that_may_differ_are_read() {
        let unit = |members: Vec<Seen>| Unit { head: of(2, 1), members };
        let child = |pid, start| seen(pid, 2, "/server", start, 0.0);
        let mut members = Members::default();
        let to_read = |m: &Members| m.to_read().map(|id| id.pid).collect::<Vec<_>>();
        members.see(&unit(vec![child(3, 10), child(4, 11)]), Moment::ZERO);
        assert_eq!(to_read(&members), [3, 4], "nothing is known of a family that was just found");
        members.was_read(Identity { pid: 3, start: 10 });
        assert_eq!(to_read(&members), [4]);
        members.begin(Job::Optimize { fresh: false });
        assert_eq!(to_read(&members), [] as [i32; 0], "the worker visits them");
        members.see(&unit(vec![child(3, 10), child(4, 11), child(5, 20)]), Moment::ZERO);
        members.end(Job::Optimize { fresh: false }, 30);
        // 5 was forked meanwhile, 6 may have been, 7 was forked later, 8 by a member.
        let later = vec![child(5, 20), child(6, 31), child(7, 32), seen(8, 5, "/server", 40, 0.0)];
        members.see(&unit(later), Moment::ZERO);
        assert_eq!(to_read(&members), [5, 6, 8]);
        assert!(members.contains(7) && !members.contains(3));
        members.read_again();
        assert_eq!(to_read(&members).len(), 4);
    }

    #[test]
    fn cpu_time_of_children_that_come_and_go() {
        let mut members = Members::default();
        let s = Duration::from_secs(1);
        let look = |head: f64, children: &[f64]| Unit {
            head: seen(2, 1, "/server", 1, head),
            members: (3..).zip(children).map(|(pid, &spent)| seen(pid, 2, "/server", 1, spent)).collect(),
        };
        assert_eq!(members.see(&look(5.0, &[]), s), 1.0, "alone, it is as it was measured");
        assert_eq!(members.see(&look(5.0, &[1.0]), 2 * s), 2.0, "at first, the sum of all");
        assert_eq!(members.see(&look(5.0, &[1.5]), 3 * s), 50.0);
        // The child has ended, and the parent has waited for it: 0.5 s more since then.
        assert_eq!(members.see(&look(7.0, &[0.0]), 4 * s), 50.0);
        // The CPU time of a child that its parent never waits for is lost with the child.
        assert_eq!(members.see(&look(6.0, &[0.0]), 5 * s), 0.0);
    }
}
