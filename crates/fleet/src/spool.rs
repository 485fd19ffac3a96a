//! The report that the daemon leaves in the spool folder.

use crate::{Digest, Refused, versioned};
use serde::{Deserialize, Serialize};

/// The version of the form.
const VERSION: u32 = 1;

/// The builds of a host, with the aggregates that the daemon accepted and refused.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostReport {
    /// The version of the form.
    pub version: u32,
    /// The builds of the daemon's targets.
    pub builds: Vec<BuildReport>,
    /// The results of comparisons after starts from aggregates.
    pub votes: Vec<Vote>,
}

/// One build on a host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BuildReport {
    /// The build-id of the program.
    pub build: String,
    /// The path of the program.
    pub exe: String,
    /// The daemon's decision on the aggregate in the inbox; `None` if there is none.
    pub inbox: Option<Taken>,
    /// The same for the aggregate of another build.
    #[serde(default)]
    pub former: Option<Taken>,
}

/// A place in the inbox for an aggregate that serves a build.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Slot {
    /// An aggregate of the build itself.
    Own,
    /// An aggregate of another build of the same program.
    Former,
}

impl Slot {
    /// Both places.
    pub const ALL: [Self; 2] = [Self::Own, Self::Former];

    /// Returns the name of the file for a build.
    #[must_use]
    pub fn file(self, build: &str) -> String {
        match self {
            Self::Own => format!("{build}.signed"),
            Self::Former => format!("{build}.former"),
        }
    }
}

/// The daemon's decision on an aggregate in the inbox.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// Accepted: the daemon starts targets of the build from it, unless the host has its own profile.
    Taken(Digest),
    /// Refused, for this reason.
    Refused(String),
}

/// The result of a comparison after a start from an aggregate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Vote {
    /// The build-id of the program.
    pub build: String,
    /// The aggregate.
    pub digest: Digest,
    /// It did harm and was undone.
    pub harm: bool,
    /// Work per user CPU second with clones, divided by work without; with the ends of its 95% interval.
    pub factor: [f64; 3],
}

impl Default for HostReport {
    fn default() -> Self {
        Self { version: VERSION, builds: Vec::new(), votes: Vec::new() }
    }
}

impl HostReport {
    /// Parses a report.
    ///
    /// # Errors
    /// [`Refused::Content`], [`Refused::Newer`]
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        versioned::parse(bytes, VERSION)
    }
}
