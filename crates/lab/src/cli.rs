//! Words on the command line.

use crate::scenario::Scenario;
use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Benchmarks of MySQL-family servers with and without whet: tables, plots, raw data.
#[derive(Parser, Debug)]
#[command(
    name = "whet-lab",
    version,
    after_help = "Exit codes: 0 done, 2 usage, 3 something needed is missing, 4 not let in, 5 whet refused, 6 port in use, \
                  10 the server ended, 11 interrupted, 12 a file or a full disk, 13 a program or query failed, 14 data not consistent"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    #[command(flatten)]
    Scenario(Box<Scenario>),
    /// Go on with a run that was broken off: steps that are whole are not taken again.
    #[command(after_help = "Example:\n  whet-lab resume lab-runs/stalls-20261122063000")]
    Resume {
        /// The run's folder.
        run: PathBuf,
        /// A server's address with its password, in the place of the one that was kept without.
        #[arg(long, value_name = "URL")]
        dsn: Vec<String>,
    },
    /// Draw the report again from the raw data.
    #[command(
        after_help = "Examples:\n  whet-lab report lab-runs/stalls-20261122063000\n  whet-lab report lab-runs/stalls-20261122063000 --format json > stalls.json"
    )]
    Report {
        /// The run's folder.
        run: PathBuf,
        /// The file to write (default: report.html in the folder).
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// json: print what the run was and every figure of the report, and draw nothing.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
    /// Two runs side by side: of each point that both have, how the gains differ.
    #[command(after_help = "Example:\n  whet-lab compare lab-runs/before lab-runs/after -o compare.html")]
    Compare {
        /// A run's folder.
        a: PathBuf,
        /// Another's.
        b: PathBuf,
        /// Write an HTML page as well.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// What the lab starts its children through.
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

/// For whom an answer is.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// People.
    Human,
    /// Programs.
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
