//! whet, by its command line alone, and the side that a server is on.

use crate::command::{Commands, Spec, find};
use crate::error::Error;
use crate::record::Side;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one of whet's commands may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The program.
#[derive(Clone, Debug)]
pub struct Whet {
    binary: PathBuf,
    commands: Commands,
}

impl Whet {
    /// The one named, else the one beside the lab, else the one in PATH.
    ///
    /// # Errors
    /// Where there is none.
    pub fn locate(named: Option<&Path>) -> Result<PathBuf, Error> {
        let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join("whet")));
        let found = match named {
            Some(path) => Some(path.to_owned()).filter(|p| p.is_file()),
            None => beside.filter(|p| p.is_file()).or_else(|| find("whet")),
        };
        found.ok_or_else(|| Error::Missing {
            program: named.map_or_else(|| "whet".to_owned(), |p| p.display().to_string()),
            get: "build it (cargo build --release -p whet) and name it with --whet, or measure --null".into(),
        })
    }

    /// Run through the lab's log.
    pub fn new(binary: &Path, commands: &Commands) -> Self {
        Self { binary: binary.to_owned(), commands: commands.clone() }
    }

    /// What it calls itself.
    ///
    /// # Errors
    /// Where it cannot be run.
    pub fn version(&self) -> Result<String, Error> {
        Ok(self.commands.must(&Spec::new(&self.binary).arg("--version"), LIMIT)?.trim().to_owned())
    }

    /// One of its commands; its answer.
    ///
    /// # Errors
    /// whet's own, with its advice.
    pub fn run(&self, command: &str, arguments: &[String]) -> Result<Value, Error> {
        let spec = Spec::new(&self.binary).arg(command).args(arguments).args(["--format", "json"]);
        let answer = self.commands.run(&spec, LIMIT)?;
        let value: Value = serde_json::from_str(answer.out.trim()).unwrap_or_default();
        if answer.status.success() {
            return Ok(value);
        }
        let word = |name: &str| value["error"][name].as_str().map(ToOwned::to_owned);
        Err(Error::Whet {
            command: command.to_owned(),
            message: word("message").unwrap_or_else(|| format!("failed ({})", answer.status)),
            next: word("next").unwrap_or_else(|| "commands.log has what it printed".to_owned()),
        })
    }
}

/// Brings a server to the wanted side, and at the end back to the state in which it was found.
#[derive(Debug)]
pub struct Sides {
    whet: Option<Whet>,
    pid: i32,
    found: Option<Side>,
    now: Option<Side>,
}

impl Sides {
    /// Of a server; with no whet nothing is ever done, and both sides are the server as it is.
    ///
    /// # Errors
    /// Those of `whet status`.
    pub fn of(whet: Option<&Whet>, pid: Option<i32>) -> Result<Self, Error> {
        let Some(whet) = whet else { return Ok(Self { whet: None, pid: 0, found: None, now: None }) };
        let pid = pid.ok_or_else(|| {
            Error::Usage(
                "the server is on another host, where whet cannot reach it: measure --null there".into(),
            )
        })?;
        let status = whet.run("status", &[pid.to_string()])?;
        let state = status["targets"][0]["state"].as_str();
        let found = match state {
            Some("optimized") => Some(Side::With),
            Some("undone") => Some(Side::Without),
            _ => None,
        };
        Ok(Self { whet: Some(whet.clone()), pid, found, now: found })
    }

    /// Rebuilds the server under the load that runs now; `None` where there is no whet, or clones from before this run.
    ///
    /// # Errors
    /// whet's own.
    pub fn optimize(&mut self, seconds: Option<f64>) -> Result<Option<Value>, Error> {
        let Some(whet) = self.whet.as_ref().filter(|_| self.now.is_none()) else { return Ok(None) };
        let mut words = vec![self.pid.to_string()];
        if let Some(seconds) = seconds {
            words.extend(["--seconds".to_owned(), seconds.to_string()]);
        }
        // Before it is so: where whet is broken off in the middle, what it left is undone on the way out.
        self.now = Some(Side::With);
        Ok(Some(whet.run("optimize", &words)?))
    }

    /// Undo or redo, unless that is the state already. In random order both sides need it equally often.
    ///
    /// # Errors
    /// whet's own.
    pub fn go(&mut self, side: Side) -> Result<(), Error> {
        let Some(whet) = self.whet.as_ref().filter(|_| self.now != Some(side)) else { return Ok(()) };
        let word = if side == Side::With { "redo" } else { "undo" };
        whet.run(word, &[self.pid.to_string()])?;
        self.now = Some(side);
        Ok(())
    }

    /// Leaves the server as it was found; one that had no clones is left undone.
    ///
    /// # Errors
    /// whet's own.
    pub fn restore(&mut self) -> Result<(), Error> {
        if self.now.is_some() { self.go(self.found.unwrap_or(Side::Without)) } else { Ok(()) }
    }
}

impl Drop for Sides {
    fn drop(&mut self) {
        // On the way out of an error. A command that was broken off by a Ctrl-C is tried once more all the same.
        let Some(whet) = self.whet.as_ref().filter(|_| self.now.is_some()) else { return };
        let wanted = self.found.unwrap_or(Side::Without);
        if self.now != Some(wanted) && crate::procfs::is_alive(self.pid) {
            let word = if wanted == Side::With { "redo" } else { "undo" };
            let mut calm = whet.clone();
            calm.commands.interrupt = crate::interrupt::Interrupt::default();
            let _ = calm.run(word, &[self.pid.to_string()]);
        }
    }
}
