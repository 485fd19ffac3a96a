//! All data for a report of one target.

use crate::base::date;
use crate::operate::status;
use crate::records::notes::Notes;
use crate::show::debug_names;
use crate::show::debuginfod::Debuginfod;
use crate::show::explain;
use crate::show::flame::{self, Flame};
use crate::show::heat;
use crate::{Error, ExplainReport, Heat, Target, TargetStatus};
use profile::Profile;
use std::time::Duration;
use tracee::Pid;

/// The present state of one target.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The data of `status`.
    pub status: TargetStatus,
    /// The data of `explain`, for all functions.
    pub explained: ExplainReport,
    /// The profile of its layout; `None` for a random layout.
    pub profile: Option<ProfileFacts>,
    /// Where code ran before and runs now; `None` without counts.
    pub heat: Option<Heat>,
    /// User time by function and caller; `None` without samples.
    pub flame: Option<Flame>,
}

/// How a profile was taken.
#[derive(Clone, Debug)]
pub struct ProfileFacts {
    /// When it was taken: RFC 3339, UTC.
    pub when: String,
    /// User samples.
    pub samples: u64,
    /// How long samples were taken.
    pub sampled_seconds: f64,
    /// How long edges were counted.
    pub counted_seconds: f64,
}

/// Reads a target without stopping it. Samples it for `sampling`, if its clones are in force.
///
/// # Errors
/// Returns [`Error::NotInstalled`], and the errors of reading the target.
pub fn overview(pid: Pid, sampling: Duration, debuginfod: &mut Debuginfod) -> Result<Overview, Error> {
    let target = Target::open(pid)?;
    of(&target, sampling, debuginfod).map_err(|e| target.cause(e))
}

fn of(target: &Target, sampling: Duration, debuginfod: &mut Debuginfod) -> Result<Overview, Error> {
    let pid = target.process.pid();
    let none = || Error::NotInstalled { pid };
    let installed = target.installed.as_ref().ok_or_else(none)?;
    let notes = Notes::of(&target.process, installed).ok_or_else(none)?;
    let status = status::of(target, Some(&notes)).ok_or_else(none)?;
    let mut functions: Vec<_> = notes.functions.iter().collect();
    functions.sort_by_key(|f| (std::cmp::Reverse(f.samples), f.at));
    let image = target.image()?;
    let names = debug_names::names(target, &image, &explain::entries(&functions), debuginfod);
    let functions = functions.into_iter().map(|f| explain::report(f, &names)).collect();
    let mut profile: Option<Profile> = notes.profile.parse().ok();
    let (heat, flame) = match &mut profile {
        Some(profile) => {
            debug_names::name_in_profile(target, &image, profile, debuginfod);
            let live = flame::Live { target, installed, image: &image, notes: &notes };
            let flame = flame::flame(live, profile, sampling);
            (heat::heat(target, installed, &image, profile), flame)
        }
        None => (None, None),
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
        flame,
    })
}
