//! Notes of an installation for a later whet, kept in the target beside the journal (JSON, versioned).

use crate::{DynoReport, UserTime};
use serde::{Deserialize, Serialize};
use splice::Installed;
use std::collections::BTreeMap;
use tracee::Process;

/// The version that this whet writes.
const VERSION: u32 = 1;

/// All data that `explain` needs without reading the program again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Notes {
    /// The version of this format.
    pub version: u32,
    /// The seed of a random layout.
    pub shuffle: Option<u64>,
    /// Passes that were left out, for measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// User samples by which functions were chosen.
    pub samples: u64,
    /// The share of these samples in cloned functions.
    pub coverage: f64,
    /// The same share for the main program.
    pub coverage_main: f64,
    /// How all user time is distributed; absent without samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_time: Option<UserTime>,
    /// Why functions, or entries, were left alone: number for each reason.
    pub refusals: BTreeMap<String, usize>,
    /// The functions that were chosen for cloning.
    pub functions: Vec<NotedFunction>,
    /// Modelled executions of their layout, if edges were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dyno: Option<DynoReport>,
    /// The profile of their layout, in the text form of profiles; empty for a random layout.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub profile: String,
}

/// A function of the notes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NotedFunction {
    /// Its name, or its module and SVMA.
    pub name: String,
    /// Process address of the original's entry.
    pub at: u64,
    /// Samples in it.
    pub samples: u64,
    /// The address of the clone's entry, and the size of the fragment there, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone: Option<(u64, u64)>,
    /// The address of its warm blocks, if they lie apart, and their size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<(u64, u64)>,
    /// Why it was left alone, or why only its entry was left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Notes {
    /// Returns the stored form.
    #[must_use]
    pub fn write(mut self) -> Vec<u8> {
        self.version = VERSION;
        serde_json::to_vec(&self).unwrap_or_default()
    }

    /// Reads the notes of the newest generation in a target.
    #[must_use]
    pub fn of(process: &Process, installed: &Installed) -> Option<Self> {
        let caches = installed.of(installed.generation());
        caches.filter_map(|c| c.notes(process).ok()).find_map(|bytes| Self::read(&bytes))
    }

    /// Reads the stored form; `None` for another version or other bytes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(bytes).ok().filter(|n| n.version == VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_version_is_read() {
        let bytes = Notes { samples: 7, ..Notes::default() }.write();
        assert_eq!(Notes::read(&bytes).unwrap().samples, 7);
        let other = String::from_utf8(bytes).unwrap().replace("\"version\":1", "\"version\":99");
        assert!(Notes::read(other.as_bytes()).is_none());
        assert!(Notes::read(b"junk").is_none());
    }
}
