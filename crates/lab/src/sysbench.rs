//! The load of sysbench.

use crate::command::{Commands, Running, Spec, find, tail};
use crate::db::Address;
use crate::error::Error;
use crate::load::{Load, LoadFigures};
use crate::timed::Times;
use crate::transactions::Transactions;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// sysbench, with what all its runs share.
#[derive(Clone, Debug)]
pub struct Sysbench {
    binary: PathBuf,
    commands: Commands,
    folder: PathBuf,
    /// Tables.
    pub tables: usize,
    /// Rows of each.
    pub rows: u64,
}

/// A running load.
#[derive(Debug)]
pub struct SysbenchLoad {
    running: Running,
    commands: Commands,
    lines: Receiver<String>,
    text: String,
    name: String,
    timed: Option<Timed>,
}

/// The response times of a load.
#[derive(Debug)]
struct Timed {
    times: Times,
    /// When figures were last taken, and the times until then.
    last: (Instant, Transactions),
}

impl Sysbench {
    /// Returns the path of sysbench: the named file, else the first in PATH.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is none.
    pub fn locate(named: Option<&Path>) -> Result<PathBuf, Error> {
        let found = match named {
            Some(path) => Some(path.to_owned()).filter(|p| p.is_file()),
            None => find("sysbench"),
        };
        found.ok_or_else(|| Error::Missing {
            program: named.map_or_else(|| "sysbench".to_owned(), |p| p.display().to_string()),
            get: "apt-get install sysbench, or name it with --sysbench".into(),
        })
    }

    /// Returns the version that sysbench reports.
    ///
    /// # Errors
    /// An error if sysbench cannot be run.
    pub fn version(binary: &Path, commands: &Commands) -> Result<String, Error> {
        let spec = Spec::new(binary).arg("--version");
        Ok(commands.must(&spec, Duration::from_secs(10))?.trim().to_owned())
    }

    /// Describes a load on tables of this size. `folder` is the run's folder.
    pub fn new(binary: &Path, commands: &Commands, folder: &Path, tables: usize, rows: u64) -> Self {
        let (binary, folder) = (binary.to_owned(), folder.to_owned());
        Self { binary, commands: commands.clone(), folder, tables, rows }
    }

    /// `script` is the name or the path of the load.
    fn spec(
        &self,
        script: impl Into<OsString>,
        address: &Address,
        threads: usize,
        seed: u64,
    ) -> Result<Spec, Error> {
        let mut spec = Spec::new(&self.binary).arg(script);
        if !address.password.is_empty() {
            spec = spec.arg(format!("--config-file={}", self.password_file(&address.password)?.display()));
        }
        spec = match &address.socket {
            Some(socket) => spec.arg(format!("--mysql-socket={socket}")),
            None => spec
                .args([format!("--mysql-host={}", address.host), format!("--mysql-port={}", address.port)]),
        };
        Ok(spec
            .arg(format!("--mysql-user={}", address.user))
            .arg(format!("--mysql-db={}", address.database))
            .arg(format!("--tables={}", self.tables))
            .arg(format!("--table-size={}", self.rows))
            .arg(format!("--threads={threads}"))
            .arg(format!("--rand-seed={}", seed & 0x7fff_ffff)))
    }

    /// Writes the password to a file that only its owner can read. On the command line, `ps` and the log
    /// would show it.
    fn password_file(&self, password: &str) -> Result<PathBuf, Error> {
        if !password.chars().all(|c| c.is_ascii_graphic() && !"#\"'\\".contains(c)) {
            let why = "sysbench reads the password from a file, which takes no blanks, quotes, backslashes and # in it";
            return Err(Error::Usage(why.to_owned()));
        }
        let path = self.folder.join("sysbench.conf");
        let write = || {
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path)?;
            writeln!(file, "mysql-password={password}")
        };
        write().map_err(Error::file(&path))?;
        Ok(path)
    }

    /// Creates and fills the tables.
    ///
    /// # Errors
    /// The error of sysbench.
    pub fn prepare(&self, address: &Address) -> Result<(), Error> {
        let threads = self.tables.clamp(1, 4);
        let spec = self.spec("oltp_read_write", address, threads, 1)?.arg("prepare");
        // sysbench inserts 100,000 rows a second and more, but disks may be slow.
        let limit = Duration::from_secs(600 + self.rows * self.tables as u64 / 5_000);
        self.commands.must(&spec, limit)?;
        Ok(())
    }

    /// Starts a load that runs until it is dropped.
    ///
    /// # Errors
    /// An error if sysbench cannot be started.
    pub fn start(
        &self,
        load: &str,
        address: &Address,
        threads: usize,
        seed: u64,
    ) -> Result<SysbenchLoad, Error> {
        self.run(load, self.spec(load, address, threads, seed)?, None)
    }

    /// As [`Self::start`], with a load that times each transaction.
    ///
    /// # Errors
    /// As [`Self::start`]; the errors of [`Times`].
    pub fn start_timed(
        &self,
        load: &str,
        address: &Address,
        threads: usize,
        seed: u64,
    ) -> Result<SysbenchLoad, Error> {
        let times = Times::new(threads)?;
        let script = times.script(load, &self.folder)?;
        let timed = Timed { times, last: (Instant::now(), Transactions::default()) };
        self.run(load, self.spec(script, address, threads, seed)?, Some(timed))
    }

    fn run(&self, load: &str, spec: Spec, timed: Option<Timed>) -> Result<SysbenchLoad, Error> {
        // Deadlocks and the like (1213, 1020, 1205) come from the data. By default sysbench retries after
        // them.
        let spec = spec.args(["--time=0", "--report-interval=1", "run"]);
        let mut running = self.commands.spawn(&spec, Stdio::piped(), Stdio::piped())?;
        let (sender, lines) = channel();
        let out = running.stdout().map(|s| Box::new(s) as Box<dyn std::io::Read + Send>);
        let err = running.stderr().map(|s| Box::new(s) as Box<dyn std::io::Read + Send>);
        for stream in [out, err].into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(SysbenchLoad {
            running,
            commands: self.commands.clone(),
            lines,
            text: String::new(),
            name: load.to_owned(),
            timed,
        })
    }
}

impl SysbenchLoad {
    fn drain(&mut self) {
        for line in self.lines.try_iter() {
            self.text.push_str(&line);
            self.text.push('\n');
        }
    }
}

impl Load for SysbenchLoad {
    fn check(&mut self) -> Result<(), Error> {
        self.drain();
        if let Some(status) = self.running.ended()? {
            // Its last output may still be on the way.
            std::thread::sleep(Duration::from_millis(100));
            self.drain();
            let errors: Vec<&str> = self.text.lines().filter(|l| l.contains("FATAL")).collect();
            let words = if errors.is_empty() { tail(&self.text) } else { tail(&errors.join("\n")) };
            return Err(Error::Load {
                load: self.name.clone(),
                why: format!("ended early ({status}):\n{words}"),
            });
        }
        Ok(())
    }

    fn figures(&mut self) -> Option<LoadFigures> {
        let timed = self.timed.as_mut()?;
        let now = (Instant::now(), timed.times.read().ok()?);
        let before = std::mem::replace(&mut timed.last, now);
        let (seconds, ended) = (timed.last.0 - before.0, timed.last.1.since(&before.1));
        #[expect(clippy::cast_precision_loss, reason = "of a second")]
        let tps = ended.count() as f64 / seconds.as_secs_f64().max(1e-6);
        // A second in which no transaction ended has no times.
        let (response_ms, p95_ms) =
            (ended.mean_ms().unwrap_or(0.0), ended.percentile_ms(95.0).unwrap_or(0.0));
        Some(LoadFigures { tps, response_ms, p95_ms })
    }

    fn transactions(&self) -> Result<Option<Transactions>, Error> {
        self.timed.as_ref().map(|timed| timed.times.read()).transpose()
    }
}

impl Drop for SysbenchLoad {
    fn drop(&mut self) {
        self.running.end(Duration::from_secs(3));
        std::thread::sleep(Duration::from_millis(20));
        self.drain();
        let _ = self.commands.note(&format!("> sysbench {}\n{}", self.name, self.text));
    }
}
