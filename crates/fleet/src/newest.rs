//! The newest build of a program that has an aggregate. Hosts with a build that has none start from it.
//!
//! Most functions of a program are the same in its next build, so an aggregate of another build, a *former*
//! one, serves for these. Builds are of the same program if their files have the same name. The store has one
//! signed record for each name and class: the newest build whose aggregate is in force on all hosts. The head
//! of that build names the aggregate. So an aggregate that is withdrawn, or still offered in waves, serves no
//! other build.
//!
//! Each merger corrects the record with every step, even if another merger wrote it last. The times in it are
//! the store's.

use crate::names::{hex, hex_name, unhex};
use crate::{Build, Digest, Head, Policy, Program, Refused, read, versioned};
use profile::Profile;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The version of the form.
const VERSION: u32 = 1;

hex_name!(
    /// The file name of a program, as a hash. It is the same for all builds.
    Name,
    16,
    "name: 32 hexadecimal digits"
);

impl Name {
    /// Returns the name of the program at a path; `None` if the path ends without a file name.
    #[must_use]
    pub fn of(exe: &str) -> Option<Self> {
        let file = exe.rsplit('/').next().filter(|f| !f.is_empty())?;
        let sum: [u8; 32] =
            Sha256::new().chain_update(b"whet-fleet name\0").chain_update(file).finalize().into();
        let mut name = [0; 16];
        name.copy_from_slice(&sum[..16]);
        Some(Self(name))
    }

    /// Returns the names that a profile in the fleet states. It states them in place of the programs' paths.
    pub(crate) fn all_in(profile: &Profile) -> impl Iterator<Item = Self> {
        profile.exes.iter().filter_map(|exe| exe.parse().ok())
    }

    /// Replaces the paths of programs in a profile by their names. Names stay as they are.
    pub(crate) fn put_in(profile: &mut Profile) {
        let exes = std::mem::take(&mut profile.exes);
        let name = |exe: &String| exe.parse().ok().or_else(|| Self::of(exe));
        profile.exes = exes.iter().filter_map(name).map(|n: Self| n.to_string()).collect();
    }
}

/// The record of the newest build of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Newest {
    /// The version of the form.
    pub version: u32,
    /// When it was written: seconds of the Unix epoch, by the store's clock. A record is never older than the
    /// one before.
    pub written: u64,
    /// The build-id; `None` if the aggregate of the build was withdrawn, and no other build has replaced it yet.
    pub build: Option<String>,
    /// When an aggregate of this build first was in force on all hosts: seconds of the Unix epoch, by the
    /// store's clock.
    pub since: u64,
}

impl Newest {
    /// Parses the content of a record, which must not be older than one that was seen before.
    ///
    /// # Errors
    /// [`Refused::Content`], [`Refused::Newer`], [`Refused::Older`]
    pub fn parse(content: &[u8], seen: u64) -> Result<Self, Refused> {
        let newest: Self = versioned::parse(content, VERSION)?;
        if let Some(build) = &newest.build
            && newest.build().is_none()
        {
            return Err(Refused::Name(build.clone(), "build-id"));
        }
        if newest.written < seen {
            return Err(Refused::Older { found: newest.written, seen });
        }
        Ok(newest)
    }

    /// Returns the text of the record.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the build.
    #[must_use]
    pub fn build(&self) -> Option<Build> {
        Build::parse(self.build.as_deref()?)
    }

    /// Returns the record that should replace the present one, after a step for a program of this name; `None`
    /// if the present one is right. `now` is the store's time in seconds.
    #[must_use]
    pub fn next(
        present: Option<&Self>,
        program: &Program,
        head: &Head,
        policy: &Policy,
        now: u64,
    ) -> Option<Self> {
        let build = program.build.to_string();
        let since = head.in_force(program, policy, &[]).and(head.since);
        let is_own = present.is_some_and(|p| p.build.as_ref() == Some(&build));
        let (build, since) = match (since, present) {
            // It has lost its aggregate. Any other build with one is better than none.
            (None, _) if is_own => (None, 0),
            (None, _) => return None,
            (Some(since), Some(p)) if (p.since, &p.build) >= (since, &Some(build.clone())) => return None,
            (Some(since), _) => (Some(build), since),
        };
        let written = present.map_or(now, |p| now.max(p.written.saturating_add(1)));
        Some(Self { version: VERSION, written, build, since })
    }
}

/// Reads the text of an aggregate of another build, and checks that it is of the program with this name.
///
/// # Errors
/// [`Refused::OtherProgram`], and the same as [`read()`].
pub fn read_former(text: &[u8], digest: &Digest, former: &Build, name: Name) -> Result<Profile, Refused> {
    let profile = read(text, digest, former)?;
    let is_of_program = Name::all_in(&profile).any(|n| n == name);
    is_of_program.then_some(profile).ok_or(Refused::OtherProgram)
}

#[cfg(test)]
#[path = "newest_tests.rs"]
mod tests;
