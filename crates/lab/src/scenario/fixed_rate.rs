//! Compares the CPU use of a server for the same work: requests come at a fixed rate, with and without
//! clones.

use crate::db::Address;
use crate::driver::{Driver, Failure, Worker};
use crate::error::Error;
use crate::lab::{ActiveStep, Lab};
use crate::load::Load;
use crate::options::{Database, seconds, some};
use crate::record::{Event, Step};
use crate::server::Server;
use crate::whet::Sides;
use crate::windows::measure;
use clap::Args;
use mysql::prelude::Queryable;
use mysql::{Conn, Row, Statement};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Options of `fixed-rate`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct FixedRate {
    #[command(flatten)]
    #[serde(rename = "common")]
    pub database: Database,
    /// The rate of requests per second (default: half the server's rate at full speed).
    #[arg(long)]
    pub rate: Option<f64>,
    /// The number of connections.
    #[arg(long, default_value_t = 16, value_parser = some)]
    pub threads: usize,
    /// The number of tables.
    #[arg(long, default_value_t = 4, value_parser = some)]
    pub tables: usize,
    /// The rows of each table (default: as many as fit into half the buffer pool, at most 250000).
    #[arg(long)]
    pub rows: Option<u64>,
    /// The number of pairs of windows.
    #[arg(long, default_value_t = 60, value_parser = some)]
    pub pairs: usize,
    /// The length of a window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1, value_parser = seconds)]
    pub settle: f64,
}

/// A client that reads one row by its key in each request, as sysbench's point select does.
#[derive(Debug)]
struct PointSelect {
    conn: Conn,
    statements: Vec<Statement>,
    rows: u64,
}

impl PointSelect {
    fn new(address: &Address, tables: usize, rows: u64) -> Result<Self, Error> {
        let mut conn = address.enter()?.conn;
        let statements = (1..=tables)
            .map(|t| conn.prep(format!("SELECT c FROM sbtest{t} WHERE id=?")))
            .collect::<Result<_, _>>()
            .map_err(|e| Error::Database { server: address.server.clone(), message: e.to_string() })?;
        Ok(Self { conn, statements, rows })
    }
}

impl Worker for PointSelect {
    fn request(&mut self, rng: &mut Pcg64Mcg) -> Result<usize, Failure> {
        let table = rng.random_range(0..self.statements.len());
        let key = rng.random_range(1..=self.rows);
        if let Some(statement) = self.statements.get(table) {
            let _: Option<Row> = self.conn.exec_first(statement, (key,))?;
        }
        Ok(0)
    }
}

impl FixedRate {
    /// Measures every server.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let memory = lab.machine.host.memory_mib;
        let sysbench = lab.sysbench(&self.database, self.tables, self.rows)?;
        let settings = self.database.settings(memory, self.threads, false);
        lab.each_server(&self.database, &settings, |lab, installation, place| {
            let mut server = installation.start()?;
            lab.fill(&sysbench, &mut server)?;
            let mut sides = Sides::of(lab.whet.as_ref(), &server)?;
            let step = Step::of(&installation.name, "point_select", place, self.threads);
            lab.step(&step, &mut server, &mut sides, |mut on| self.measure(&mut on, sysbench.rows))?;
            sides.restore()
        })
    }

    fn measure(&self, on: &mut ActiveStep<'_, Server>, rows: u64) -> Result<u64, Error> {
        let (server, seed) = (on.server, on.lab.seed);
        let drive = |rate| {
            let workers = (0..self.threads)
                .map(|_| PointSelect::new(&server.address, self.tables, rows))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Driver::start(workers, &["point select"], seed, rate))
        };
        let (rate, of) = match self.rate {
            Some(rate) => (rate, None),
            None => {
                on.lab.progress.doing("looking for the highest rate");
                let full = self.full_rate(on.lab, &mut drive(None)?)?;
                (full / 2.0, Some(full))
            }
        };
        on.add(Event::Rate { per_second: rate, of })?;
        let plan = self.database.common.plan(self.pairs, self.window, self.settle, false);
        let mut load = drive(Some(rate))?;
        measure(on, plan, &mut load)
    }

    /// Returns the requests per second at full speed, measured for at most three seconds after a warm-up of one
    /// second.
    fn full_rate(&self, lab: &Lab, load: &mut Driver) -> Result<f64, Error> {
        lab.commands.interrupt.sleep(Duration::from_secs(1))?;
        let (begin, before) = (Instant::now(), load.work().unwrap_or(0));
        let time = Duration::from_secs_f64(self.database.common.warm_up.min(3.0));
        lab.commands.interrupt.sleep(time)?;
        load.check()?;
        let done = load.work().unwrap_or(0).saturating_sub(before);
        if done == 0 {
            return Err(Error::Load { load: "point_select".into(), why: "did nothing".into() });
        }
        #[expect(clippy::cast_precision_loss, reason = "of some seconds")]
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        Ok(rate)
    }
}
