//! What a host remembers from one run to the next. It can be deleted at any time: the next run reads more.

use crate::{Error, files};
use fleet::{Digest, Head, Newest, Policy};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The version of the form.
const VERSION: u32 = 1;

/// The records that a host keeps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// The version of the form.
    pub version: u32,
    /// The policy, with its tag in the store.
    pub policy: Option<(Policy, Option<String>)>,
    /// By build-id.
    pub programs: BTreeMap<String, ProgramMemory>,
    /// The newest builds by the names of their programs, each with its tag in the store.
    #[serde(default)]
    pub names: BTreeMap<String, (Newest, Option<String>)>,
    /// The votes that were written: `BUILD DIGEST`, or `BUILD DIGEST harm`.
    pub voted: BTreeSet<String>,
}

/// A host's records of a program.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProgramMemory {
    /// The newest head, with its tag in the store.
    pub head: Option<(Head, Option<String>)>,
    /// The digest of the profile that was contributed last.
    pub given: Option<Digest>,
    /// The last day on which this host was not among the contributors.
    pub passed: Option<u32>,
    /// Aggregates that did harm on this host.
    pub harmful: Vec<Digest>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            version: VERSION,
            policy: None,
            programs: BTreeMap::new(),
            names: BTreeMap::new(),
            voted: BTreeSet::new(),
        }
    }
}

impl Memory {
    /// Reads the memory. A file that cannot be used counts as none, because nothing in it is needed.
    ///
    /// # Errors
    /// [`Error::File`] if the file is there and cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = files::read(path)?.unwrap_or_default();
        let memory: Option<Self> = serde_json::from_slice(&bytes).ok();
        Ok(memory.filter(|m| m.version == VERSION).unwrap_or_default())
    }

    /// Writes the memory.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|e| files::failed(path, &e))?;
        files::write(path, &bytes, 0o600)
    }
}
