//! The messages on the socket: JSON objects, each ended by a NUL byte, in the manner of Varlink.
//!
//! A call is `{"method": "...", "parameters": {...}}`. Its answer is `{"parameters": {...}}`, or
//! `{"error": "...", "parameters": {"message": "..."}}`. Fields may be added; existing fields stay.

use crate::states::{Source, State, Wish};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most bytes of one call.
pub const MAX_CALL: usize = 16 << 10;
/// The most bytes of one answer.
pub const MAX_ANSWER: usize = 16 << 20;

/// A call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The method: `whet.Status`, `whet.Metrics`, `whet.StandBack`, `whet.Reload`, `whet.Stop`.
    pub method: String,
    /// Its parameters.
    #[serde(default)]
    pub parameters: Value,
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The error's name: `whet.NotPermitted`, `whet.UnknownMethod`, `whet.BadCall`, `whet.BadConfig`,
    /// `whet.Fault`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The result; with an error, a `message`.
    pub parameters: Value,
}

/// The parameters of `whet.StandBack`: a process, or every process, is about to be undone or redone by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandBack {
    /// The process; every process if this is left out.
    #[serde(default)]
    pub pid: Option<i32>,
    /// The change that is about to be made.
    pub wish: Wish,
}

/// The result of `whet.Status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: i32,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether the kill-switch file exists.
    pub switched_off: bool,
    /// The error in the configuration file at the last reload. The earlier configuration is then in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_error: Option<String>,
    /// The number of live processes on the list. A daemon of an older version does not report this.
    #[serde(default)]
    pub watched: usize,
    /// The processes on the list, and processes on the list that ended recently.
    pub targets: Vec<TargetView>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// One target as the daemon sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetView {
    /// The process id.
    pub pid: i32,
    /// The process's program.
    pub exe: String,
    /// How many further processes its family has: its children of the same program, which are optimized,
    /// judged and undone with it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub members: usize,
    /// Its state.
    pub state: State,
    /// The reason for the state.
    pub reason: String,
    /// The time at which it entered the state: RFC 3339, UTC.
    pub since: String,
    /// User CPU time, percent of one CPU.
    pub cpu_percent: f64,
    /// Share of user samples in hot clones, at the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_share: Option<f64>,
    /// Work per user CPU second with clones, divided by work per user CPU second without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The origin of the profile from which it was started warm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<Source>,
}
