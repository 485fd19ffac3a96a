//! Decides which processes belong to a family.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use tracee::Pid;

/// A process, by facts of `/proc`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fact {
    pub(crate) pid: Pid,
    /// Its parent.
    pub(crate) parent: Pid,
    /// When it started: clock ticks since boot.
    pub(crate) start: u64,
    pub(crate) kind: Kind,
}

/// The properties that all members of a family share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Device and inode of the program.
    pub(crate) exe: (u64, u64),
    /// The text of the control groups.
    pub(crate) groups: String,
    /// Where the program's code and the first stack begin. A forked child inherits both. The kernel draws
    /// them anew when a process executes a program; it shows zeros to those that may not trace the process.
    pub(crate) layout: [u64; 2],
}

impl Fact {
    fn is_like(&self, other: &Fact) -> bool {
        self.kind == other.kind
    }

    /// Returns whether both are facts of one process that has executed no other program meanwhile.
    pub(crate) fn is_same(&self, other: &Fact) -> bool {
        let program = |f: &Fact| (f.pid, f.start, f.kind.exe, f.kind.layout);
        program(self) == program(other)
    }
}

/// A parent and its descendants, all of the same kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Family {
    pub(crate) parent: Fact,
    /// The others, by process id.
    pub(crate) members: Vec<Fact>,
    /// Whether children of the parent may have been forked by members that have ended since.
    pub(crate) adopts: bool,
}

impl Family {
    /// Returns the members that may differ from their parent. Leaves out children that the parent has forked
    /// since `tick`: by then it had the intended state, which they inherited.
    pub(crate) fn unlike_parent(self, tick: u64) -> impl Iterator<Item = Fact> {
        let parent = self.parent.pid;
        let tick = if self.adopts { u64::MAX } else { tick };
        // Clock ticks are rounded.
        self.members.into_iter().filter(move |m| m.parent != parent || m.start <= tick.saturating_add(1))
    }
}

/// Returns the family to which a process belongs. Its parent is the topmost ancestor of the same kind. A
/// child that executed a program is no member, and neither are its children.
pub(crate) fn family(of: Pid, facts: &[Fact]) -> Option<Family> {
    let by_pid: FxHashMap<Pid, &Fact> = facts.iter().map(|f| (f.pid, f)).collect();
    let mut parent = *by_pid.get(&of)?;
    // Facts are read one after the other, so they may contradict each other. No chain is longer than the
    // list.
    for _ in facts {
        match by_pid.get(&parent.parent) {
            Some(above) if above.is_like(parent) => parent = above,
            _ => break,
        }
    }
    let mut children: FxHashMap<Pid, Vec<&Fact>> = FxHashMap::default();
    for fact in facts.iter().filter(|f| f.is_like(parent)) {
        children.entry(fact.parent).or_default().push(fact);
    }
    let mut members: BTreeMap<Pid, Fact> = BTreeMap::new();
    let mut todo = vec![parent.pid];
    while let Some(pid) = todo.pop() {
        for child in children.remove(&pid).into_iter().flatten().filter(|c| c.pid != parent.pid) {
            members.insert(child.pid, child.clone());
            todo.push(child.pid);
        }
    }
    Some(Family { parent: parent.clone(), members: members.into_values().collect(), adopts: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(pid: i32, parent: i32, exe: u64, groups: &str) -> Fact {
        let kind = Kind { exe: (1, exe), groups: groups.to_owned(), layout: [0; 2] };
        Fact { pid: Pid(pid), parent: Pid(parent), start: 0, kind }
    }

    fn pids(of: i32, facts: &[Fact]) -> Option<(i32, Vec<i32>)> {
        family(Pid(of), facts).map(|f| (f.parent.pid.0, f.members.iter().map(|m| m.pid.0).collect()))
    }

    #[test]
    fn same_program_and_groups_below_one_parent() {
        let mut anew = fact(27, 20, 7, "a");
        anew.kind.layout = [5, 5];
        let facts = [
            // A child that executed the program anew.
            anew,
            fact(1, 0, 10, "a"),
            // A shell that started the server.
            fact(5, 1, 11, "a"),
            fact(20, 5, 7, "a"),
            fact(21, 20, 7, "a"),
            fact(22, 20, 7, "a"),
            // A grandchild.
            fact(23, 21, 7, "a"),
            // A child that executed another program, and that program's child of the first program.
            fact(24, 20, 9, "a"),
            fact(25, 24, 7, "a"),
            // A child that was moved to another control group.
            fact(26, 20, 7, "b"),
            // Another server of the same program.
            fact(30, 5, 7, "a"),
            fact(31, 30, 7, "a"),
        ];
        let family = Some((20, vec![21, 22, 23]));
        for of in 20..=23 {
            assert_eq!(pids(of, &facts), family, "{of}");
        }
        assert_eq!(pids(25, &facts), Some((25, vec![])));
        assert_eq!(pids(26, &facts), Some((26, vec![])));
        assert_eq!(pids(27, &facts), Some((27, vec![])));
        assert_eq!(pids(31, &facts), Some((30, vec![31])));
        assert_eq!(pids(99, &facts), None);
    }

    #[test]
    fn later_children_are_like_their_parent() {
        let started = |pid, parent, start| Fact { start, ..fact(pid, parent, 7, "") };
        // The last is a child of a member that may not have been changed yet.
        let facts =
            [started(1, 0, 5), started(2, 1, 6), started(3, 1, 101), started(4, 1, 102), started(5, 2, 102)];
        let visited: Vec<i32> = family(Pid(1), &facts).unwrap().unlike_parent(100).map(|m| m.pid.0).collect();
        assert_eq!(visited, [2, 3, 5]);
        // The parent may have adopted 4, which a member forked.
        let family = Family { adopts: true, ..family(Pid(1), &facts).unwrap() };
        assert_eq!(family.unlike_parent(100).count(), 4);
    }

    #[test]
    fn facts_that_contradict_each_other_end() {
        let ring = [fact(2, 3, 7, ""), fact(3, 2, 7, ""), fact(4, 4, 7, "")];
        assert!(family(Pid(2), &ring).is_some());
        assert_eq!(pids(4, &ring), Some((4, vec![])));
    }
}
