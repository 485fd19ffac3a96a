//! The profile from which a target is started warm, and its origin.

use crate::exchange::Exchange;
use crate::supervisor::{Daemon, Entry};
use fleet::{Digest, Slot};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The origin of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Kept by this host, of the target's build.
    Own,
    /// The fleet's, of the target's build.
    Fleet,
    /// Kept by this host, of another build of the program.
    OwnOfOtherBuild,
    /// The fleet's, of another build of the program.
    FleetOfOtherBuild,
}

/// A profile from which a target may be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Warm {
    pub(crate) path: PathBuf,
    pub(crate) origin: Origin,
}

/// The origin of the profile from which a target was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) source: Source,
    /// The aggregate, if it is the fleet's.
    pub(crate) aggregate: Option<Digest>,
}

impl Source {
    /// Returns the words for the log.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Own => "this host's profile of its build",
            Self::Fleet => "the fleet's profile of its build",
            Self::OwnOfOtherBuild => "this host's profile of another build",
            Self::FleetOfOtherBuild => "the fleet's profile of another build",
        }
    }
}

impl Exchange {
    /// Chooses the profile for a start of a build: this host's, else the fleet's, else this host's of another
    /// build, else the fleet's of another build. `other_build` is this host's profile of another build.
    pub(crate) fn warm_profile(&self, build: &str, other_build: Option<&Path>) -> Option<Warm> {
        let own = |source, path: PathBuf| {
            path.exists().then_some(Warm { path, origin: Origin { source, aggregate: None } })
        };
        let fleets = |source, slot| {
            let (path, digest) = self.usable(build, slot)?;
            Some(Warm { path, origin: Origin { source, aggregate: Some(digest) } })
        };
        own(Source::Own, self.store.profile(build))
            .or_else(|| fleets(Source::Fleet, Slot::Own))
            .or_else(|| own(Source::OwnOfOtherBuild, other_build?.to_owned()))
            .or_else(|| fleets(Source::FleetOfOtherBuild, Slot::Former))
    }
}

impl Daemon {
    /// Returns the profile from which a target would be started warm.
    pub(crate) fn warm_profile(&self, entry: &Entry) -> Option<Warm> {
        self.exchange.warm_profile(entry.build_id.as_deref()?, entry.other_build.as_deref())
    }
}
