//! What an installation tells the next whet, kept in the target beside the journal (JSON, versioned).

use crate::{DynoReport, UserTime};
use serde::{Deserialize, Serialize};
use splice::Installed;
use std::collections::BTreeMap;
use tracee::Process;

/// The version this whet writes.
const VERSION: u32 = 1;

/// Everything `explain` needs without looking at the program again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Notes {
    /// Of this format.
    pub version: u32,
    /// The seed of a random layout.
    pub shuffle: Option<u64>,
    /// What was left out of it to be measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// User samples the choice was made from.
    pub samples: u64,
    /// Share of them in cloned functions.
    pub coverage: f64,
    /// The same for the main program.
    pub coverage_main: f64,
    /// Where all of the user time goes; absent where no samples are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_time: Option<UserTime>,
    /// Why functions, or entries, were left alone: reason to count.
    pub refusals: BTreeMap<String, usize>,
    /// The functions that were wanted.
    pub functions: Vec<NotedFunction>,
    /// What their layout makes the CPU do, where that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dyno: Option<DynoReport>,
    /// What they were laid out by, in the text form of profiles; empty where that was chance.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub profile: String,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NotedFunction {
    /// Name, or module and stated address.
    pub name: String,
    /// Process address of the original's entry.
    pub at: u64,
    /// Samples in it.
    pub samples: u64,
    /// Where the clone is entered, and the size of its code there, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clone: Option<(u64, u64)>,
    /// Where its blocks are that run rarely, if they lie apart, and their size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<(u64, u64)>,
    /// Why it was left alone, or why only its entry was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Notes {
    /// The stored form.
    #[must_use]
    pub fn write(mut self) -> Vec<u8> {
        self.version = VERSION;
        serde_json::to_vec(&self).unwrap_or_default()
    }

    /// Those of the newest generation in a target.
    #[must_use]
    pub fn of(process: &Process, installed: &Installed) -> Option<Self> {
        let caches = installed.of(installed.generation());
        caches.filter_map(|c| c.notes(process).ok()).find_map(|bytes| Self::read(&bytes))
    }

    /// Reads them back; `None` for another version or other bytes.
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
