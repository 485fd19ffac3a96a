//! The command line of `whet-lab`.

use crate::scenario::Scenario;
use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Benchmarks of servers and interpreters with and without whet: tables, plots, raw data.
#[derive(Parser, Debug)]
#[command(
    name = "whet-lab",
    version,
    after_help = "Exit codes: 0 done, 2 usage, 3 something needed is missing, 4 access denied, 5 whet refused, 6 port in use, \
                  10 the server ended, 11 interrupted, 12 a file or a full disk, 13 a program or query failed, 14 data not consistent"
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(flatten)]
    Scenario(Box<Scenario>),
    /// Continue an interrupted run. Complete steps are not repeated.
    #[command(after_help = "Example:\n  whet-lab resume lab-runs/stalls-20261122063000")]
    Resume {
        /// The run's folder.
        run: PathBuf,
        /// The address of a server with its password. The recorded address has none.
        #[arg(long, value_name = "URL")]
        dsn: Vec<String>,
    },
    /// Create the report again from the raw data.
    #[command(
        after_help = "Examples:\n  whet-lab report lab-runs/stalls-20261122063000\n  whet-lab report lab-runs/stalls-20261122063000 --format json > stalls.json"
    )]
    Report {
        /// The run's folder.
        run: PathBuf,
        /// The file (default: report.html in the folder).
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// json: print the run's description and all figures of the report; write no page.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
    /// Compare runs: throughput and gains at each point that at least two have, and events; of two runs also the
    /// difference of the gains.
    #[command(
        after_help = "Examples:\n  whet-lab compare lab-runs/before lab-runs/after -o compare.html\n  whet-lab compare epyc/run xeon/run graviton/run -o machines.html"
    )]
    Compare {
        /// The folders of the runs, from 2 to 26.
        #[arg(required = true, num_args = 2..=26)]
        runs: Vec<PathBuf>,
        /// Also write an HTML page to this file.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Write the reports of many runs, and one page that links to them: the gains and the A/A control of each.
    #[command(after_help = "Example:\n  whet-lab index lab-runs/*/ -o lab-runs/index.html")]
    Index {
        /// The folders of the runs.
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// The page.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Compute from the noise of a run how many pairs of windows find a gain of 1%, 3% or 10%.
    #[command(
        after_help = "Example:\n  whet-lab power lab-runs/null\n\nEach experiment draws pairs from the run's noise. A gain is found if the 95% interval lies above 1."
    )]
    Power {
        /// The run's folder.
        run: PathBuf,
    },
    /// Starts a child that ends with the lab; the lab runs this itself.
    #[command(hide = true)]
    Guard {
        /// The lab.
        #[arg(long)]
        parent: i32,
        /// CPUs.
        #[arg(long, value_delimiter = ',')]
        cpus: Vec<usize>,
        /// The child.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// The form of an answer.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people.
    Human,
    /// For programs.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
