//! `undo` and `redo` of a family.

use crate::base::parallel;
use crate::family::align::{self, LeftAlone, MembersReport};
use crate::family::facts;
use crate::family::members::{Fact, Family};
use crate::operate::control::{self, ToggleAnswer};
use crate::operate::status::is_still;
use crate::session::state::{StopMs, TargetState};
use crate::{Error, Interrupt, Target};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Instant;
use tracee::Pid;

/// How often the members are listed until none is left to undo.
const LISTINGS: usize = 20;

/// The answer of `undo` for a family.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct FamilyUndone {
    /// The parent.
    pub parent: i32,
    /// Its answer; absent if it held no clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_answer: Option<ToggleAnswer>,
    /// Members that were found, the parent excluded.
    pub found: usize,
    /// Members that hold clones, and no redirect any more.
    pub undone: usize,
    /// Members in which redirects remain, with the reason.
    pub left: Vec<LeftAlone>,
    /// How long a process was stopped.
    pub stop_ms: StopMs,
    /// How long all of it took.
    pub seconds: f64,
}

/// The answer of `redo` for a family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FamilyRedone {
    /// The parent's answer.
    pub parent: ToggleAnswer,
    /// What was done with the members.
    pub members: MembersReport,
}

/// Removes every redirect from all processes of the family to which a process belongs. The parent comes
/// first, so that later children inherit none.
///
/// # Errors
/// Returns [`Error::NotInstalled`] if no process of the family holds clones; after the members that were found were
/// undone, the parent's errors of [`control::undo`], and [`tracee::Error::Gone`] if the parent ended meanwhile or
/// became another program: then members may be left.
pub fn undo_family(pid: Pid) -> Result<FamilyUndone, Error> {
    let begun = Instant::now();
    let family = facts::family_of(pid)?;
    let parent = family.parent.pid;
    // Even if the parent cannot be undone, its members can.
    let of_parent = control::undo(parent);
    let tick = match of_parent {
        Ok(_) => tracee::start_time_now(),
        Err(_) => u64::MAX,
    };
    let mut answer = FamilyUndone { parent: parent.0, ..FamilyUndone::default() };
    let mut stops = Vec::new();
    let is_whole = undo_members(family, tick, &mut answer, &mut stops);
    answer.parent_answer = match of_parent {
        Ok(toggled) => {
            stops.push(toggled.stop_ms.max);
            Some(toggled)
        }
        Err(Error::NotInstalled { .. }) if answer.undone > 0 => None,
        Err(e) => return Err(e),
    };
    if !is_whole {
        return Err(tracee::Error::Gone(parent).into());
    }
    answer.stop_ms = StopMs::of_ms(stops);
    answer.seconds = (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3;
    Ok(answer)
}

/// Removes the redirects from members until a listing shows none that is left to undo. `family` was found before
/// the parent was undone; `tick` is the time from which on the parent has no redirects. Adds what was done to the
/// answer, and the lengths of stops in milliseconds. Returns whether the parent was there until the end: without it,
/// its later children cannot be found.
fn undo_members(family: Family, tick: u64, answer: &mut FamilyUndone, stops: &mut Vec<f64>) -> bool {
    let Family { parent, members: mut listed, .. } = family;
    let (mut found, mut settled) = (BTreeSet::new(), BTreeSet::new());
    let (mut busy, mut is_whole) = (Vec::new(), true);
    let cpus = parallel::cpus_with(parent.pid);
    for _ in 0..LISTINGS {
        match facts::family_of(parent.pid).ok().filter(|now| now.parent.is_same(&parent)) {
            Some(now) => listed = now.unlike_parent(tick).collect(),
            // Those that were listed before are still there.
            None => is_whole = false,
        }
        busy.clear();
        let unsettled: Vec<Fact> =
            listed.iter().filter(|m| !settled.contains(&(m.pid, m.start))).cloned().collect();
        if unsettled.is_empty() {
            break;
        }
        // An operator's undo is worth more CPU time than a redo.
        let outcomes = parallel::map_waiting(2 * cpus, &unsettled, |member| {
            is_still(member.pid, member.start).and_then(|()| control::undo(member.pid))
        });
        for (member, outcome) in unsettled.into_iter().zip(outcomes) {
            let id = (member.pid, member.start);
            found.insert(id);
            match outcome {
                Ok(toggled) => {
                    answer.undone += 1;
                    stops.push(toggled.stop_ms.max);
                }
                Err(Error::NotInstalled { .. }) => {}
                Err(e) => {
                    let left = align::left_alone(member.pid, &e);
                    // Another whet may be installing clones in it.
                    if matches!(e, Error::Locked { .. } | Error::Changed { .. }) {
                        busy.extend(left);
                        continue;
                    }
                    if !holds_nothing(member.pid) {
                        answer.left.extend(left);
                    }
                }
            }
            settled.insert(id);
        }
    }
    answer.found = found.len();
    answer.left.extend(busy);
    is_whole
}

/// Returns whether a process has no journal. It need not be in a state in which it can be worked on.
fn holds_nothing(pid: Pid) -> bool {
    Target::open(pid).is_ok_and(|target| target.installed.is_none())
}

/// Puts the newest generation of a family's parent in force, in the parent and in all members that fit.
///
/// # Errors
/// Returns the errors of [`control::redo`] and `align::align`.
pub fn redo_family(pid: Pid) -> Result<FamilyRedone, Error> {
    let parent = facts::family_of(pid)?.parent.pid;
    let answer = control::redo(parent)?;
    let members = align::align(parent, &Interrupt::default())?;
    Ok(FamilyRedone { parent: answer, members })
}

/// Puts the newest generation of a family's parent in force in all members that fit. The parent is not
/// changed.
///
/// # Errors
/// Returns [`Error::NotInstalled`] if the parent has no clones in force, and the errors of [`redo_family`].
pub fn align_family(pid: Pid, interrupt: &Interrupt) -> Result<MembersReport, Error> {
    align::align(facts::family_of(pid)?.parent.pid, interrupt)
}

/// Repairs all processes of a family in which a whet died. Returns the parent's state afterwards, `None` if
/// whet never touched it.
///
/// # Errors
/// Same as [`control::mend`]; the parent's error comes first. Members that have ended are left out.
pub fn mend_family(pid: Pid) -> Result<Option<TargetState>, Error> {
    let family = facts::family_of(pid)?;
    let state = control::mend(family.parent.pid)?;
    for member in family.members {
        match control::mend(member.pid) {
            Err(e) if align::left_alone(member.pid, &e).is_some() && !holds_nothing(member.pid) => {
                return Err(e);
            }
            _ => {}
        }
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Members that were listed are undone although their parent has ended since; the answer is not whole.
    #[test]
    fn members_of_a_parent_that_has_ended() {
        let mut both = [0; 2].map(|_| Command::new("sleep").arg("100").spawn().unwrap());
        let fact = |n: usize| facts::family_of(Pid(i32::try_from(both[n].id()).unwrap())).unwrap().parent;
        let family = Family { parent: fact(0), members: vec![fact(1)], adopts: false };
        let mut answer = FamilyUndone::default();
        both[0].kill().unwrap();
        both[0].wait().unwrap();
        assert!(!undo_members(family, 0, &mut answer, &mut Vec::new()));
        assert_eq!((answer.found, answer.undone, answer.left), (1, 0, vec![]));
        both[1].kill().unwrap();
        both[1].wait().unwrap();
    }
}
