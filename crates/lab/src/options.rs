//! Options that all scenarios share.

use crate::control::{FEWEST, USUAL};
use crate::error::Error;
use crate::plan::Plan;
use crate::program::{Settings, Source};
use crate::record::Place;
use crate::server::hide;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Options of every scenario.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Common {
    /// The whet program (default: the one beside the lab, otherwise the one in PATH).
    #[arg(long, value_name = "PATH")]
    pub whet: Option<PathBuf>,
    /// A/A control: both sides are the unchanged server. The difference found is the error of the method on this
    /// machine.
    #[arg(long)]
    pub null: bool,
    /// The number of A/A pairs of windows in each step (default: a quarter of the pairs, and as many as give the
    /// whole run 10). Nothing is changed between the halves of such a pair. A run with fewer than 8 of them, or
    /// in which they differ, is not to be published.
    #[arg(long, value_name = "N")]
    #[serde(default)]
    pub control: Option<usize>,
    /// The run's folder (default: lab-runs/SCENARIO-TIME).
    #[arg(long, value_name = "FOLDER")]
    #[serde(skip)]
    pub out: Option<PathBuf>,
    /// The seed of the windows' order, the loads and the bootstrap (default: random, recorded with the data).
    #[arg(long)]
    #[serde(skip)]
    pub seed: Option<u64>,
    /// The longest wait for a steady load. Seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub warm_up: f64,
    /// How long whet samples. Seconds (default: that of whet).
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub sampling: Option<f64>,
    /// Whether the server uses both hardware threads of its cores; each value is measured. Default: as the host is.
    #[arg(long, value_delimiter = ',', value_name = "on,off", value_parser = on_off, action = clap::ArgAction::Append)]
    #[serde(default)]
    pub smt: Vec<bool>,
    /// The numbers of sockets for the server; each is measured. The clients get the other sockets. Of all sockets
    /// together, server and clients get half of the cores each.
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = some)]
    #[serde(default)]
    pub sockets: Vec<usize>,
}

/// Options of the scenarios that measure a database of the MySQL family.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Database {
    /// A server by name: mariadb, mysql-9.7, mariadb-10.1 (XtraDB), mariadb-10.2, mariadb-11.4,
    /// mariadb-11.8, mysql-5.6. It is downloaded if it is missing. Several servers, by any of the options, are measured one after the
    /// other and shown side by side. Default: Debian's mariadbd.
    #[arg(long, value_name = "NAME")]
    #[serde(default)]
    pub server: Vec<String>,
    /// A server's program, of which a private server is started. May be given several times.
    #[arg(long, value_name = "PATH")]
    pub server_binary: Vec<PathBuf>,
    /// A running server: `mysql://USER[:PASSWORD]@HOST[:PORT][/DATABASE][?socket=PATH]`. The lab writes only to
    /// this database (default: whet_lab), which must be absent or empty: no tables, routines or events. The
    /// password may be in WHET_LAB_PASSWORD instead. `scaling` refuses a running server.
    #[arg(long, value_name = "URL")]
    pub dsn: Vec<String>,
    /// The command that starts a shell on the host of the server, if that is another one (--dsn): 'ssh root@db1 sh'.
    /// whet runs in this shell, and CPU times are read by it. --whet is then a path there (default: whet).
    #[arg(long, value_name = "COMMAND")]
    #[serde(default)]
    pub shell: Option<String>,
    /// The folder for the data of private servers. Several folders are compared (default: in the run's folder).
    #[arg(long, value_name = "FOLDER")]
    pub datadir: Vec<PathBuf>,
    /// The port of private servers at 127.0.0.1, instead of a Unix socket.
    #[arg(long)]
    pub port: Option<u16>,
    /// An option for private servers, such as --server-option=--innodb-log-file-size=1G. For one server alone:
    /// its number among all servers and a colon before it, such as --server-option=2:--ignore-builtin-innodb.
    /// Servers have numbers in the order in which they are measured: by name, by program, running ones.
    #[arg(long, value_name = "[N:]OPTION", allow_hyphen_values = true)]
    pub server_option: Vec<String>,
    /// The values of innodb_flush_log_at_trx_commit for private servers; each is measured. 1 flushes each commit to
    /// the disk, 2 writes it to the system, 0 does neither (default: 2 for loads that write, otherwise 0).
    #[arg(long, value_delimiter = ',', value_name = "0,1,2", value_parser = clap::value_parser!(u8).range(0..=2))]
    #[serde(default)]
    pub flush_log: Vec<u8>,
    /// The buffer pool of private servers in MiB (default: an eighth of the memory).
    #[arg(long, value_name = "MIB")]
    pub buffer_pool: Option<u64>,
    /// The sysbench program.
    #[arg(long, value_name = "PATH")]
    pub sysbench: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
}

impl Common {
    /// Returns the CPUs that are compared, as places.
    pub fn places(&self) -> Vec<Place> {
        let of = |smt| {
            each(&self.sockets).into_iter().map(move |sockets| Place { smt, sockets, ..Place::default() })
        };
        each(&self.smt).into_iter().flat_map(of).collect()
    }

    /// Sets the number of A/A pairs in each of `steps` steps with `pairs` pairs, if the user did not.
    pub fn fill_control(&mut self, steps: usize, pairs: usize) {
        self.control.get_or_insert(pairs.div_ceil(4).max(USUAL.div_ceil(steps.max(1))));
    }

    /// Returns how many A/A pairs a step with `pairs` pairs has. A run that is an A/A control has none, as all
    /// its pairs are.
    pub fn control_pairs(&self, pairs: usize) -> usize {
        if self.null { 0 } else { self.control.unwrap_or_else(|| pairs.div_ceil(4)) }
    }

    /// Returns a warning if a run of `steps` steps with `pairs` pairs has too few A/A pairs for a verdict.
    pub fn warning(&self, steps: usize, pairs: usize) -> Option<String> {
        let (each, more) =
            if self.null { (pairs, "--pairs") } else { (self.control_pairs(pairs), "--control") };
        let all = each * steps;
        (all < FEWEST).then(|| {
            format!(
                "warning: this run has {all} A/A pairs and will not be fit to publish; \
                 it needs {FEWEST} or more, see {more}"
            )
        })
    }

    /// Returns a plan with `pairs` pairs of windows. Each window takes `window` seconds and begins `settle`
    /// seconds after the change of sides. `each_second`: whether the figures of each second are recorded as
    /// well.
    pub fn plan(&self, pairs: usize, window: f64, settle: f64, each_second: bool) -> Plan {
        Plan {
            pairs,
            control: self.control_pairs(pairs),
            window: Duration::from_secs_f64(window),
            settle: Duration::from_secs_f64(settle),
            each_second,
            warm_up: Duration::from_secs_f64(self.warm_up),
            sampling: self.sampling,
        }
    }
}

impl Database {
    /// Returns the servers to measure, in order: by name, by program, running ones. Debian's if none is
    /// given.
    pub fn sources(&self) -> Vec<Source> {
        let binaries = self.server_binary.iter().cloned().map(Source::Binary);
        let named = self.server.iter().cloned().map(Source::Named);
        let all: Vec<Source> =
            named.chain(binaries).chain(self.dsn.iter().cloned().map(Source::Running)).collect();
        if all.is_empty() { vec![Source::Debian] } else { all }
    }

    /// Returns all places in which each server is measured. A place names only what the run varies.
    pub fn places(&self) -> Vec<Place> {
        let storages: Vec<Option<String>> =
            each(&self.datadir).into_iter().map(|d| d.map(|d| d.display().to_string())).collect();
        let mut all = Vec::new();
        for storage in &storages {
            for flush_log in each(&self.flush_log) {
                let here = |p| Place { storage: storage.clone(), flush_log, ..p };
                all.extend(self.common.places().into_iter().map(here));
            }
        }
        all
    }

    /// Returns how many times each point is measured: servers times places.
    pub fn homes(&self) -> usize {
        self.sources().len() * self.places().len()
    }

    /// Checks the options that only private servers can have.
    ///
    /// # Errors
    /// [`Error::Usage`] if an option is for a server that is not there or runs already.
    pub fn check(&self) -> Result<(), Error> {
        let sources = self.sources();
        if !self.flush_log.is_empty() && !self.dsn.is_empty() {
            return Err(Error::Usage("--flush-log is not for running servers (--dsn)".to_owned()));
        }
        if self.shell.is_some() && (self.dsn.len() != 1 || sources.len() != 1) {
            return Err(Error::Usage("--shell is for one server alone, a running one (--dsn)".to_owned()));
        }
        if self.shell.is_some() && !(self.common.smt.is_empty() && self.common.sockets.is_empty()) {
            return Err(Error::Usage("--smt and --sockets are not for servers on other hosts".to_owned()));
        }
        for option in &self.server_option {
            let (Some(number), _) = numbered(option) else { continue };
            let why = match number.checked_sub(1).and_then(|n| sources.get(n)) {
                Some(Source::Running(_)) => "that server runs already".to_owned(),
                Some(_) => continue,
                None => format!("the servers have the numbers 1 to {}", sources.len()),
            };
            return Err(Error::Usage(format!("--server-option {option}: {why}")));
        }
        Ok(())
    }

    /// Returns the options of one server, in order. `at` is its place in [`Self::sources`].
    pub fn options_of(&self, at: usize) -> Vec<String> {
        let mine = |option: &String| match numbered(option) {
            (Some(number), option) => (number == at + 1).then(|| option.to_owned()),
            (None, option) => Some(option.to_owned()),
        };
        self.server_option.iter().filter_map(mine).collect()
    }

    /// Returns the settings of private servers. `connections` is what the load needs. The options of a server
    /// are those of [`Self::options_of`].
    pub fn settings(&self, memory_mib: u64, connections: usize, writes: bool) -> Settings {
        Settings {
            buffer_pool_mib: self.buffer_pool_mib(memory_mib),
            // The lab's own sessions come on top.
            connections: connections + 20,
            port: self.port,
            more: Vec::new(),
            flush_log: if writes { 2 } else { 0 },
        }
    }

    /// Returns the size of the buffer pool in MiB: as given, else an eighth of the memory, from 128 to 16,384
    /// MiB.
    pub fn buffer_pool_mib(&self, memory_mib: u64) -> u64 {
        self.buffer_pool.unwrap_or((memory_mib / 8).clamp(128, 16_384))
    }

    /// Returns the options without passwords, as the run's folder may record them.
    #[must_use]
    pub fn without_passwords(&self) -> Self {
        Self { dsn: self.dsn.iter().map(|d| hide(d)).collect(), ..self.clone() }
    }
}

/// Returns each value, or `None` once if there is none.
fn each<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().cloned().map(Some).collect() }
}

/// Returns the number of the server that an option is for, and the option itself.
fn numbered(option: &str) -> (Option<usize>, &str) {
    let parts = option.split_once(':').and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
    parts.map_or((None, option), |(number, rest)| (Some(number), rest))
}

/// Parses `on` or `off`.
fn on_off(s: &str) -> Result<bool, String> {
    match s {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{s:?} is neither on nor off")),
    }
}

/// Returns how many rows each of `tables` tables has so that half the buffer pool holds them all; from 1,000
/// to 250,000.
pub fn rows_that_fit(pool_mib: u64, tables: usize) -> u64 {
    // One row of sysbench takes about 250 bytes with its index.
    (pool_mib * 1024 * 1024 / 2 / 250 / tables.max(1) as u64).clamp(1_000, 250_000)
}

/// Parses a duration in seconds, from 0.01 to 36,000.
pub fn seconds(s: &str) -> Result<f64, String> {
    let v: f64 = s.parse().map_err(|_| format!("{s:?} is no number of seconds"))?;
    if (0.01..=36_000.0).contains(&v) {
        Ok(v)
    } else {
        Err("seconds must lie between 0.01 and 36000".to_owned())
    }
}

/// Parses a count, from 1 to 100,000.
pub fn some(s: &str) -> Result<usize, String> {
    match s.parse() {
        Ok(n) if (1..=100_000).contains(&n) => Ok(n),
        _ => Err(format!("{s:?} is no number from 1 to 100000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        database: Database,
    }

    fn database(words: &[&str]) -> Database {
        Line::parse_from([&["lab"], words].concat()).database
    }

    #[test]
    fn options_of_one_server_and_of_all() {
        let two = database(&[
            "--server-binary=/a",
            "--server=mariadb",
            "--server-option=--x=1:2",
            "--server-option=2:--y",
            "--server-option=1:--z=3:4",
        ]);
        assert!(two.check().is_ok());
        assert_eq!(two.sources()[0], Source::Named("mariadb".to_owned()));
        assert_eq!(
            (two.options_of(0), two.options_of(1)),
            (vec!["--x=1:2".to_owned(), "--z=3:4".to_owned()], vec!["--x=1:2".to_owned(), "--y".to_owned()])
        );
        for (words, why) in [
            (&["--server-option=2:--x"][..], "the numbers 1 to 1"),
            (&["--server-option=0:--x"], "the numbers 1 to 1"),
            (&["--dsn=mysql://h", "--server-option=1:--x"], "runs already"),
            (&["--dsn=mysql://h", "--flush-log=1"], "not for running servers"),
            (&["--shell=sh"], "one server alone"),
            (&["--shell=sh", "--dsn=mysql://h", "--server=mariadb"], "one server alone"),
            (&["--shell=sh", "--dsn=mysql://h", "--smt=on"], "not for servers on other hosts"),
        ] {
            let e = database(words).check().unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn a_run_has_enough_control_pairs_by_default_and_warns_of_too_few() {
        let common = |words: &[&str], steps, pairs| {
            let mut common = database(words).common;
            common.fill_control(steps, pairs);
            (common.control_pairs(pairs), common.warning(steps, pairs).is_some())
        };
        for (words, steps, pairs, wanted) in [
            (&[][..], 1, 10, (10, false)),
            (&[], 6, 10, (3, false)),
            (&[], 1, 100, (25, false)),
            (&[], 40, 1, (1, false)),
            (&["--control=7"], 1, 10, (7, true)),
            (&["--control=4"], 2, 10, (4, false)),
            (&["--null"], 1, 7, (0, true)),
            (&["--null"], 2, 4, (0, false)),
        ] {
            assert_eq!(common(words, steps, pairs), wanted, "{words:?} {steps} {pairs}");
        }
    }

    #[test]
    fn each_value_of_flush_log_is_a_place() {
        let flush = |words: &[&str]| -> Vec<_> {
            database(words).places().into_iter().map(|p| (p.storage, p.flush_log)).collect()
        };
        assert_eq!(flush(&[]), [(None, None)]);
        let (a, b) = (Some("/a".to_owned()), Some("/b".to_owned()));
        assert_eq!(
            flush(&["--flush-log=1,2", "--datadir=/a", "--datadir=/b"]),
            [(a.clone(), Some(1)), (a, Some(2)), (b.clone(), Some(1)), (b, Some(2))]
        );
    }
}
