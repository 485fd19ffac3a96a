//! `status` and `verify` of a family.

use crate::family::facts;
use crate::family::kin::Kin;
use crate::operate::status::TargetStatus;
use crate::operate::verify::{VerifyReport, verify};
use crate::operate::watcher;
use crate::session::state::{TargetState, state_of};
use crate::{Error, Target};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tracee::{Pid, Process};

/// The answer of `status` for a family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FamilyStatus {
    /// The parent's process id.
    pub pid: i32,
    /// The parent's status; absent if it holds no clones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TargetStatus>,
    /// The members, the parent excluded.
    pub members: Vec<MemberStatus>,
    /// How many members are in which state; `untouched` for those without clones.
    pub states: BTreeMap<String, usize>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The member.
    pub pid: i32,
    /// Its state; `None` without clones.
    pub state: Option<TargetState>,
    /// Its newest generation; 0 without clones.
    pub generation: u32,
}

/// The answer of `verify` for a family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FamilyVerified {
    /// The parent's report.
    pub parent: VerifyReport,
    /// Members that were compared, the parent excluded.
    pub members: usize,
    /// Whether the code of all processes differs from the files only where the journals say so.
    pub identical: bool,
    /// Live redirects in all processes.
    pub live_redirects: usize,
    /// The reports of members with other differences.
    pub different: Vec<VerifyReport>,
}

/// Returns the parent of the family to which a process belongs.
///
/// # Errors
/// Returns the errors of [`tracee::preflight`] for a process whose facts cannot be read.
pub fn family_parent(pid: Pid) -> Result<Pid, Error> {
    Ok(facts::family_of(pid)?.parent.pid)
}

/// Returns the busiest process of a family in which clones are in force. Compares CPU times over a short
/// time.
///
/// # Errors
/// Returns [`Error::NothingHot`] if no such process uses CPU time, and the errors of [`family_parent`].
pub fn busiest_member(pid: Pid) -> Result<Pid, Error> {
    let parent = facts::family_of(pid)?.parent.pid;
    let why = "no process of the family with clones in force is busy".to_owned();
    Kin::of(parent)?.busiest_optimized().ok_or(Error::NothingHot { pid: parent, why })
}

/// Returns the state in a process's journal; `None` if it holds no clones.
///
/// # Errors
/// Returns [`Error::Locked`] while another whet works on it, [`Error::Tracee`] if the process cannot be read.
pub fn journal_state(pid: Pid) -> Result<Option<TargetState>, Error> {
    let _lock = Process::open(pid)?.lock()?.ok_or(Error::Locked { pid })?;
    let target = Target::open_of_any_version(pid)?;
    Ok(target.installed.filter(|i| i.generation() > 0 || i.is_counting()).as_ref().map(state_of))
}

/// Reads the state of a family.
///
/// # Errors
/// Returns the parent's errors. Members that end meanwhile, or may not be read, are left out.
pub fn family_status(pid: Pid) -> Result<FamilyStatus, Error> {
    let family = facts::family_of(pid)?;
    let parent = watcher::status(Some(family.parent.pid))?.targets.pop();
    let members: Vec<MemberStatus> = family.members.iter().filter_map(|m| member(m.pid)).collect();
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for member in &members {
        let word = member.state.map_or("untouched", TargetState::word);
        *states.entry(word.to_owned()).or_default() += 1;
    }
    Ok(FamilyStatus { pid: family.parent.pid.0, parent, members, states })
}

fn member(pid: Pid) -> Option<MemberStatus> {
    let target = Target::open_of_any_version(pid).ok()?;
    let installed = target.installed.as_ref();
    // The memory of a process that ends is gone before the process is.
    if installed.is_none() && target.process.is_ending() {
        return None;
    }
    let touched = installed.filter(|i| i.generation() > 0 || i.is_counting());
    Some(MemberStatus {
        pid: pid.0,
        state: touched.map(state_of),
        generation: touched.map_or(0, splice::Installed::generation),
    })
}

/// Compares the code of all processes of a family with their files.
///
/// # Errors
/// Returns the parent's errors, and [`Error::Locked`] if another whet keeps the lock of a member with
/// differences. Members that end meanwhile, or may not be read, are left out.
pub fn verify_family(pid: Pid) -> Result<FamilyVerified, Error> {
    let family = facts::family_of(pid)?;
    let parent = verify(family.parent.pid)?;
    let mut members: Vec<VerifyReport> = Vec::new();
    for member in family.members {
        match verify(member.pid) {
            Err(e @ Error::Locked { .. }) => return Err(e),
            verified => members.extend(verified.ok()),
        }
    }
    Ok(FamilyVerified {
        members: members.len(),
        identical: parent.identical && members.iter().all(|m| m.identical),
        live_redirects: parent.live_redirects + members.iter().map(|m| m.live_redirects).sum::<usize>(),
        different: members.into_iter().filter(|m| !m.identical).collect(),
        parent,
    })
}
