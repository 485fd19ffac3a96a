//! TPC-C-like transactions in cache: CPU use over time, stalls, latencies of each transaction, several
//! servers side by side.

use crate::conditions::check;
use crate::driver::Driver;
use crate::error::Error;
use crate::lab::{ActiveStep, Lab};
use crate::options::{Database, seconds, some};
use crate::record::{Event, Step};
use crate::server::Server;
use crate::tpcc::{CONDITIONS, KINDS, Scale, Terminal, create, fill};
use crate::whet::Sides;
use crate::windows::measure;
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options of `tpcc`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Tpcc {
    #[command(flatten)]
    #[serde(rename = "common")]
    pub database: Database,
    /// The number of warehouses, about 100 MB each (default: as many as fit into half the buffer pool, at most 10).
    #[arg(long)]
    pub warehouses: Option<u32>,
    /// Divides the numbers of items, customers and orders, for short tests.
    #[arg(long, default_value_t = 1)]
    pub shrink: u32,
    /// The numbers of terminals; each is one step.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "16", value_parser = some)]
    pub threads: Vec<usize>,
    /// The rate of transactions per second (default: no limit).
    #[arg(long)]
    pub rate: Option<f64>,
    /// The number of pairs of blocks in a step.
    #[arg(long, default_value_t = 10, value_parser = some)]
    pub pairs: usize,
    /// The length of a block. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the block. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub settle: f64,
}

impl Tpcc {
    /// Measures each number of terminals on each server in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let memory = lab.machine.host.memory_mib;
        let fit = u32::try_from(self.database.buffer_pool_mib(memory) / 200).unwrap_or(1).clamp(1, 10);
        let scale = Scale::new(self.warehouses.unwrap_or(fit).max(1), self.shrink);
        let most = self.threads.iter().copied().max().unwrap_or(1);
        let settings = self.database.settings(memory, most, true);
        lab.each_server(&self.database, &settings, |lab, installation, place| {
            let mut server = installation.start()?;
            lab.progress.doing("filling warehouses");
            let made = server.address.enter().and_then(|mut db| create(&mut db));
            let interrupt = lab.commands.interrupt.clone();
            made.and_then(|()| fill(&server.address, scale, lab.seed, &interrupt))
                .map_err(|e| server.explain(e))?;
            let mut sides = Sides::of(lab.whet.as_ref(), &server)?;
            for &threads in &self.threads {
                let load = format!("tpcc-{}w", scale.warehouses);
                let step = Step::of(&installation.name, &load, place, threads);
                lab.step(&step, &mut server, &mut sides, |mut on| self.measure(&mut on, scale))?;
            }
            sides.restore()
        })
    }

    fn measure(&self, on: &mut ActiveStep<'_, Server>, scale: Scale) -> Result<u64, Error> {
        let address = &on.server.address;
        let check = |on: &mut ActiveStep<'_, Server>, when| {
            let mut db = address.enter()?;
            check(on, &CONDITIONS, when, |sql| db.one(sql))
        };
        check(on, "before")?;
        let terminals = (1_u32..=scale.warehouses)
            .cycle()
            .take(on.step.threads)
            .map(|w| Terminal::new(address, scale, w))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(per_second) = self.rate {
            on.add(Event::Rate { per_second, of: None })?;
        }
        let mut load = Driver::start(terminals, &KINDS, on.lab.seed, self.rate);
        let plan = self.database.common.plan(self.pairs, self.window, self.settle, true);
        let retried = measure(on, plan, &mut load)?;
        // All terminals must have ended before the data is checked.
        drop(load);
        check(on, "after")?;
        Ok(retried)
    }
}
