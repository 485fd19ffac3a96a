//! Why a run failed, with the exit code and the next step for the user.

use std::path::PathBuf;

/// The cause that ended the lab. The run's folder keeps everything measured before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that is needed is missing.
    #[error("cannot find {program}")]
    Missing {
        /// The program.
        program: String,
        /// How to get it.
        get: String,
    },
    /// A program could not be started, or ended with a failure.
    #[error("{program} {how}{}", said(.words))]
    Command {
        /// The program.
        program: String,
        /// How it failed.
        how: String,
        /// The end of what it printed.
        words: String,
    },
    /// The shell to the server's host failed.
    #[error("the shell to the server's host ({command}) {why}{}", said(.words))]
    Shell {
        /// The command that starts it.
        command: String,
        /// How it failed.
        why: String,
        /// The end of what it wrote to standard error, and its exit status.
        words: String,
    },
    /// whet refused or failed.
    #[error("whet {command}: {message}")]
    Whet {
        /// The subcommand.
        command: String,
        /// whet's own message.
        message: String,
        /// whet's own advice.
        next: String,
    },
    /// The server ended before it accepted a session.
    #[error("the server {name} ended at its start{}", said(.words))]
    ServerStart {
        /// The server.
        name: String,
        /// The end of its log.
        words: String,
    },
    /// Another program listens on the port.
    #[error("port {port} is in use")]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The server ended while it was being measured.
    #[error("the server {name} (pid {pid}) ended in the middle of the run{}", said(.words))]
    ServerGone {
        /// The server.
        name: String,
        /// The pid that it had.
        pid: i32,
        /// The end of its log.
        words: String,
    },
    /// The server refuses the account.
    #[error("{server} does not let {user} in: {message}")]
    Denied {
        /// The server.
        server: String,
        /// The account.
        user: String,
        /// The server's message.
        message: String,
    },
    /// The server refused a statement, or cannot be reached.
    #[error("{server}: {message}")]
    Database {
        /// The server.
        server: String,
        /// The message.
        message: String,
    },
    /// The database is not empty, so the lab must not write to it.
    #[error("the database {name} on {server} has {what} already")]
    NotEmpty {
        /// The server.
        server: String,
        /// The database.
        name: String,
        /// What it has: `tables`, `routines` or `events`.
        what: &'static str,
    },
    /// The load did no work, or its queries failed.
    #[error("the load {load} {why}")]
    Load {
        /// The load.
        load: String,
        /// What is wrong.
        why: String,
    },
    /// A file could not be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A folder holds no run, or a run of another version.
    #[error("{} is no run that can be read: {why}", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// An option is not valid.
    #[error("{0}")]
    Usage(String),
    /// A consistency condition of the data does not hold.
    #[error("{load}: the data is not consistent: {what}")]
    Inconsistent {
        /// The load.
        load: String,
        /// The condition, and how many rows break it.
        what: String,
    },
    /// A fault of the lab itself.
    #[error("{0}")]
    Bug(String),
    /// The user interrupted the lab: SIGINT, SIGTERM or SIGHUP.
    #[error("interrupted")]
    Interrupted,
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; its last words:\n{}", words.trim_end()) }
}

/// Returns whether the output of a server or program reports a full disk. ENOSPC is 28 everywhere on Linux.
fn is_full(words: &str) -> bool {
    ["No space left", "Errcode: 28", "error 28", "out of disk space", "is full"]
        .iter()
        .any(|w| words.contains(w))
}

impl Error {
    /// Turns an error of the system into an error about this file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// Returns the exit code of the process. A cause that whet has as well has whet's number.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Bug(_) => 1,
            Self::Usage(_) | Self::NotEmpty { .. } => 2,
            Self::Missing { .. } | Self::NoRun { .. } => 3,
            Self::Denied { .. } => 4,
            Self::Whet { .. } => 5,
            Self::PortInUse { .. } => 6,
            Self::ServerGone { .. } => 10,
            Self::Interrupted => 11,
            Self::File { .. } => 12,
            Self::Command { .. }
            | Self::Shell { .. }
            | Self::ServerStart { .. }
            | Self::Database { .. }
            | Self::Load { .. } => 13,
            Self::Inconsistent { .. } => 14,
        }
    }

    /// Returns advice on what to do about the error.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Self::Missing { get, .. } => get.clone(),
            Self::Whet { next, .. } => next.clone(),
            Self::Shell { .. } => {
                "run the command of --shell by hand: it must start a shell that reads commands \
                 from its standard input, and ask for nothing"
                    .to_owned()
            }
            Self::PortInUse { .. } => {
                "choose another with --port, or leave it out: a unix socket is used then".to_owned()
            }
            Self::Denied { .. } => {
                "correct the user in --dsn; the password comes from --dsn or WHET_LAB_PASSWORD".to_owned()
            }
            Self::NotEmpty { .. } => {
                "name a database in --dsn that is empty or does not exist; the lab writes to no other"
                    .to_owned()
            }
            Self::File { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                "make room, or choose another disk with --out and --datadir".to_owned()
            }
            Self::Command { words, .. }
            | Self::ServerStart { words, .. }
            | Self::ServerGone { words, .. }
                if is_full(words) =>
            {
                "the disk is full: make room, or choose another disk with --out and --datadir".to_owned()
            }
            Self::File { .. } => "look at the path and its permissions".to_owned(),
            Self::NoRun { .. } => "name the folder of a run, which holds run.json and data.jsonl".to_owned(),
            Self::Usage(_) => "see --help".to_owned(),
            Self::Interrupted => "nothing is left running".to_owned(),
            Self::ServerGone { .. } | Self::ServerStart { .. } => {
                "its whole log is in the run's folder, under servers".to_owned()
            }
            _ => "commands.log in the run's folder has every command and what it printed".to_owned(),
        }
    }
}
