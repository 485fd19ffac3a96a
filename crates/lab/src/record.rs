//! Raw data: what a run's folder holds. `run.json` is a [`Head`], `data.jsonl` one [`Record`] a line, in the order of events.
//!
//! Anything that changes the meaning of a field here needs a new [`VERSION`]; a lab refuses one that it does not know.

use crate::machine::Machine;
use crate::scenario::Scenario;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of the folder's form.
pub const VERSION: u32 = 1;

/// What a run is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Head {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// The lab's version.
    pub lab: String,
    /// What `whet --version` said.
    pub whet: String,
    /// When it began, UTC.
    pub begun: String,
    /// Of all that is random.
    pub seed: u64,
    /// What was asked for.
    pub scenario: Scenario,
    /// On what.
    pub machine: Machine,
}

/// With whet's clones in force, or without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Redirects in force.
    With,
    /// Undone.
    Without,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::With, Self::Without];

    /// The word for people and charts.
    pub fn word(self) -> &'static str {
        match self {
            Self::With => "with whet",
            Self::Without => "without",
        }
    }
}

/// One thing that happened in a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Of which step.
    pub step: Step,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// A point of a scenario: measured whole or not at all. Its fields are its identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The server's name.
    pub server: String,
    /// The load's name.
    pub load: String,
    /// The storage folder, where several are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// CPUs of the server, where those are varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<usize>,
    /// Connections.
    pub threads: usize,
}

impl Step {
    /// One where the server's CPUs are not varied.
    pub fn of(server: &str, load: &str, storage: Option<&str>, threads: usize) -> Self {
        let storage = storage.map(str::to_owned);
        Self { server: server.to_owned(), load: load.to_owned(), storage, cpus: None, threads }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.server, self.load)?;
        if let Some(storage) = &self.storage {
            write!(f, " on {storage}")?;
        }
        if let Some(cpus) = self.cpus {
            write!(f, ", {cpus} CPU{}", if cpus == 1 { "" } else { "s" })?;
        }
        write!(f, ", {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })
    }
}

/// What happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A step was begun; what an earlier attempt left of it counts no more.
    Begin {
        /// When.
        at: String,
        /// What `SELECT VERSION()` said.
        server_version: String,
        /// The server's program.
        exe: String,
    },
    /// The load ran until its rate was steady.
    WarmUp {
        /// For how long.
        seconds: f64,
        /// Whether it became so before the time was up.
        steady: bool,
        /// Queries per second, each half second.
        rates: Vec<f64>,
    },
    /// The server was optimized; whet's own answer.
    Optimize {
        /// As `whet optimize --format json` gave it.
        answer: serde_json::Value,
    },
    /// The load was set to a fixed rate.
    Rate {
        /// Requests per second.
        per_second: f64,
        /// What it reached without a limit, without whet; none where the rate was given.
        of: Option<f64>,
    },
    /// A window of one side.
    Window(Window),
    /// One second of a load that reports each.
    Second(Second),
    /// Latencies of one side.
    Latency(Latency),
    /// Something to point at in a graph over time.
    Mark {
        /// Seconds since the load began.
        at: f64,
        /// What it was.
        what: String,
    },
    /// A condition of the data was checked.
    Check {
        /// Which.
        name: String,
        /// Whether it holds.
        ok: bool,
        /// What was found.
        found: String,
    },
    /// The step is whole.
    Done {
        /// When.
        at: String,
        /// Its queries that failed and were tried again (deadlocks).
        retried: u64,
    },
    /// The step could not be finished.
    Broken {
        /// Why.
        why: String,
    },
}

/// What was counted in a window.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Windows of one pair follow each other.
    pub pair: usize,
    /// Its side.
    pub side: Side,
    /// How long.
    pub seconds: f64,
    /// Statements that the server answered (or, in tpcc, transactions).
    pub queries: u64,
    /// CPU seconds of the server's process.
    pub cpu: f64,
    /// Its user and system time by sampling ticks: too coarse for a single window, right when many are added up.
    pub user: f64,
    /// See `user`.
    pub system: f64,
    /// CPU seconds of the whole machine that were idle.
    pub idle: f64,
    /// CPU seconds that the host gave to others.
    pub steal: f64,
    /// CPU seconds that there were: CPUs times time.
    pub capacity: f64,
    /// Hardware events of the server, where there is a PMU: perf's name to count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<String, f64>,
}

/// One second of a load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the load began.
    pub at: f64,
    /// Which block it is part of.
    pub pair: usize,
    /// Its side.
    pub side: Side,
    /// Transactions per second.
    pub tps: f64,
    /// Mean response time, ms.
    pub response_ms: f64,
    /// Its 95th percentile, ms.
    pub p95_ms: f64,
    /// Share of the machine's CPU time that was idle.
    pub idle: f64,
    /// CPUs that the server used.
    pub cpus: f64,
    /// Pages that it wrote from its buffer pool.
    pub flushed: u64,
}

/// How long requests took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Which side.
    pub side: Side,
    /// Requests, of which kind.
    pub of: String,
    /// How many.
    pub count: u64,
    /// Their mean, ms.
    pub mean_ms: f64,
    /// The longest, ms.
    pub max_ms: f64,
    /// Percentile and value in ms, both rising.
    pub percentiles: Vec<(f64, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as version 1 writes it: a lab that cannot read it any more needs a new version.
    #[test]
    fn lines_of_version_1_are_read() {
        let line = r#"{"step":{"server":"mariadb","load":"oltp_read_only","threads":4},"kind":"window","pair":3,"side":"without","seconds":0.2,"queries":4321,"cpu":0.31,"user":0.2,"system":0.1,"idle":0.02,"steal":0.0,"capacity":0.4}"#;
        let record: Record = serde_json::from_str(line).unwrap();
        let Event::Window(w) = &record.event else { panic!("{record:?}") };
        assert_eq!((w.pair, w.side, w.queries), (3, Side::Without, 4321));
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
    }
}
