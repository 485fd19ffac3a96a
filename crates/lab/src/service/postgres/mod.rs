//! PostgreSQL: a private server with the tables of pgbench, its load and its conditions.

mod bank;
mod session;

pub use bank::{Bank, CONDITIONS, Load};
pub use session::Session;

use super::Service;
use super::recipe::{Recipe, USUAL, words};
use crate::command::{Commands, Spec, find};
use crate::error::Error;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The account and the database.
const ACCOUNT: &str = "postgres";
/// Longest time to fill the tables.
const FILLING: Duration = Duration::from_secs(1800);

/// Returns the recipe of PostgreSQL. It has no network. As in the other scenarios, a commit is written but not
/// flushed to the disk.
pub fn postgres() -> Recipe {
    Recipe {
        name: "postgresql",
        programs: &["postgres"],
        package: "postgresql",
        arguments: |folder, socket| {
            let at = socket.parent().unwrap_or(folder).display().to_string();
            let data = folder.join("data").display().to_string();
            let all = ["-D", &data, "-k", &at, "-c", "listen_addresses=", "-c", "fsync=off"];
            [words(all), words(["-c", "shared_buffers=256MB"])].concat()
        },
        socket: ".s.PGSQL.5432",
        // It refuses to run as root.
        user: Some("postgres"),
        setup: Some(|program, folder| {
            let spec = Spec::new(beside(program, "initdb")).arg("-D").arg(folder.join("data"));
            spec.args(["-A", "trust", "-U", ACCOUNT, "--no-sync", "--locale=C", "-E", "UTF8"])
        }),
        // Ends all children at once and does not write the data, which is thrown away.
        end: Signal::QUIT,
        is_family: true,
        ..USUAL
    }
}

/// Returns the path of another program of the server's package: beside the server's own, which may be a link,
/// else in PATH.
fn beside(program: &Path, name: &str) -> PathBuf {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let beside = Some(program.with_file_name(name)).filter(|p| p.is_file());
    beside.or_else(|| find(name)).unwrap_or_else(|| PathBuf::from(name))
}

/// Fills the tables of pgbench: 100,000 accounts for each unit of `scale`.
///
/// # Errors
/// [`Error::Command`] if pgbench is missing or fails; [`Error::Database`] if the server refuses a session.
pub fn fill(commands: &Commands, service: &Service, scale: u32) -> Result<(), Error> {
    // The socket is there before the server is ready.
    Session::wait(&service.socket, &commands.interrupt)?;
    let folder = service.socket.parent().unwrap_or(&service.socket);
    let spec = Spec::new(beside(&service.program, "pgbench"))
        .args(["-i", "-q", "-s", &scale.to_string(), "-h"])
        .arg(folder);
    commands.must(&spec.args(["-U", ACCOUNT, ACCOUNT]), FILLING).map(|_| ())
}
