//! The programs of a private server: those of this machine, or those that `tools/server.py` fetches and runs
//! by a server's name.
//!
//! `tools/server.py` has the source and the needs of each server: a root directory with its own libc,
//! libraries, options. It replaces itself with the server's process. So for the lab both kinds are a child
//! with a pid.

use crate::command::{Commands, Spec, find};
use crate::error::Error;
use crate::interrupt::Interrupt;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which server to measure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Debian's MariaDB.
    Debian,
    /// A server that `tools/server.py` has under this name.
    Named(String),
    /// The path of a server's program.
    Binary(PathBuf),
    /// A server that runs already: its URL.
    Running(String),
}

/// The settings of a private server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Buffer pool, MiB.
    pub buffer_pool_mib: u64,
    /// The greatest number of connections.
    pub connections: usize,
    /// A port of 127.0.0.1 on which the server listens besides its socket. The load uses it, if given.
    pub port: Option<u16>,
    /// More options for the command line.
    pub more: Vec<String>,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush_log: u8,
}

/// Longest time in which a server must report its version or create its data folder.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time to fetch a server: hundreds of MB.
const FETCH_PATIENCE: Duration = Duration::from_secs(1800);
/// The path of `tools/server.py` in the source tree.
const TOOL: &str = "tools/server.py";

/// How a private server is run.
#[derive(Clone, Debug)]
pub enum Program {
    /// A program of this machine. Its scripts lie in folders beside it.
    Here(PathBuf),
    /// A server that `tools/server.py` fetches.
    Named(Named),
}

/// A server that `tools/server.py` fetches, by name.
#[derive(Clone, Debug)]
pub struct Named {
    name: String,
    python: PathBuf,
    tool: PathBuf,
}

impl Program {
    /// Finds the program of a server that does not run yet. A named server is fetched if it is not there,
    /// which may take minutes.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Usage`] if there is no such server.
    pub fn find(commands: &Commands, source: &Source) -> Result<Self, Error> {
        match source {
            Source::Binary(path) if path.is_file() => Ok(Self::Here(path.clone())),
            Source::Binary(path) => Err(Error::Missing {
                program: path.display().to_string(),
                get: "name a server's program with --server-binary".into(),
            }),
            Source::Named(name) => Named::fetch(commands, name).map(Self::Named),
            Source::Debian | Source::Running(_) => {
                find("mariadbd").map(Self::Here).ok_or_else(|| Error::Missing {
                    program: "mariadbd".into(),
                    get: "apt-get install mariadb-server, or name a server with --server, --server-binary or --dsn".into(),
                })
            }
        }
    }

    /// Returns the output of `--version`. `folder` is a folder that a named server may access.
    ///
    /// # Errors
    /// An error if the program cannot be run.
    pub fn version(&self, commands: &Commands, folder: &Path) -> Result<String, Error> {
        let spec = match self {
            Self::Here(binary) => Spec::new(binary).arg("--no-defaults").arg("--version"),
            Self::Named(named) => named.exec("version", &[folder]),
        };
        commands.must(&spec, PATIENCE)
    }

    /// Creates an empty data folder: `data` in `dir`.
    ///
    /// # Errors
    /// An error if the command that creates the folder is missing or fails.
    pub fn create(&self, commands: &Commands, version: &str, dir: &Path) -> Result<(), Error> {
        let spec = match self {
            Self::Here(binary) => install(binary, version, dir)?,
            Self::Named(named) => named.exec("create", &[dir]).arg("--").args(as_root()),
        };
        commands.must(&spec, PATIENCE).map(|_| ())
    }

    /// Returns the command that runs the server on the data in `dir`.
    pub fn serve(&self, dir: &Path, socket: &Path, log: &Path, settings: &Settings) -> Spec {
        let spec = match self {
            Self::Here(binary) => {
                let spec = Spec::new(binary).arg("--no-defaults").args(places(dir));
                let base = base_of(binary);
                if base.join("share").is_dir() { spec.arg(at("basedir", base)) } else { spec }
            }
            Self::Named(named) => named.exec("serve", &folders(dir, socket, log)).arg("--"),
        };
        options(spec, dir, socket, log, settings)
    }

    /// Removes what a named server has left outside of the lab's folders.
    pub fn forget(&self, commands: &Commands, dir: &Path, socket: &Path, log: &Path) {
        let Self::Named(named) = self else { return };
        // This must also run after a Ctrl-C, so the interrupt is left out. If it fails, only empty folders
        // stay.
        let mut calm = commands.clone();
        calm.interrupt = Interrupt::default();
        let _ = calm.run(&named.exec("forget", &folders(dir, socket, log)), PATIENCE);
    }
}

impl Named {
    fn fetch(commands: &Commands, name: &str) -> Result<Self, Error> {
        let python = find("python3").ok_or_else(|| Error::Missing {
            program: "python3".into(),
            get: "apt-get install python3, or name a server's program with --server-binary".into(),
        })?;
        let tool = tool().ok_or_else(|| Error::Missing {
            program: TOOL.into(),
            get: "it belongs to whet's sources and starts servers by name: run the lab that was built there (target/release/whet-lab), or name a server's program with --server-binary".into(),
        })?;
        let answer = commands.run(&Spec::new(&python).arg(&tool).args(["fetch", name]), FETCH_PATIENCE)?;
        let words = answer.err.trim().trim_start_matches("server.py: ").to_owned();
        match answer.status.code() {
            Some(0) => Ok(Self { name: name.to_owned(), python, tool }),
            Some(2) => Err(Error::Usage(words)),
            _ => Err(Error::Missing { program: format!("the server {name}"), get: words }),
        }
    }

    fn exec(&self, what: &str, folders: &[&Path]) -> Spec {
        let spec = Spec::new(&self.python).arg(&self.tool).args(["exec", &self.name, what]);
        folders.iter().fold(spec, |spec, folder| spec.arg("--folder").arg(*folder))
    }
}

/// Returns the path of `tools/server.py` in the source tree whose `target` folder holds the lab. No other
/// place, such as the current folder, is searched: root may run the lab, and other users' files must not be
/// run.
fn tool() -> Option<PathBuf> {
    let lab = std::env::current_exe().ok()?;
    let target = lab.ancestors().find(|a| a.file_name().is_some_and(|n| n == "target"))?;
    Some(target.with_file_name(TOOL)).filter(|p| p.is_file())
}

/// Returns all folders that a server works in. A folder inside `dir` is not listed again.
fn folders<'a>(dir: &'a Path, socket: &'a Path, log: &'a Path) -> Vec<&'a Path> {
    let mut all = vec![dir];
    all.extend([socket, log].into_iter().filter_map(Path::parent).filter(|p| !p.starts_with(dir)));
    all
}

fn base_of(binary: &Path) -> &Path {
    binary.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"))
}

fn at(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// Returns the options for data and temporary files. The temporary files get a folder of their own. A
/// starting server deletes files there that look like its own, and other servers use /tmp.
fn places(dir: &Path) -> [String; 2] {
    [at("datadir", &dir.join("data")), at("tmpdir", dir)]
}

/// Returns the option that lets a server run as root, if the lab does: servers refuse to otherwise. This
/// server is private, with no network and a throw-away data folder.
fn as_root() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}

/// Returns the command by which a program of this machine creates its data folder.
fn install(binary: &Path, version: &str, dir: &Path) -> Result<Spec, Error> {
    let base = base_of(binary);
    let is_old_mysql = version.contains("Ver 5.5") || version.contains("Ver 5.6");
    if !version.contains("MariaDB") && !is_old_mysql {
        let spec = Spec::new(binary).args(["--no-defaults", "--initialize-insecure"]);
        return Ok(spec.args(places(dir)).args(as_root()));
    }
    let beside = ["scripts", "bin"]
        .iter()
        .flat_map(|d| ["mariadb-install-db", "mysql_install_db"].iter().map(move |n| base.join(d).join(n)));
    let script = beside.into_iter().find(|p| p.is_file()).or_else(|| find("mariadb-install-db"));
    let script = script.ok_or_else(|| Error::Missing {
        program: "mariadb-install-db".into(),
        get: format!("it belongs to the server's package; looked for in {}", base.display()),
    })?;
    let mut spec = Spec::new(script).arg("--no-defaults").args(places(dir)).arg(at("basedir", base));
    if !is_old_mysql {
        spec = spec.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    }
    Ok(spec.arg("--skip-name-resolve").args(as_root()))
}

/// Adds the options that every private server gets.
fn options(spec: Spec, dir: &Path, socket: &Path, log: &Path, settings: &Settings) -> Spec {
    let spec = spec
        .arg(at("socket", socket))
        .arg(at("pid-file", &dir.join("server.pid")))
        .arg(at("log-error", log))
        .arg("--skip-name-resolve")
        .arg("--skip-log-bin")
        .arg(format!("--max-connections={}", settings.connections))
        .arg("--max-prepared-stmt-count=1000000")
        .arg(format!("--innodb-buffer-pool-size={}M", settings.buffer_pool_mib))
        // With the prefix `loose-`, servers ignore options that they do not have.
        .args([
            "--loose-innodb-log-file-size=256M",
            "--loose-innodb-redo-log-capacity=512M",
            "--loose-mysqlx=OFF",
        ])
        .arg(format!("--innodb-flush-log-at-trx-commit={}", settings.flush_log))
        // The data is thrown away, so a shutdown need not write it out.
        .arg("--innodb-fast-shutdown=2")
        .args(as_root());
    let spec = match settings.port {
        Some(port) => spec.args(["--bind-address=127.0.0.1".to_owned(), format!("--port={port}")]),
        None => spec.arg("--skip-networking"),
    };
    spec.args(&settings.more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_sees_each_folder_once() {
        let [dir, log] = ["/r/work/server", "/r/servers/a.log"].map(Path::new);
        assert_eq!(
            folders(dir, Path::new("/r/work/server/s"), log),
            ["/r/work/server", "/r/servers"].map(Path::new)
        );
        assert_eq!(
            folders(dir, Path::new("/tmp/x/s"), log),
            ["/r/work/server", "/tmp/x", "/r/servers"].map(Path::new)
        );
    }
}
