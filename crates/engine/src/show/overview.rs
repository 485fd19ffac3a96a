//! All that a report of one target tells.

use crate::base::date;
use crate::operate::status;
use crate::records::notes::Notes;
use crate::show::explain;
use crate::show::heat;
use crate::{Error, ExplainReport, Heat, Target, TargetStatus};
use profile::Profile;
use tracee::Pid;

/// One target, as it stands.
#[derive(Clone, Debug)]
pub struct Overview {
    /// As `status` has it.
    pub status: TargetStatus,
    /// As `explain` has it, all functions.
    pub explained: ExplainReport,
    /// What its layout was made from; `None` where that was chance.
    pub profile: Option<ProfileFacts>,
    /// Where code ran before and runs now; `None` where no counts are known.
    pub heat: Option<Heat>,
}

/// How a profile was come by.
#[derive(Clone, Debug)]
pub struct ProfileFacts {
    /// When: RFC 3339, UTC.
    pub when: String,
    /// User samples.
    pub samples: u64,
    /// For how long they were taken.
    pub sampled_seconds: f64,
    /// For how long edges were counted.
    pub counted_seconds: f64,
}

/// Looks at a target. It is not stopped.
///
/// # Errors
/// [`Error::NotInstalled`], those of reading it.
pub fn overview(pid: Pid) -> Result<Overview, Error> {
    let target = Target::open(pid)?;
    of(&target).map_err(|e| target.cause(e))
}

fn of(target: &Target) -> Result<Overview, Error> {
    let pid = target.process.pid();
    let none = || Error::NotInstalled { pid };
    let installed = target.installed.as_ref().ok_or_else(none)?;
    let notes = Notes::of(&target.process, installed).ok_or_else(none)?;
    let status = status::of(target, Some(&notes)).ok_or_else(none)?;
    let mut functions: Vec<_> = notes.functions.iter().collect();
    functions.sort_by_key(|f| (std::cmp::Reverse(f.samples), f.at));
    let functions = functions.into_iter().map(explain::report).collect();
    let profile: Option<Profile> = notes.profile.parse().ok();
    let heat = match &profile {
        Some(profile) => heat::heat(target, installed, &target.image()?, profile),
        None => None,
    };
    Ok(Overview {
        status,
        explained: explain::of(target, installed, &notes, functions),
        profile: profile.map(|p| ProfileFacts {
            when: date::rfc3339(p.when),
            samples: p.samples,
            sampled_seconds: p.sampled as f64 / 1e3,
            counted_seconds: p.counted as f64 / 1e3,
        }),
        heat,
    })
}
