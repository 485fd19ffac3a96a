//! Read-only loads from one thread to many, which show the stalls of the CPU's front end.

use super::loads::Loads;
use crate::error::Error;
use crate::lab::Lab;
use crate::options::{Database, seconds, some};
use crate::sysbench::Sysbench;
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options of `stalls`.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Stalls {
    #[command(flatten)]
    #[serde(rename = "common")]
    pub database: Database,
    /// The loads, by their names in sysbench.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LOAD,…",
        default_value = "oltp_read_only,oltp_point_select,select_random_ranges,select_random_points"
    )]
    pub tests: Vec<String>,
    /// The numbers of connections; each is one step.
    #[arg(long, value_delimiter = ',', value_name = "N,…", default_value = "1,2,4,8,16,32,64,128", value_parser = some)]
    pub threads: Vec<usize>,
    /// The number of tables.
    #[arg(long, default_value_t = 4, value_parser = some)]
    pub tables: usize,
    /// The rows of each table (default: as many as fit into half the buffer pool, at most 250000).
    #[arg(long)]
    pub rows: Option<u64>,
    /// The number of pairs of windows in a step.
    #[arg(long, default_value_t = 40, value_parser = some)]
    pub pairs: usize,
    /// The length of a window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2, value_parser = seconds)]
    pub window: f64,
    /// The wait between the change of sides and the window. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.03, value_parser = seconds)]
    pub settle: f64,
}

impl Stalls {
    /// Measures each load at each number of threads on each server.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        let loads = Loads {
            database: &self.database,
            writes: false,
            tests: &self.tests,
            threads: &self.threads,
            tables: self.tables,
            rows: self.rows,
        };
        let plan = self.database.common.plan(self.pairs, self.window, self.settle, false);
        loads.measure(lab, plan, Sysbench::start)
    }
}
