//! The members of a target's family, as one rebuild of the target uses them.

use crate::family::facts;
use crate::session::state::{TargetState, state_of};
use crate::{Error, Target};
use image::Mapping;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::time::Duration;
use tracee::{Pid, Process};

/// The number of members that are sampled: the members with most CPU time so far. Children forked meanwhile
/// are sampled as well.
const SAMPLED: usize = 200;
/// The time between two looks at the CPU times of all members.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// The other processes of a target's family. They are sampled with the target, and some can be counted in.
/// Empty for a target that is optimized alone.
#[derive(Debug, Default)]
pub(crate) struct Kin {
    /// The program of the family; `None` for a target that is optimized alone.
    program: Option<(u64, u64)>,
    /// The processes, the target included, each with its CPU time when the family was found. Nanoseconds. They are
    /// not held open: a family may have more processes than whet may have open files.
    members: Vec<(Pid, u64)>,
}

impl Kin {
    /// Finds the family of a parent.
    ///
    /// # Errors
    /// Returns the errors of [`facts::family_of`].
    pub(crate) fn of(parent: Pid) -> Result<Self, Error> {
        let family = facts::family_of(parent)?;
        let pids = family.members.iter().chain([&family.parent]).map(|f| f.pid);
        // A member that has ended is left out.
        let mut members: Vec<(Pid, u64)> =
            pids.filter_map(|pid| Some((pid, tracee::cpu_time_ns(pid)?))).collect();
        members.sort_by_key(|(_, cpu)| Reverse(*cpu));
        Ok(Self { program: Some(family.parent.kind.exe), members })
    }

    /// Returns the processes to sample beside the target; `None` for a target that is optimized alone.
    pub(crate) fn sampled(&self) -> Option<Vec<i32>> {
        self.program?;
        Some(self.members.iter().take(SAMPLED).map(|(pid, _)| pid.0).collect())
    }

    /// Returns whether the samples of a process are the family's. A child may have executed another program.
    /// The samples of a child that has ended count: a child rarely does more than start another program, and
    /// samples decide speed alone.
    pub(crate) fn is_of_family(&self, pid: i32, known: &mut FxHashMap<i32, bool>) -> bool {
        if self.program.is_none() {
            return true;
        }
        let of_program = || facts::program(Pid(pid)).is_none_or(|is| Some(is) == self.program);
        *known.entry(pid).or_insert_with(of_program)
    }

    /// Returns the living processes that have used CPU time since the family was found, the busiest first.
    pub(crate) fn busiest(&self) -> Vec<Pid> {
        let used = |(pid, before): &(Pid, u64)| {
            let used = tracee::cpu_time_ns(*pid)?.saturating_sub(*before);
            (used > 0).then_some((Reverse(used), *pid))
        };
        let mut busy: Vec<(Reverse<u64>, Pid)> = self.members.iter().filter_map(used).collect();
        busy.sort_unstable();
        busy.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Returns the busiest process in which clones are in force, from two looks at all processes.
    pub(crate) fn busiest_optimized(&self) -> Option<Pid> {
        std::thread::sleep(BETWEEN_LOOKS);
        let is_optimized = |pid: &Pid| {
            let target = Target::open(*pid).ok();
            target.and_then(|t| t.installed).is_some_and(|i| state_of(&i) == TargetState::Optimized)
        };
        self.busiest().into_iter().find(is_optimized)
    }

    /// Returns the present mappings of all members, so that clones lie where each of them has room.
    pub(crate) fn maps(&self) -> Vec<Mapping> {
        let of = |(pid, _): &(Pid, u64)| {
            image::maps::parse(&Process::open(*pid).and_then(|p| p.maps_text()).ok()?).ok()
        };
        self.members.iter().filter_map(of).flatten().collect()
    }
}
