//! sysbench's loads on servers of the MySQL family, one after the other: the steps of `stalls` and `oltp-rw`.

use crate::db::Address;
use crate::error::Error;
use crate::lab::Lab;
use crate::options::Database;
use crate::plan::Plan;
use crate::record::Step;
use crate::sysbench::{Sysbench, SysbenchLoad};
use crate::whet::Sides;
use crate::windows::measure;

/// The loads of a run, and what they run on.
#[derive(Debug)]
pub(super) struct Loads<'a> {
    /// The servers.
    pub database: &'a Database,
    /// Whether the loads write.
    pub writes: bool,
    /// The loads, by their names in sysbench.
    pub tests: &'a [String],
    /// The numbers of connections.
    pub threads: &'a [usize],
    /// The number of tables.
    pub tables: usize,
    /// The rows of each table, or `None` for as many as [`Lab::sysbench`] chooses.
    pub rows: Option<u64>,
}

impl Loads<'_> {
    /// Measures each load at each number of connections on each server in each place, as one step each. `start`
    /// starts a load: its name, the server, the number of connections, the seed.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn measure(
        &self,
        lab: &mut Lab,
        plan: Plan,
        start: impl Fn(&Sysbench, &str, &Address, usize, u64) -> Result<SysbenchLoad, Error>,
    ) -> Result<(), Error> {
        let most = self.threads.iter().copied().max().unwrap_or(1);
        let sysbench = lab.sysbench(self.database, self.tables, self.rows)?;
        let settings = self.database.settings(lab.machine.host.memory_mib, most, self.writes);
        lab.each_server(self.database, &settings, |lab, installation, place| {
            let mut filled = false;
            for test in self.tests {
                // Each load gets a new server process, so clones are made for this load alone.
                let mut server = installation.start()?;
                if !filled {
                    lab.fill(&sysbench, &mut server)?;
                    filled = true;
                }
                let mut sides = Sides::of(lab.whet.as_ref(), &server)?;
                for &threads in self.threads {
                    let step = Step::of(&installation.name, test, place, threads);
                    lab.step(&step, &mut server, &mut sides, |mut on| {
                        let address = &on.server.address;
                        let mut load = start(&sysbench, test, address, threads, on.lab.seed)?;
                        measure(&mut on, plan, &mut load)
                    })?;
                }
                sides.restore()?;
            }
            Ok(())
        })
    }
}
