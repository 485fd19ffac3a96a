//! The inputs of a rebuild, except memory and files.

use code::Refusal;
use serde::{Deserialize, Serialize};

/// The inputs of a rebuild. Addresses are AVMAs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// The version of whet that made the capture.
    pub(crate) whet: String,
    /// The process.
    pub(crate) pid: i32,
    /// The path of its program.
    pub(crate) exe: String,
    /// The text of `/proc/PID/maps`.
    pub(crate) maps: String,
    /// The words of `/proc/PID/auxv`.
    pub(crate) auxv: Vec<u64>,
    /// Words by which unwinders call functions that whet redirects.
    pub(crate) kept: Vec<u64>,
    /// The entries of functions that run as originals, whatever their code is.
    pub(crate) originals: Vec<(u64, Reason)>,
    /// The seed of a random layout.
    pub(crate) shuffle: Option<u64>,
    /// The names of the passes that were left out.
    pub(crate) without: Vec<String>,
    /// The profile, as text; empty for a random layout.
    pub(crate) profile: String,
    /// The entries of hot functions that were left alone, with their samples.
    pub(crate) refused: Vec<(u64, u64)>,
}

/// Why a function runs as its original though its code could be cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// Another program has changed it.
    ForeignChange,
    /// Unwinders call it, or it makes such a call.
    RuntimeInternal,
}

impl Reason {
    /// Returns the reason as data.
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Reason::ForeignChange => Refusal::ForeignChange,
            Reason::RuntimeInternal => Refusal::RuntimeInternal,
        }
    }
}
