//! What is said on the socket: JSON objects, each ended by a NUL byte, in the manner of Varlink.
//!
//! A call is `{"method": "...", "parameters": {...}}`, its answer `{"parameters": {...}}` or `{"error": "...", "parameters":
//! {"message": "..."}}`. Fields may be added; those that are there stay.

use crate::machine::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most bytes of one call.
pub const MAX_CALL: usize = 16 << 10;
/// The most bytes of one answer.
pub const MAX_ANSWER: usize = 16 << 20;

/// A call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Which method: `whet.Status`, `whet.Metrics`, `whet.StandBack`, `whet.Reload`, `whet.Stop`.
    pub method: String,
    /// Its parameters.
    #[serde(default)]
    pub parameters: Value,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// What went wrong: `whet.NotPermitted`, `whet.UnknownMethod`, `whet.BadCall`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was asked for, or a `message`.
    pub parameters: Value,
}

/// The parameters of `whet.StandBack`: somebody is about to undo or redo this process by hand, or all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandBack {
    /// Which; all where it is left out.
    #[serde(default)]
    pub pid: Option<i32>,
    /// What for.
    pub wish: Wish,
}

/// What somebody is about to do by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// The daemon leaves it alone from now on.
    Undo,
    /// The daemon looks after it again.
    Redo,
}

/// The answer of `whet.Status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Of this program.
    pub version: String,
    /// The daemon's process.
    pub pid: i32,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether the kill-switch file is there.
    pub switched_off: bool,
    /// What is wrong with the configuration file that was to be read anew; the one before is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_error: Option<String>,
    /// How many processes on its list are alive; a daemon of an older version does not say.
    #[serde(default)]
    pub watched: usize,
    /// Processes on its list; those that have ended a short while ago among them.
    pub targets: Vec<TargetView>,
}

/// One target as the daemon sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetView {
    /// The process.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// Where it is.
    pub state: State,
    /// Why.
    pub reason: String,
    /// Since when: RFC 3339, UTC.
    pub since: String,
    /// User CPU time, percent of one CPU.
    pub cpu_percent: f64,
    /// Share of user samples in hot clones, when that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_share: Option<f64>,
    /// Work per user CPU second with clones, divided by that without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
}
