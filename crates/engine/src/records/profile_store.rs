//! Profiles that outlive a process. An optimization records a profile and keeps it in the target beside the
//! journal. A later one uses it instead of sampling and counting.

mod apply;
mod collapsed;
mod loaded;
mod other_build;
mod pairs;
mod pprof;
mod record;
mod show;
mod sites;
mod write;

pub use apply::ProfileUse;
pub(crate) use apply::{candidates, used};
pub(crate) use loaded::{id_of, loaded};
pub(crate) use other_build::{Adapted, adapt};
pub(crate) use pprof::name_of;
pub(crate) use record::{Taken, counted, take_down};
pub use show::{ShownFunction, ShownModule, ShownPlace, ShownProfile, ShownSite, show_profile};
pub use write::{ProfileForm, ProfileText, write_profile};

use crate::records::notes::Notes;
use crate::{Error, Target};
use profile::Profile;
use std::path::{Path, PathBuf};
use tracee::Pid;

/// Returns the profile that the last optimization of a target used.
///
/// # Errors
/// Returns [`Error::NotInstalled`] for a process that whet has not touched, [`Error::NoProfile`] if the
/// layout is random, [`Error::Tracee`].
pub fn export_profile(pid: Pid) -> Result<Profile, Error> {
    let target = Target::open(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let notes = Notes::of(&target.process, installed).ok_or(Error::NotInstalled { pid })?;
    notes.profile.parse().map_err(|_| Error::NoProfile { pid })
}

/// Returns the id of a process's program in profiles; `None` if its file cannot be read.
#[must_use]
pub fn build_id(pid: Pid) -> Option<String> {
    let bytes = image::identity_of(Path::new(&format!("/proc/{}/exe", pid.0)))?;
    profile::BuildId::new(&bytes).map(|id| id.to_string())
}

/// Reads a profile file.
///
/// # Errors
/// [`Error::File`], [`Error::ProfileText`].
pub fn read_profile(path: &Path) -> Result<Profile, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    Profile::read(&bytes).map_err(|source| Error::ProfileText { path: path.to_owned(), source })
}

/// Reads profile files and adds them up.
///
/// # Errors
/// Same as [`read_profile`].
pub fn merge_profiles(paths: &[PathBuf]) -> Result<Profile, Error> {
    let mut sum = Profile::default();
    for path in paths {
        sum.merge(read_profile(path)?);
    }
    Ok(sum)
}
