//! Queries that scan much of the data, with varied numbers of the server's CPUs and of threads.
//!
//! A window here is a fixed amount of work, not a fixed time: each thread runs all queries once, in its own
//! order.

use crate::db::Address;
use crate::error::Error;
use crate::gauge::Gauge;
use crate::guard;
use crate::interrupt::Interrupt;
use crate::lab::{ActiveStep, Lab};
use crate::machine::{Topology, place};
use crate::options::{Database, some};
use crate::plan::schedule;
use crate::record::{Event, Step};
use crate::server::Server;
use crate::stats;
use crate::tpch;
use crate::whet::Sides;
use crate::windows::counting;
use clap::Args;
use mysql::prelude::Queryable;
use rand::seq::SliceRandom;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Options of `scaling`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Scaling {
    #[command(flatten)]
    #[serde(rename = "common")]
    pub database: Database,
    /// The scale factor of the data: 1 is about 1 GB; 0.01 is the smallest.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1, value_parser = factor)]
    pub factor: f64,
    /// A folder with region.tbl, nation.tbl and so on, instead of DuckDB's generator.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// The numbers of CPUs for the server; each is one step (default: 1, 2, 4 and so
    /// on, up to those that the server gets).
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = some)]
    pub cpus: Vec<usize>,
    /// The numbers of threads (default: 1, and the number of CPUs).
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = some)]
    pub threads: Vec<usize>,
    /// The queries, by number (default: all 22).
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = some)]
    pub queries: Vec<usize>,
    /// The number of pairs of windows in a step.
    #[arg(long, default_value_t = 10, value_parser = some)]
    pub pairs: usize,
}

impl Scaling {
    fn cpus(&self, all: usize) -> Vec<usize> {
        if self.cpus.is_empty() { powers(all) } else { self.cpus.clone() }
    }

    /// Checks that the server gets as many CPUs as are asked for, before gigabytes of data are made.
    ///
    /// # Errors
    /// [`Error::Usage`] if a place on this host has fewer.
    pub fn fits(&self, topology: &Topology) -> Result<(), Error> {
        for at in self.database.places() {
            let all = place(topology, at.wanted()).map_err(Error::Usage)?.server.len();
            if let Some(n) = self.cpus(all).into_iter().find(|n| *n > all) {
                return Err(Error::Usage(format!(
                    "the server gets {all} of this host's CPUs, not {n}: name fewer with --cpus"
                )));
            }
        }
        Ok(())
    }

    fn threads(&self, cpus: usize) -> Vec<usize> {
        match (self.threads.is_empty(), cpus) {
            (false, _) => self.threads.clone(),
            (true, 1) => vec![1],
            (true, _) => vec![1, cpus],
        }
    }

    /// Returns the number of steps for one server.
    /// `server` is how many CPUs it may use.
    pub fn steps(&self, server: usize) -> usize {
        self.cpus(server).iter().map(|c| self.threads(*c).len()).sum()
    }

    /// Measures each number of CPUs and threads on each server.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let all = tpch::queries();
        let wanted: Vec<usize> =
            if self.queries.is_empty() { (1..=all.len()).collect() } else { self.queries.clone() };
        let queries: Vec<&'static str> = wanted
            .iter()
            .map(|n| all.get(n - 1).copied().ok_or_else(|| Error::Usage(format!("TPC-H has no query {n}"))))
            .collect::<Result<_, _>>()?;
        let memory = lab.machine.host.memory_mib;
        let cpus = lab.topology.cores.iter().map(|core| core.cpus.len()).sum();
        let most = self.threads.iter().copied().max().unwrap_or(cpus).max(64);
        let settings = self.database.settings(memory, most, false);
        let data = self.data.clone().unwrap_or_else(|| lab.folder.path().join("tpch"));
        if self.data.is_none() && !data.join("lineitem.tbl").exists() {
            lab.progress.doing("making TPC-H's data");
            tpch::generate(&lab.commands, self.factor, &data)?;
        }
        lab.each_server(&self.database, &settings, |lab, installation, place| {
            let mut server = installation.start()?;
            lab.progress.doing("filling tables");
            let interrupt = lab.commands.interrupt.clone();
            tpch::fill(&server.address, &data, &interrupt).map_err(|e| server.explain(e))?;
            let mut sides = Sides::of(lab.whet.as_ref(), &server)?;
            let may_use = lab.placement.server.clone();
            for cpus in self.cpus(may_use.len()) {
                let fewer = || Error::Bug(format!("{cpus} CPUs of {}", may_use.len()));
                confine(&server, may_use.get(..cpus).ok_or_else(fewer)?)?;
                for threads in self.threads(cpus) {
                    let load = format!("tpch-{}", queries.len());
                    let step =
                        Step { cpus: Some(cpus), ..Step::of(&installation.name, &load, place, threads) };
                    lab.step(&step, &mut server, &mut sides, |mut on| self.measure(&mut on, &queries))?;
                }
            }
            sides.restore()
        })?;
        if self.data.is_none() {
            // The files may hold gigabytes, and can be generated again within minutes.
            let _ = std::fs::remove_dir_all(&data);
        }
        Ok(())
    }

    fn measure(&self, on: &mut ActiveStep<'_, Server>, queries: &[&'static str]) -> Result<u64, Error> {
        let rounds = Rounds {
            address: &on.server.address,
            queries,
            threads: on.step.threads,
            seed: on.lab.seed,
            interrupt: on.lab.commands.interrupt.clone(),
        };
        let mut gauge = Gauge::new(on.server, &on.lab.host)?;
        on.lab.progress.doing("warming up");
        let begin = Instant::now();
        // One round brings the data into memory.
        rounds.run(0)?;
        on.add(Event::WarmUp { seconds: begin.elapsed().as_secs_f64(), steady: true, rates: Vec::new() })?;
        on.lab.progress.doing("whet optimize");
        // whet must see a server at work.
        rounds.during(|| {
            on.optimize(self.database.common.sampling)?;
            on.model()
        })?;
        let mut rng = stats::generator(on.lab.seed, &on.step.to_string());
        for pair in schedule(self.pairs, self.database.common.control_pairs(self.pairs), &mut rng) {
            for (side, state) in pair.halves {
                on.lab.progress.part(pair.number, self.pairs);
                on.go(state)?;
                let counting = counting(on.lab, &gauge, None)?;
                let before = gauge.read()?;
                // Both sides of a pair run the queries in the same orders.
                rounds.run(1000 + pair.number as u64)?;
                let after = gauge.read()?;
                let done = queries.len() as u64 * on.step.threads as u64;
                let mut window = before.until(&after, pair.number, side, Some(done));
                window.control = pair.control;
                if let Some(counting) = counting {
                    counting.finish(&on.lab.commands, &mut window)?;
                }
                on.add(Event::Window(window))?;
            }
        }
        Ok(0)
    }
}

/// Runs all queries once in each thread, in an order of its own.
#[derive(Debug)]
struct Rounds<'a> {
    address: &'a Address,
    queries: &'a [&'static str],
    threads: usize,
    seed: u64,
    interrupt: Interrupt,
}

/// Sets a flag when it is dropped, also by a panic.
struct SetsAtEnd<'a>(&'a AtomicBool);

impl Drop for SetsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Rounds<'_> {
    /// Runs one round. Rounds of the same number have the same orders.
    fn run(&self, number: u64) -> Result<(), Error> {
        self.run_unless(number, &AtomicBool::new(false))
    }

    /// Runs rounds until `work` ends, and returns its result.
    fn during(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let mut number = 1;
                while !stop.load(Ordering::Relaxed) {
                    self.run_unless(number, &stop)?;
                    number += 1;
                }
                Ok(())
            });
            let worked = {
                // Without the flag, the scope would wait for the load for ever.
                let _stop = SetsAtEnd(&stop);
                work()
            };
            let loaded = load.join().unwrap_or_else(|_| Err(Error::Bug("the load panicked".into())));
            loaded.and(worked)
        })
    }

    fn run_unless(&self, number: u64, stop: &AtomicBool) -> Result<(), Error> {
        let sessions = &Mutex::new(Vec::new());
        let (round, round_end) = mpsc::channel();
        std::thread::scope(|scope| {
            let client = |n| scope.spawn(move || self.client(number, n, stop, sessions));
            let clients: Vec<_> = (0..self.threads).map(client).collect();
            scope.spawn(move || self.watch(&round_end, sessions));
            let mut result = Ok(());
            for client in clients {
                let ended = client.join().unwrap_or_else(|_| Err(Error::Bug("a client panicked".into())));
                result = result.and(ended);
            }
            drop(round);
            result
        })
    }

    /// Kills the sessions of a round after an interrupt, since a query may take minutes. Returns when the
    /// other end of the channel is dropped.
    fn watch(&self, round_end: &Receiver<()>, sessions: &Mutex<Vec<u32>>) {
        while round_end.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            if self.interrupt.check().is_err()
                && let Ok(mut db) = self.address.connect()
            {
                for id in sessions.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                    // The session may have ended.
                    let _ = db.run(&format!("KILL {id}"));
                }
            }
        }
    }

    fn client(
        &self,
        round: u64,
        n: usize,
        stop: &AtomicBool,
        sessions: &Mutex<Vec<u32>>,
    ) -> Result<(), Error> {
        let mut db = self.address.enter()?;
        sessions.lock().unwrap_or_else(PoisonError::into_inner).push(db.conn.connection_id());
        let mut mine = self.queries.to_vec();
        mine.shuffle(&mut stats::generator(self.seed.wrapping_add(round), &format!("client {n}")));
        for query in mine {
            self.interrupt.check()?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let _: Vec<mysql::Row> = db.conn.query(query).map_err(|e| {
                // After an interrupt, the query was killed.
                self.interrupt.check().err().unwrap_or_else(|| Error::Database {
                    server: self.address.server.clone(),
                    message: format!("{e}, in: {query}"),
                })
            })?;
        }
        Ok(())
    }
}

/// Binds all threads of a private server to some CPUs. Threads that it starts later inherit them.
fn confine(server: &Server, cpus: &[usize]) -> Result<(), Error> {
    let Some(pid) = server.pid else {
        return Err(Error::Bug("a private server has no pid".into()));
    };
    let set = guard::set_of(cpus);
    let tasks = PathBuf::from(format!("/proc/{pid}/task"));
    // Twice: meanwhile, threads that were not bound yet may have started others.
    for _ in 0..2 {
        for task in std::fs::read_dir(&tasks).map_err(Error::file(&tasks))?.flatten() {
            let id = task.file_name().to_str().and_then(|t| t.parse().ok()).and_then(Pid::from_raw);
            // A thread may have ended.
            let _ = id.map(|id| rustix::thread::sched_setaffinity(Some(id), &set));
        }
    }
    std::thread::sleep(Duration::from_millis(10));
    Ok(())
}

/// Parses a scale factor of the data.
fn factor(s: &str) -> Result<f64, String> {
    match s.parse() {
        Ok(v) if (0.01..=10_000.0).contains(&v) => Ok(v),
        // With fewer than 100 suppliers, the specification's formula picks some supplier twice for one part.
        _ => Err(format!("{s:?} is no factor from 0.01 to 10000")),
    }
}

/// Returns 1, 2, 4 … up to `all`, and `all` itself.
fn powers(all: usize) -> Vec<usize> {
    let mut found: Vec<usize> = (0..16).map(|p| 1 << p).take_while(|n| *n < all).collect();
    found.push(all.max(1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round without clients, which ends at once.
    #[test]
    fn a_panic_of_the_work_ends_the_load() {
        let work = || {
            let address = Address {
                server: String::new(),
                socket: None,
                host: String::new(),
                port: 0,
                user: String::new(),
                password: String::new(),
                database: String::new(),
            };
            let interrupt = Interrupt::default();
            let rounds = Rounds { address: &address, queries: &[], threads: 0, seed: 1, interrupt };
            rounds.during(|| panic!("on purpose"))
        };
        let worker = std::thread::spawn(work);
        let until = Instant::now() + Duration::from_secs(30);
        while !worker.is_finished() {
            assert!(Instant::now() < until, "the load goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(worker.join().is_err());
    }

    #[test]
    fn powers_of_two_up_to_all() {
        assert_eq!([powers(1), powers(2), powers(6)], [vec![1], vec![1, 2], vec![1, 2, 4, 6]]);
    }
}
