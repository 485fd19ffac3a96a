//! Servers other than those of the MySQL family, and interpreters. Each is one process, or a parent with its
//! children, in a folder of its own, and ends with the lab.

mod client;
pub mod postgres;
mod recipe;
mod stream;
mod units;
mod web;

pub use client::{Client, Protocol};
pub use recipe::{Recipe, interpreter, key_value};
pub use units::Units;
pub use web::{BACKEND_FILE, WebServer, backend, certificate};

use crate::command::{Commands, Running, Spec, tail};
use crate::db::Db;
use crate::error::Error;
use crate::target::Target;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

/// Longest time in which a program must start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest path of a unix socket, in bytes, that all programs accept. haproxy binds a longer name first.
const SOCKET_PATH: usize = 90;

/// A running program.
#[derive(Debug)]
pub struct Service {
    /// Its name with its version: `redis-7.0.15`.
    pub name: String,
    /// The path of its Unix socket. A program without a socket does not create it.
    pub socket: PathBuf,
    /// The path of the program.
    pub program: PathBuf,
    is_family: bool,
    options: Vec<String>,
    version: String,
    log: PathBuf,
    process: Running,
    folder: PathBuf,
    _short: Option<tempfile::TempDir>,
}

impl Service {
    /// Starts a program on these CPUs and waits until it serves. `more` are arguments behind those of the
    /// recipe. Its folder lies in `run`, and so does its log.
    ///
    /// # Errors
    /// [`Error::Missing`] if the program is not installed; [`Error::ServerStart`] if it ends or does not
    /// serve in time.
    pub fn start(
        commands: &Commands,
        recipe: &Recipe,
        more: &[String],
        run: &Path,
        cpus: &[usize],
    ) -> Result<Self, Error> {
        let program = recipe.locate()?;
        let said = commands.run(&Spec::new(&program).arg(recipe.version), PATIENCE)?;
        let version = format!("{}{}", said.out, said.err).trim().to_owned();
        let name = format!("{}-{}", recipe.name, number(&version));
        let folder = run.join("work").join(&name);
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(Error::file(&folder))?;
        }
        let logs = run.join("servers");
        for dir in [&folder, &logs] {
            fs::create_dir_all(dir).map_err(Error::file(dir))?;
        }
        let is_long = folder.join(recipe.socket).as_os_str().len() > SOCKET_PATH;
        let short = is_long.then(|| tempfile::Builder::new().prefix("whet-lab-").tempdir()).transpose();
        let short = short.map_err(Error::file("/tmp"))?;
        let at = short.as_ref().map_or(folder.as_path(), tempfile::TempDir::path);
        let socket = at.join(recipe.socket);
        prepare(commands, recipe, &program, [&folder, &socket], cpus)?;
        let log = logs.join(format!("{name}.log"));
        let file = fs::File::create(&log).map_err(Error::file(&log))?;
        let spec = Spec::new(&program).args((recipe.arguments)(&folder, &socket)).args(more);
        let spec = recipe.of_user(spec).on(cpus).ends_by(recipe.end);
        // The output of a server goes to its log. The lab counts the lines that other programs print.
        let out = if recipe.serves {
            Stdio::from(file.try_clone().map_err(Error::file(&log))?)
        } else {
            Stdio::piped()
        };
        let process = commands.spawn(&spec, out, Stdio::from(file))?;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let (is_family, options) = (recipe.is_family, more.to_vec());
        let mut service =
            Self { name, socket, program, is_family, options, version, log, process, folder, _short: short };
        if recipe.serves {
            service.wait_until_up(commands)?;
        }
        Ok(service)
    }

    fn wait_until_up(&mut self, commands: &Commands) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(&self.socket).is_err() {
            if self.has_ended() || Instant::now() > until {
                return Err(Error::ServerStart { name: self.name.clone(), words: self.last_words() });
            }
            commands.interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// Returns the program's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the program's standard output at the first call.
    pub fn output(&mut self) -> Option<ChildStdout> {
        self.process.stdout()
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.process.ended(), Ok(None))
    }

    fn last_words(&self) -> String {
        tail(&String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()))
    }
}

impl Target for Service {
    fn pid(&self) -> Option<i32> {
        Some(self.process.pid())
    }

    fn is_family(&self) -> bool {
        self.is_family
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn options(&self) -> &[String] {
        &self.options
    }

    fn counters(&self) -> Result<Option<Db>, Error> {
        Ok(None)
    }

    fn explain(&mut self, e: Error) -> Error {
        if matches!(e, Error::Interrupted) {
            return e;
        }
        // When a program crashes, its pipe and its connections end before its process does.
        std::thread::sleep(Duration::from_millis(300));
        if !self.has_ended() {
            return e;
        }
        let (name, pid) = (self.name.clone(), self.process.pid());
        Error::ServerGone { name, pid, words: self.last_words() }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.process.end(Duration::from_secs(10));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Fills the folder of a program. The paths are those of its folder and of its socket.
fn prepare(
    commands: &Commands,
    recipe: &Recipe,
    program: &Path,
    paths: [&Path; 2],
    cpus: &[usize],
) -> Result<(), Error> {
    let [folder, socket] = paths;
    for (file, text) in (recipe.files)(folder, socket) {
        let path = folder.join(file);
        fs::write(&path, text).map_err(Error::file(&path))?;
    }
    if let Some(user) = recipe.user.filter(|_| rustix::process::geteuid().is_root()) {
        let folders = [folder, socket.parent().unwrap_or(folder)];
        commands.must(&Spec::new("chown").arg(user).args(folders), PATIENCE)?;
    }
    if let Some(setup) = recipe.setup {
        commands.must(&recipe.of_user(setup(program, folder)).on(cpus), PATIENCE)?;
    }
    Ok(())
}

/// Returns the first number with a dot in a program's output of its version.
fn number(text: &str) -> String {
    let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    let found = words.map(|w| w.trim_matches('.')).find(|w| w.contains('.'));
    found.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn versions_as_programs_print_them() {
        let said = [
            "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)",
            "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64",
            "memcached 1.6.18",
            "nginx version: nginx/1.22.1",
            "HAProxy version 2.6.12-1+deb12u4 2026/08/11 - https://haproxy.org/",
            "Python 3.11.2",
            "ruby 3.1.2p20 (2022-04-12 revision 4491bb740a) [x86_64-linux-gnu]",
            "PHP 8.2.36 (cli) (built: Nov 18 2026 20:02:04) (NTS)",
            "3.40.1 2022-12-28 14:03:47 df5c253c0b3dd24916e4ec7cf77d3db5294cc9fd45ae7b9c5e82ad8197f38a24",
            "none",
        ];
        assert_eq!(
            said.map(number),
            [
                "15.18", "7.0.15", "1.6.18", "1.22.1", "2.6.12", "3.11.2", "3.1.2", "8.2.36", "3.40.1",
                "unknown"
            ]
        );
    }
}
