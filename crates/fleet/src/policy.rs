//! The operator's policy: signed, and the same for all hosts of a store.

use crate::{Digest, Program, Refused, versioned};
use serde::{Deserialize, Serialize};

/// The version of the form.
const VERSION: u32 = 1;

/// The policy. Without one in the store, the defaults hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// The version of the form.
    pub version: u32,
    /// A greater number replaces a smaller one. A host never goes back.
    pub serial: u64,
    /// No host takes anything new, and no wave advances. What hosts have stays in use.
    pub pause: bool,
    /// The shares of hosts to which an aggregate is offered, one after the other. Percent.
    pub waves: Vec<u8>,
    /// The least time from one wave to the next. Seconds.
    pub step: u64,
    /// The least time from one aggregate of a program to the next, unless the number of hosts has doubled.
    /// Seconds.
    pub every: u64,
    /// The fewest contributing hosts for an aggregate.
    pub min_hosts: usize,
    /// Builds (build-ids) and aggregates (digests) that no host uses. Hosts remove those they have.
    pub deny: Vec<String>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            version: VERSION,
            serial: 0,
            pause: false,
            waves: vec![1, 10, 100],
            step: 1800,
            every: 6 * 3600,
            min_hosts: 1,
            deny: Vec::new(),
        }
    }
}

impl Policy {
    /// Parses the content of a policy.
    ///
    /// # Errors
    /// [`Refused::Content`], [`Refused::Newer`]
    pub fn parse(content: &[u8]) -> Result<Self, Refused> {
        let policy: Self = versioned::parse(content, VERSION)?;
        policy.check()?;
        Ok(policy)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`Refused::Content`]
    pub fn check(&self) -> Result<(), Refused> {
        let rising = self.waves.windows(2).all(|w| w[0] < w[1]);
        if !rising || self.waves.last() != Some(&100) {
            return Err(Refused::Content(
                "waves: each must be greater than the one before, the last 100".to_owned(),
            ));
        }
        if self.min_hosts > crate::SAMPLE {
            return Err(Refused::Content(format!("min_hosts: at most {}", crate::SAMPLE)));
        }
        Ok(())
    }

    /// Returns the text of the policy.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns whether no host may use this aggregate, or any of this program.
    #[must_use]
    pub fn denies(&self, program: &Program, digest: &Digest) -> bool {
        let (build, digest) = (program.build.to_string(), digest.to_string());
        self.deny.iter().any(|d| *d == build || *d == digest)
    }
}
