//! Raw data, as a run's folder holds them. `run.json` is a [`Head`]. `data.jsonl` has one [`Record`] a line,
//! in the order of events.
//!
//! A change of the meaning of any field here needs a new [`VERSION`]. The lab refuses data of a version that
//! it does not read.

use crate::machine::{Machine, Placement, Wanted};
use crate::scenario::Scenario;
use crate::transactions::Transactions;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the folder's form.
pub const VERSION: u32 = 1;

/// The description of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The [`VERSION`] with which it was written.
    pub version: u32,
    /// The lab's version.
    pub lab: String,
    /// The output of `whet --version`, or `none`.
    pub whet: String,
    /// When the run began, UTC.
    pub begun: String,
    /// The seed of everything random.
    pub seed: u64,
    /// The scenario with its options, without passwords.
    pub scenario: Scenario,
    /// The host.
    pub machine: Machine,
}

/// A side of the comparison: with whet's clones in force, or without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Redirects are in force.
    With,
    /// Redirects are undone.
    Without,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::With, Self::Without];

    /// Returns the name of the side, for the user and for charts.
    pub fn word(self) -> &'static str {
        match self {
            Self::With => "with whet",
            Self::Without => "without",
        }
    }
}

/// One event of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The step.
    pub step: Step,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// Where a server runs and keeps its data, as far as a run varies it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The storage folder, if several are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Whether the server uses both threads of its cores, if that is varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smt: Option<bool>,
    /// How many sockets the server uses, if their number is varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<usize>,
    /// `innodb_flush_log_at_trx_commit`, if it is varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_log: Option<u8>,
}

impl Place {
    /// Returns what it asks of the server's CPUs.
    pub fn wanted(&self) -> Wanted {
        Wanted { smt: self.smt, sockets: self.sockets }
    }
}

impl Place {
    /// Returns a description of each thing that is varied.
    pub fn words(&self) -> Vec<String> {
        let storage = self.storage.as_ref().map(|s| format!("on {s}"));
        let smt = self.smt.map(|on| if on { "SMT on" } else { "SMT off" }.to_owned());
        let sockets = self.sockets.map(|n| format!("{n} socket{}", if n == 1 { "" } else { "s" }));
        let flush_log = self.flush_log.map(|n| format!("flush_log_at_trx_commit={n}"));
        [storage, smt, sockets, flush_log].into_iter().flatten().collect()
    }
}

/// A point of a scenario, measured whole or not at all. Its fields are its identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The server's name.
    pub server: String,
    /// The load's name.
    pub load: String,
    /// The server's place, as far as the run varies it.
    #[serde(flatten)]
    pub place: Place,
    /// How many CPUs the server may use, if their number is varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<usize>,
    /// Connections.
    pub threads: usize,
}

impl Step {
    /// Returns a step in which the server's CPUs are not varied.
    pub fn of(server: &str, load: &str, place: &Place, threads: usize) -> Self {
        let place = place.clone();
        Self { server: server.to_owned(), load: load.to_owned(), place, cpus: None, threads }
    }

    /// Describes all of the step but its server. Steps with equal words are comparable between servers.
    pub fn without_server(&self) -> String {
        let mut words = self.load.clone();
        for (n, place) in self.place.words().iter().enumerate() {
            words += if n == 0 && self.place.storage.is_some() { " " } else { ", " };
            words += place;
        }
        if let Some(cpus) = self.cpus {
            words += &format!(", {cpus} CPU{}", if cpus == 1 { "" } else { "s" });
        }
        format!("{words}, {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.server, self.without_server())
    }
}

/// The events of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A step was begun. Records of an earlier attempt no longer count.
    Begin {
        /// When.
        at: String,
        /// The result of `SELECT VERSION()`.
        server_version: String,
        /// The path of the server's program.
        exe: String,
        /// The options that the user or the scenario gives this server.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        options: Vec<String>,
        /// The CPUs of server and clients.
        #[serde(default)]
        placement: Placement,
    },
    /// The load ran until its rate was steady, or until the time for that was over.
    WarmUp {
        /// How long it ran, in seconds.
        seconds: f64,
        /// Whether the rate became steady in time.
        steady: bool,
        /// Queries per second, for each half second.
        rates: Vec<f64>,
    },
    /// The server was optimized.
    Optimize {
        /// The output of `whet optimize --format json`.
        answer: serde_json::Value,
    },
    /// whet put clones in force in a family of processes.
    Family(FamilyChange),
    /// The events that whet models for the clones of this step.
    Modelled {
        /// The `modelled` part of the output of `whet measure --format json`.
        answer: serde_json::Value,
    },
    /// The load was set to a fixed rate.
    Rate {
        /// Requests per second.
        per_second: f64,
        /// The rate reached without a limit, before the server is optimized. `None` if the user gave the
        /// rate.
        of: Option<f64>,
    },
    /// A window of one side was measured.
    Window(Window),
    /// One second of a load that is recorded each second.
    Second(Second),
    /// The latencies of one side and kind of request.
    Latency(Latency),
    /// A moment to mark in charts over time.
    Mark {
        /// Seconds since the load began.
        at: f64,
        /// What happened.
        what: String,
    },
    /// A condition of the data was checked.
    Check {
        /// The condition.
        name: String,
        /// Whether it holds.
        ok: bool,
        /// What was found.
        found: String,
    },
    /// The step is finished.
    Done {
        /// When.
        at: String,
        /// Queries that failed for reasons of the data (deadlocks) and were not counted.
        retried: u64,
    },
    /// The step was given up.
    Broken {
        /// The reason.
        why: String,
    },
}

/// In how many processes of a family a command of whet put clones in force.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FamilyChange {
    /// The command: `optimize` or `redo`.
    pub command: String,
    /// The processes of the family, the parent included. Members that ended meanwhile are left out.
    pub processes: usize,
    /// How many of them whet left alone. They run their originals, or clones of an earlier generation.
    pub left_alone: usize,
    /// whet's reason for the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What was counted in a window.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The number of its pair. The two windows of a pair follow each other.
    pub pair: usize,
    /// The side. In an A/A pair the server is the same in both windows, and the sides are names alone.
    pub side: Side,
    /// Whether it belongs to an A/A pair. These pairs have numbers of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
    /// Its length.
    pub seconds: f64,
    /// Statements that the server answered. With the lab's own loads: requests or transactions; with
    /// `scaling`: queries.
    pub queries: u64,
    /// CPU seconds of the server's process.
    pub cpu: f64,
    /// Its user CPU seconds, by sampling ticks: too coarse for a single window, right in the sum of many.
    pub user: f64,
    /// Its system CPU seconds, likewise.
    pub system: f64,
    /// CPU seconds in which CPUs of the machine were idle, whether a disk request was outstanding or not.
    pub idle: f64,
    /// The part of `idle` in which a disk request was outstanding. `None` in older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iowait: Option<f64>,
    /// CPU seconds that the hypervisor gave to other guests.
    pub steal: f64,
    /// All CPU seconds of the machine: CPUs times time.
    pub capacity: f64,
    /// Counts of the server's hardware events, by the names in `events/table.rs`. Empty without a PMU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<String, f64>,
    /// The smallest share of the window for which an event was counted. `None` without a PMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<f64>,
    /// The response times that the clients measured, of the transactions that ended in the window. `None` for loads
    /// that do not count them for each window, and in older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transactions: Option<Transactions>,
}

/// One second of a load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the load began.
    pub at: f64,
    /// The number of its pair of windows.
    pub pair: usize,
    /// The side.
    pub side: Side,
    /// Transactions per second.
    pub tps: f64,
    /// Mean response time, ms.
    pub response_ms: f64,
    /// 95th percentile of the response times, ms.
    pub p95_ms: f64,
    /// Share of the machine's CPU time that was idle, whether a disk request was outstanding or not.
    pub idle: f64,
    /// The part of `idle` in which a disk request was outstanding. `None` in older runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iowait: Option<f64>,
    /// CPUs that the server used.
    pub cpus: f64,
    /// Pages that the server wrote from its buffer pool.
    pub flushed: u64,
}

/// How long requests took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// The side.
    pub side: Side,
    /// The kind of requests.
    pub of: String,
    /// How many requests.
    pub count: u64,
    /// Their mean, ms.
    pub mean_ms: f64,
    /// The longest, ms.
    pub max_ms: f64,
    /// Percentile (0 to 100) and value in ms, both ascending.
    pub percentiles: Vec<(f64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as version 1 writes it. A lab that cannot read this line needs a new version number.
    #[test]
    fn lines_of_version_1_are_read() {
        let line = r#"{"step":{"server":"mariadb","load":"oltp_read_only","threads":4},"kind":"window","pair":3,"side":"without","seconds":0.2,"queries":4321,"cpu":0.31,"user":0.2,"system":0.1,"idle":0.02,"steal":0.0,"capacity":0.4}"#;
        let record: Record = serde_json::from_str(line).unwrap();
        let Event::Window(w) = &record.event else { panic!("{record:?}") };
        assert_eq!((w.pair, w.side, w.queries), (3, Side::Without, 4321));
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
    }

    #[test]
    fn a_step_names_its_place() {
        let place =
            Place { storage: Some("/d".into()), smt: Some(false), sockets: Some(1), flush_log: Some(2) };
        let step = Step::of("s", "l", &place, 2);
        assert_eq!(step.to_string(), "s l on /d, SMT off, 1 socket, flush_log_at_trx_commit=2, 2 threads");
        let text = serde_json::to_string(&step).unwrap();
        assert_eq!(serde_json::from_str::<Step>(&text).unwrap(), step);
        assert_eq!(Step::of("s", "l", &Place::default(), 1).to_string(), "s l, 1 thread");
    }
}
