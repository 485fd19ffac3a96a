//! `optimize` for a family: one profile and one build, installed in the parent and then in all members.

use crate::family::align::{self, MembersReport};
use crate::family::facts;
use crate::family::kin::Kin;
use crate::rebuild::optimize::optimize_with;
use crate::rebuild::report::OptimizeReport;
use crate::{Error, OptimizeOptions, Progress};
use serde::{Deserialize, Serialize};
use tracee::Pid;

/// The answer of `optimize` for a family.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FamilyOptimized {
    /// The parent's answer. Its samples are of the whole family.
    pub parent: OptimizeReport,
    /// What was done with the members.
    pub members: MembersReport,
}

/// Profiles all processes of the family to which a process belongs, rebuilds their hot functions once, and
/// installs the clones in the parent and in all members that fit. Children that are forked later inherit them.
///
/// # Errors
/// Returns the errors of [`optimize`](crate::optimize) for the parent, and [`Error::Changed`] if an operator
/// undid it before all members were done.
pub fn optimize_family(
    pid: Pid,
    options: &OptimizeOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<FamilyOptimized, Error> {
    let pid = facts::family_of(pid)?.parent.pid;
    let kin = Kin::of(pid)?;
    let parent = optimize_with(pid, &kin, options, progress)?;
    let members = align::align(pid, &options.interrupt).map_err(|e| match e {
        // The clones were in force a moment ago.
        Error::NotInstalled { pid } => Error::Changed { pid },
        e => e,
    })?;
    Ok(FamilyOptimized { parent, members })
}
