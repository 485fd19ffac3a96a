//! The profile from which a target is started warm, and its origin.

use crate::exchange::Exchange;
use crate::states::Source;
use fleet::{Digest, Slot};
use std::path::{Path, PathBuf};

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
