//! The load of sysbench.

use crate::command::{Commands, Running, Spec, find, tail};
use crate::db::Address;
use crate::error::Error;
use crate::load::{Load, LoadFigures};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

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
    threads: usize,
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

    fn spec(&self, load: &str, address: &Address, threads: usize, seed: u64) -> Result<Spec, Error> {
        let mut spec = Spec::new(&self.binary).arg(load);
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

    /// Starts a load that runs until it is dropped. It prints a line of figures each second.
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
        // Deadlocks and the like (1213, 1020, 1205) come from the data. By default sysbench retries after
        // them.
        let spec = self.spec(load, address, threads, seed)?.args(["--time=0", "--report-interval=1", "run"]);
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
            threads,
        })
    }
}

impl SysbenchLoad {
    fn drain(&mut self) -> Vec<String> {
        let fresh: Vec<String> = self.lines.try_iter().collect();
        for line in &fresh {
            self.text.push_str(line);
            self.text.push('\n');
        }
        fresh
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
        #[expect(clippy::cast_precision_loss, reason = "a handful of threads")]
        let threads = self.threads as f64;
        let figures: Vec<(f64, f64)> = self.drain().iter().filter_map(|l| parse_line(l)).collect();
        let &(tps, p95_ms) = figures.last()?;
        // The load is a closed loop without pauses, so each thread is always in a transaction.
        let response_ms = if tps > 0.0 { threads * 1e3 / tps } else { 0.0 };
        Some(LoadFigures { tps, response_ms, p95_ms })
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

/// Parses a line that sysbench prints each second: transactions per second, and the 95th percentile of the
/// response times in ms.
fn parse_line(line: &str) -> Option<(f64, f64)> {
    if !line.starts_with("[ ") {
        return None;
    }
    let after = |word: &str| line.split_once(word)?.1.split_whitespace().next()?.parse().ok();
    Some((after("tps: ")?, after("lat (ms,95%): ")?))
}

#[cfg(test)]
mod tests {
    use super::parse_line;

    #[test]
    fn lines_of_each_second() {
        let line = "[ 3s ] thds: 4 tps: 1021.55 qps: 16344.80 (r/w/o: 14301.70/0.00/2043.10) lat (ms,95%): 5.28 err/s: 0.00 reconn/s: 0.00";
        assert_eq!(parse_line(line), Some((1021.55, 5.28)));
        assert_eq!(parse_line("Threads started!"), None);
    }
}
