//! The list of scenarios, and what they have in common.

use super::fixed_rate::FixedRate;
use super::interpreters::Interpreters;
use super::key_value::KeyValue;
use super::oltp_rw::OltpRw;
use super::pgbench::Pgbench;
use super::scaling::Scaling;
use super::stalls::Stalls;
use super::tpcc::Tpcc;
use super::web::Web;
use crate::error::Error;
use crate::lab::Lab;
use crate::machine::{Topology, Wanted, place};
use crate::options::{Common, Database};
use crate::service::postgres::postgres;
use crate::service::{Protocol, Recipe, WebServer, interpreter, key_value};
use clap::Subcommand;
use serde::{Deserialize, Serialize};

/// Which benchmark, with its options.
#[derive(Subcommand, Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Read-only sysbench loads with more and more threads: throughput, CPU time and front-end stalls.
    #[command(
        after_help = "Examples:\n  whet-lab stalls\n  whet-lab stalls --tests oltp_read_only --threads 1,4,16 --server mariadb --server mysql-9.7"
    )]
    Stalls(Stalls),
    /// TPC-H's 22 queries by the number of the server's CPUs and of threads: throughput, efficiency, negative
    /// scaling.
    #[command(
        after_help = "Only for private servers: the lab binds the server to few CPUs, so it refuses a running server (--dsn).\n\nExamples:\n  whet-lab scaling\n  whet-lab scaling --factor 0.03 --queries 6 --cpus 1,2 --threads 1,2,4"
    )]
    Scaling(Scaling),
    /// OLTP loads that read, and that read and write, with many connections: throughput, response times and idle CPU.
    #[command(
        after_help = "Examples:\n  whet-lab oltp-rw\n  whet-lab oltp-rw --tests oltp_read_write --threads 64,256 --datadir /mnt/nvme --datadir /mnt/disk"
    )]
    OltpRw(OltpRw),
    /// A fixed rate of requests: CPU use and response times.
    #[command(
        after_help = "Examples:\n  whet-lab fixed-rate\n  whet-lab fixed-rate --rate 5000 --threads 32"
    )]
    FixedRate(FixedRate),
    /// TPC-C-like transactions in cache: CPU use over time, stalls, response times, consistency of the data.
    #[command(
        after_help = "No keying and thinking times, so results are not tpmC.\n\nExamples:\n  whet-lab tpcc\n  whet-lab tpcc --server mariadb-10.1 --server mariadb-10.2\n  whet-lab tpcc --warehouses 20 --threads 32 --server-binary /opt/a/bin/mysqld --server-binary /opt/b/bin/mysqld"
    )]
    Tpcc(Tpcc),
    /// PostgreSQL: the loads of pgbench with more and more connections.
    #[command(
        after_help = "Examples:\n  whet-lab pgbench\n  whet-lab pgbench --tests select-only --threads 1,8,32 --scale 50"
    )]
    Pgbench(Pgbench),
    /// Redis: reads and writes of random keys.
    #[command(after_help = "Examples:\n  whet-lab redis\n  whet-lab redis --threads 1,8,32 --writes 0,10,50")]
    Redis(KeyValue),
    /// memcached: reads and writes of random keys.
    #[command(after_help = "Examples:\n  whet-lab memcached\n  whet-lab memcached --threads 8 --bytes 1000")]
    Memcached(KeyValue),
    /// nginx, haproxy, and haproxy in front of nginx: small files over kept connections, with or without TLS.
    #[command(
        after_help = "Examples:\n  whet-lab web\n  whet-lab web --servers haproxy-nginx --tls --threads 1,8,32 --bytes 4000"
    )]
    Web(Web),
    /// CPython, Ruby, PHP and SQLite: fixed units of work, one after the other.
    #[command(
        after_help = "Examples:\n  whet-lab interpreters\n  whet-lab interpreters --languages ruby --pairs 40"
    )]
    Interpreters(Interpreters),
}

impl Scenario {
    /// Returns the name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stalls(_) => "stalls",
            Self::Scaling(_) => "scaling",
            Self::OltpRw(_) => "oltp-rw",
            Self::FixedRate(_) => "fixed-rate",
            Self::Tpcc(_) => "tpcc",
            Self::Pgbench(_) => "pgbench",
            Self::Redis(_) => "redis",
            Self::Memcached(_) => "memcached",
            Self::Web(_) => "web",
            Self::Interpreters(_) => "interpreters",
        }
    }

    /// Returns the options that all scenarios share.
    pub fn common(&self) -> &Common {
        match self {
            Self::Stalls(s) => &s.database.common,
            Self::Scaling(s) => &s.database.common,
            Self::OltpRw(s) => &s.database.common,
            Self::FixedRate(s) => &s.database.common,
            Self::Tpcc(s) => &s.database.common,
            Self::Pgbench(s) => &s.common,
            Self::Redis(s) | Self::Memcached(s) => &s.common,
            Self::Web(s) => &s.common,
            Self::Interpreters(s) => &s.common,
        }
    }

    /// Same as [`Self::common`], mutable.
    pub fn common_mut(&mut self) -> &mut Common {
        match self {
            Self::Stalls(s) => &mut s.database.common,
            Self::Scaling(s) => &mut s.database.common,
            Self::OltpRw(s) => &mut s.database.common,
            Self::FixedRate(s) => &mut s.database.common,
            Self::Tpcc(s) => &mut s.database.common,
            Self::Pgbench(s) => &mut s.common,
            Self::Redis(s) | Self::Memcached(s) => &mut s.common,
            Self::Web(s) => &mut s.common,
            Self::Interpreters(s) => &mut s.common,
        }
    }

    /// Returns the options of a database. `None` if the scenario measures none.
    pub fn database(&self) -> Option<&Database> {
        match self {
            Self::Stalls(s) => Some(&s.database),
            Self::Scaling(s) => Some(&s.database),
            Self::OltpRw(s) => Some(&s.database),
            Self::FixedRate(s) => Some(&s.database),
            Self::Tpcc(s) => Some(&s.database),
            Self::Pgbench(_) | Self::Redis(_) | Self::Memcached(_) | Self::Web(_) | Self::Interpreters(_) => {
                None
            }
        }
    }

    /// Same as [`Self::database`], mutable.
    pub fn database_mut(&mut self) -> Option<&mut Database> {
        match self {
            Self::Stalls(s) => Some(&mut s.database),
            Self::Scaling(s) => Some(&mut s.database),
            Self::OltpRw(s) => Some(&mut s.database),
            Self::FixedRate(s) => Some(&mut s.database),
            Self::Tpcc(s) => Some(&mut s.database),
            Self::Pgbench(_) | Self::Redis(_) | Self::Memcached(_) | Self::Web(_) | Self::Interpreters(_) => {
                None
            }
        }
    }

    /// Checks the options that depend on each other.
    ///
    /// # Errors
    /// [`Error::Usage`] as of [`Database::check`], or if `scaling` shall measure a running server.
    pub fn check(&self) -> Result<(), Error> {
        let Some(database) = self.database() else { return Ok(()) };
        database.check()?;
        // A lab that is killed cannot give the CPUs back.
        if matches!(self, Self::Scaling(_)) && !database.dsn.is_empty() {
            return Err(Error::Usage(
                "scaling binds the server to few CPUs and is not for running servers (--dsn); \
                 name a program with --server or --server-binary, of which the lab starts a private server"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that this host has as many CPUs as the scenario varies.
    ///
    /// # Errors
    /// [`Error::Usage`] as of [`Scaling::fits`].
    pub fn fits(&self, topology: &Topology) -> Result<(), Error> {
        if let Self::Scaling(s) = self { s.fits(topology) } else { Ok(()) }
    }

    /// Returns the recipes of the programs that a scenario without a database starts.
    ///
    /// # Errors
    /// [`Error::Usage`] if a language has no interpreter.
    pub fn recipes(&self) -> Result<Vec<Recipe>, Error> {
        match self {
            Self::Pgbench(_) => Ok(vec![postgres()]),
            Self::Redis(_) => Ok(vec![key_value(Protocol::Redis)]),
            Self::Memcached(_) => Ok(vec![key_value(Protocol::Memcached)]),
            Self::Web(s) => {
                let of_server = |server: &WebServer| [Some(server.recipe(s.tls)), server.behind()];
                Ok(s.servers.iter().flat_map(of_server).flatten().collect())
            }
            Self::Interpreters(s) => {
                s.languages.iter().map(|l| interpreter(l).map_err(Error::Usage)).collect()
            }
            Self::Stalls(_) | Self::Scaling(_) | Self::OltpRw(_) | Self::FixedRate(_) | Self::Tpcc(_) => {
                Ok(Vec::new())
            }
        }
    }

    /// Returns whether sysbench is the load or creates the data.
    pub fn needs_sysbench(&self) -> bool {
        matches!(self, Self::Stalls(_) | Self::OltpRw(_) | Self::FixedRate(_))
    }

    /// Returns the unit that the windows count.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Stalls(_) | Self::OltpRw(_) | Self::Scaling(_) => "queries",
            Self::FixedRate(_) | Self::Redis(_) | Self::Memcached(_) | Self::Web(_) => "requests",
            Self::Interpreters(_) => "units",
            Self::Tpcc(_) | Self::Pgbench(_) => "transactions",
        }
    }

    /// Returns the number of steps on a host.
    pub fn steps(&self, topology: &Topology) -> usize {
        let server = place(topology, Wanted::default()).map_or(1, |p| p.server.len());
        let homes = self.database().map_or_else(|| self.common().places().len(), Database::homes);
        homes
            * match self {
                Self::Stalls(s) => s.tests.len() * s.threads.len(),
                Self::Scaling(s) => s.steps(server),
                Self::OltpRw(s) => s.tests.len() * s.threads.len(),
                Self::FixedRate(_) => 1,
                Self::Tpcc(s) => s.threads.len(),
                Self::Pgbench(s) => s.tests.len() * s.threads.len(),
                Self::Redis(s) | Self::Memcached(s) => s.writes.len() * s.threads.len(),
                Self::Web(s) => s.servers.len() * s.threads.len(),
                Self::Interpreters(s) => s.languages.len(),
            }
    }

    /// Returns the number of pairs of windows in a step.
    pub fn pairs(&self) -> usize {
        match self {
            Self::Stalls(s) => s.pairs,
            Self::Scaling(s) => s.pairs,
            Self::OltpRw(s) => s.pairs,
            Self::FixedRate(s) => s.pairs,
            Self::Tpcc(s) => s.pairs,
            Self::Pgbench(s) => s.pairs,
            Self::Redis(s) | Self::Memcached(s) => s.pairs,
            Self::Web(s) => s.pairs,
            Self::Interpreters(s) => s.pairs,
        }
    }

    /// Runs the scenario.
    ///
    /// # Errors
    /// Returns the first error. All earlier measurements are kept.
    pub fn run(&self, lab: &mut Lab) -> Result<(), Error> {
        match self {
            Self::Stalls(s) => s.run(lab),
            Self::Scaling(s) => s.run(lab),
            Self::OltpRw(s) => s.run(lab),
            Self::FixedRate(s) => s.run(lab),
            Self::Tpcc(s) => s.run(lab),
            Self::Pgbench(s) => s.run(lab),
            Self::Redis(s) => s.run(lab, Protocol::Redis),
            Self::Memcached(s) => s.run(lab, Protocol::Memcached),
            Self::Web(s) => s.run(lab),
            Self::Interpreters(s) => s.run(lab),
        }
    }
}
