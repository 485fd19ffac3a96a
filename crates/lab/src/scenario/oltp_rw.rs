//! Reads and writes with many connections: blocks of some seconds with and without clones, with the figures
//! of each second and the response times of each block.

use super::loads::Loads;
use crate::error::Error;
use crate::lab::Lab;
use crate::options::{Database, seconds, some};
use crate::sysbench::Sysbench;
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options of `oltp-rw`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct OltpRw {
    #[command(flatten)]
    #[serde(rename = "common")]
    pub database: Database,
    /// The loads, by their names in sysbench.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LOAD,…",
        default_value = "oltp_read_only,oltp_read_write"
    )]
    #[serde(default = "read_write_alone")]
    pub tests: Vec<String>,
    /// The numbers of connections; each is one step.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "64,128,256", value_parser = some)]
    pub threads: Vec<usize>,
    /// The number of tables.
    #[arg(long, default_value_t = 8, value_parser = some)]
    pub tables: usize,
    /// The rows of each table (default: as many as fit into half the buffer pool, at most 250000).
    #[arg(long)]
    pub rows: Option<u64>,
    /// The number of pairs of blocks in a step.
    #[arg(long, default_value_t = 10, value_parser = some)]
    pub pairs: usize,
    /// The length of a block. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the block. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, value_parser = seconds)]
    pub settle: f64,
}

/// Returns the load of a run of a lab that had one only.
fn read_write_alone() -> Vec<String> {
    vec!["oltp_read_write".to_owned()]
}

impl OltpRw {
    /// Measures each load at each number of threads on each server in each place.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let loads = Loads {
            database: &self.database,
            writes: true,
            tests: &self.tests,
            threads: &self.threads,
            tables: self.tables,
            rows: self.rows,
        };
        let plan = self.database.common.plan(self.pairs, self.window, self.settle, true);
        loads.measure(lab, plan, Sysbench::start_timed)
    }
}
