//! Brings the members of a family into the state of their parent.
//!
//! The parent comes first: a child that is forked later inherits what is in force in the parent. A child that
//! was forked during a change has a part of it, and a journal that lists that part. So members are listed
//! again until a listing shows no new one.
//!
//! INVARIANT(overruled): an operator's undo of the family first announces itself in the parent, then takes
//! each member's lock. Here the parent is checked under the member's lock, right before the member is
//! changed. So either the undo finds the change, or the change is not made.

use crate::base::parallel;
use crate::build::lookup;
use crate::family::copy::{Done, Generation};
use crate::family::facts;
use crate::family::fit::Head;
use crate::session::lock::TargetLock;
use crate::session::state::StopMs;
use crate::{Error, Interrupt, Target};
use addr::ReadMemory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tracee::{Pid, Process, Raised};

/// The most stops in a second, all members together, for each CPU that the family and whet may use: a stop mostly
/// costs CPU time.
const STOPS_PER_SECOND: u32 = 300;
/// How often the members are listed.
const LISTINGS: usize = 10;

/// What was done with the members of a family.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MembersReport {
    /// Members that were found, the parent excluded.
    pub found: usize,
    /// Members that had the parent's clones in force already, because they inherited them.
    pub in_force: usize,
    /// Members that had the parent's clones and got them in force.
    pub redone: usize,
    /// Members in which the parent's clones were installed.
    pub installed: usize,
    /// Members in which the clones were installed in anonymous memory, although the parent has them in files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_from_files: Vec<LeftAlone>,
    /// Members that ended meanwhile.
    pub ended: usize,
    /// Members that were left alone.
    pub left_alone: Vec<LeftAlone>,
    /// Stops of all members.
    pub stops: usize,
    /// How long a member was stopped.
    pub stop_ms: StopMs,
    /// How long all of it took.
    pub seconds: f64,
}

/// A member that was left alone, and runs its originals or the clones of an earlier generation; or one that got its
/// clones in anonymous memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// The member.
    pub pid: i32,
    /// A stable name of the reason.
    pub code: String,
    /// The reason.
    pub why: String,
}

/// Puts the newest generation of a parent in force in all members that fit.
///
/// # Errors
/// Returns [`Error::NotInstalled`] if the parent has no clones in force, [`Error::Changed`] if another
/// command undid the parent's meanwhile, [`Error::Tracee`] if the parent ended or executed another program.
/// Members that were changed until then are in order. After an interrupt, the other members are left alone.
pub(crate) fn align(parent: Pid, interrupt: &Interrupt) -> Result<MembersReport, Error> {
    let begun = Instant::now();
    // New threads have the priority of the thread that starts them.
    let _favoured = Raised::favoured();
    // It was there a moment ago.
    let (process, lock) = TargetLock::open(parent).map_err(|e| gone(parent, e))?;
    let interrupt = interrupt.watching(&process);
    let target = lock.target(parent).map_err(|e| gone(parent, e))?;
    let outcome = align_members(&target, &interrupt, begun);
    outcome.map_err(|e| target.cause(e))
}

fn align_members(parent: &Target, interrupt: &Interrupt, begun: Instant) -> Result<MembersReport, Error> {
    let pid = parent.process.pid();
    let generation = Generation::newest(parent)?;
    let image = parent.image()?;
    let lookup = lookup::find(parent, &image)?;
    let head = Head::new(parent, &image, &lookup, generation.marks())?;
    let (mut report, mut stops) = (MembersReport::default(), Vec::new());
    let stopped = AtomicUsize::new(0);
    let mut known: BTreeSet<(Pid, u64)> = BTreeSet::new();
    let tick = tracee::start_time_now();
    let cpus = parallel::cpus_with(pid);
    for _ in 0..LISTINGS {
        let members = facts::family_of(pid)?.unlike_parent(tick);
        let new: Vec<Pid> = members.filter(|m| known.insert((m.pid, m.start))).map(|m| m.pid).collect();
        if new.is_empty() {
            break;
        }
        report.found += new.len();
        let outcomes = parallel::map_waiting(cpus, &new, |&member| {
            // Once it has been undone, no other member is touched.
            let stands = interrupt.check().and_then(|()| still_stands(parent));
            let outcome = stands.and_then(|()| head.join(member)).and_then(|member| {
                still_stands(parent)?;
                generation.put_in(&member)
            });
            let stops = outcome.as_ref().map_or(0, |done| done.stops().len());
            let least = time_for(stopped.fetch_add(stops, Ordering::Relaxed) + stops, cpus);
            std::thread::sleep(least.saturating_sub(begun.elapsed()));
            outcome
        });
        for (member, outcome) in new.into_iter().zip(outcomes) {
            stops.extend(outcome.as_ref().map_or(&[][..], Done::stops));
            match outcome {
                Ok(Done::Nothing) => report.in_force += 1,
                Ok(Done::Redone(_)) => report.redone += 1,
                Ok(Done::Installed { not_from_files, .. }) => {
                    report.installed += 1;
                    let code = "not_from_files".to_owned();
                    report.not_from_files.extend(not_from_files.map(|why| LeftAlone {
                        pid: member.0,
                        code,
                        why,
                    }));
                }
                Err(e) => {
                    still_stands(parent)?;
                    match left_alone(member, &e) {
                        Some(left) => report.left_alone.push(left),
                        None => report.ended += 1,
                    }
                }
            }
        }
    }
    report.stops = stops.len();
    report.stop_ms = StopMs::of(&stops);
    report.seconds = (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3;
    Ok(report)
}

/// Checks that the parent lives, runs the same program, and was not undone meanwhile.
fn still_stands(parent: &Target) -> Result<(), Error> {
    let pid = parent.process.pid();
    let anchor = parent.installed.as_ref().map(|i| &i.anchor).ok_or(Error::NotInstalled { pid })?;
    if !parent.process.is_alive() {
        return Err(tracee::Error::Gone(pid).into());
    }
    let undos =
        parent.process.u64(anchor.undos_at()).map_err(|e| parent.cause(tracee::Error::from(e).into()))?;
    if undos == anchor.undos { Ok(()) } else { Err(Error::Changed { pid }) }
}

/// Returns the error for a process that has ended since it was found.
fn gone(pid: Pid, e: Error) -> Error {
    match e {
        Error::Tracee(tracee::Error::NoSuchProcess(_)) => tracee::Error::Gone(pid).into(),
        e => e,
    }
}

/// Returns why a member was left alone; `None` if the member has ended.
pub(crate) fn left_alone(member: Pid, e: &Error) -> Option<LeftAlone> {
    let has_ended = match Process::open(member) {
        Ok(process) => process.is_ending(),
        Err(e) => matches!(e, tracee::Error::NoSuchProcess(_)),
    };
    let (code, why) = (e.code().to_owned(), crate::with_causes(e));
    (!has_ended).then_some(LeftAlone { pid: member.0, code, why })
}

/// Returns the least time for so many stops on so many CPUs.
fn time_for(stops: usize, cpus: usize) -> Duration {
    let per_second = STOPS_PER_SECOND.saturating_mul(u32::try_from(cpus).unwrap_or(u32::MAX));
    Duration::from_secs(stops as u64) / per_second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_paced_by_the_number_of_cpus() {
        assert_eq!(time_for(0, 2), Duration::ZERO);
        assert_eq!(time_for(600, 2).as_millis(), 1000);
        assert_eq!(time_for(600, 16).as_millis(), 125);
        assert!(time_for(usize::MAX, 1) > Duration::from_secs(1000));
    }
}
