//! Reads how much a server has done, and how much CPU time that took.

use crate::db::Db;
use crate::error::Error;
use crate::host::Host;
use crate::procfs::CpuTicks;
use crate::record::{Side, Window};
use crate::target::Target;
use crate::usage::{CpuTime, Usage};
use std::collections::BTreeMap;
use std::time::Instant;

/// A session that reads the counters of one server.
#[derive(Debug)]
pub struct Gauge {
    /// `None` for a server whose load counts its work.
    db: Option<Db>,
    host: Host,
    /// `None` for a server on another host that no shell reaches.
    usage: Option<Usage>,
    /// Statements of this session so far. The server counts them as well.
    own: u64,
}

/// The counters of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The moment.
    pub at: Instant,
    /// Statements so far, without those of this gauge.
    pub queries: u64,
    cpu: CpuTime,
    machine: CpuTicks,
}

impl Gauge {
    /// Opens a session to read the counters. `host` is that of the server, as far as the lab reaches it.
    ///
    /// # Errors
    /// An error if the server refuses the session.
    pub fn new(server: &dyn Target, host: &Host) -> Result<Self, Error> {
        Ok(Self { db: server.counters()?, host: host.clone(), usage: Usage::of(server, host), own: 0 })
    }

    /// Reads all counters, as close to one moment as possible.
    ///
    /// # Errors
    /// An error if the server, or the shell to its host, does not answer.
    pub fn read(&mut self) -> Result<Reading, Error> {
        let machine = self.host.ticks()?;
        let (before, cpu_before) = (Instant::now(), self.cpu()?);
        // The server counts this statement before it answers it.
        self.own += 1;
        let queries = self.count("Questions")?.saturating_sub(self.own);
        let (after, cpu_after) = (Instant::now(), self.cpu()?);
        // The answer belongs to a moment between the two.
        Ok(Reading {
            at: before + (after - before) / 2,
            queries,
            cpu: cpu_before.midpoint(&cpu_after),
            machine,
        })
    }

    fn cpu(&mut self) -> Result<CpuTime, Error> {
        self.usage.as_mut().map_or_else(|| Ok(CpuTime::default()), Usage::read)
    }

    /// Returns the server's processes that exist now, none if it is on another host.
    pub fn processes(&self) -> Vec<i32> {
        self.usage.as_ref().map(Usage::processes).unwrap_or_default()
    }

    /// Returns how many pages the server has written from its buffer pool so far.
    ///
    /// # Errors
    /// An error if the server does not answer.
    pub fn flushed(&mut self) -> Result<u64, Error> {
        self.own += 1;
        self.count("Innodb_buffer_pool_pages_flushed")
    }

    fn count(&mut self, name: &str) -> Result<u64, Error> {
        self.db.as_mut().map_or(Ok(0), |db| db.status(name))
    }
}

impl Reading {
    /// Returns what was counted between this reading and a later one. `work` replaces the count of statements
    /// for a load that counts by itself.
    pub fn until(&self, end: &Self, pair: usize, side: Side, work: Option<u64>) -> Window {
        let machine = end.machine.since(&self.machine);
        Window {
            pair,
            side,
            control: false,
            seconds: (end.at - self.at).as_secs_f64(),
            queries: work.unwrap_or_else(|| end.queries.saturating_sub(self.queries)),
            cpu: (end.cpu.all - self.cpu.all).max(0.0),
            user: (end.cpu.user - self.cpu.user).max(0.0),
            system: (end.cpu.system - self.cpu.system).max(0.0),
            idle: machine.idle,
            iowait: Some(machine.iowait),
            steal: machine.steal,
            capacity: machine.capacity,
            events: BTreeMap::new(),
            counted: None,
            transactions: None,
        }
    }
}
