//! Why a run did not come to its end, with the exit code and the next step.

use std::path::PathBuf;

/// What stopped the lab. Whatever was measured before is in the run's folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program that is needed is not there.
    #[error("cannot find {program}")]
    Missing {
        /// What was looked for.
        program: String,
        /// How to get it.
        get: String,
    },
    /// A program could not be started, or ended with a failure.
    #[error("{program} {how}{}", said(.words))]
    Command {
        /// Which.
        program: String,
        /// In what way it failed.
        how: String,
        /// The end of what it printed.
        words: String,
    },
    /// whet would not, or could not.
    #[error("whet {command}: {message}")]
    Whet {
        /// The subcommand.
        command: String,
        /// whet's own words.
        message: String,
        /// whet's own advice.
        next: String,
    },
    /// The server did not come up.
    #[error("the server {name} ended at its start{}", said(.words))]
    ServerStart {
        /// Which.
        name: String,
        /// The end of its log.
        words: String,
    },
    /// Somebody else listens there.
    #[error("port {port} is in use")]
    PortInUse {
        /// Which.
        port: u16,
    },
    /// The server ended while it was being measured.
    #[error("the server {name} (pid {pid}) ended in the middle of the run{}", said(.words))]
    ServerGone {
        /// Which.
        name: String,
        /// It was this process.
        pid: i32,
        /// The end of its log.
        words: String,
    },
    /// The server does not let us in.
    #[error("{server} does not let {user} in: {message}")]
    Denied {
        /// Which.
        server: String,
        /// As whom.
        user: String,
        /// The server's words.
        message: String,
    },
    /// The server said no to a statement, or cannot be reached.
    #[error("{server}: {message}")]
    Database {
        /// Which.
        server: String,
        /// Its words.
        message: String,
    },
    /// A database that is not ours to write to.
    #[error("the database {name} on {server} has tables already")]
    NotEmpty {
        /// The server.
        server: String,
        /// The database.
        name: String,
    },
    /// The load did nothing, or queries failed.
    #[error("the load {load} {why}")]
    Load {
        /// Which.
        load: String,
        /// What is wrong.
        why: String,
    },
    /// A file could not be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A run's folder that holds none, or one of another version.
    #[error("{} is no run that can be read: {why}", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// An option that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A consistency condition of the data does not hold.
    #[error("{load}: the data is not consistent: {what}")]
    Inconsistent {
        /// Which load.
        load: String,
        /// Which condition, and what was found.
        what: String,
    },
    /// Something of the lab's own is wrong.
    #[error("{0}")]
    Bug(String),
    /// Ctrl-C or its kin.
    #[error("interrupted")]
    Interrupted,
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; its last words:\n{}", words.trim_end()) }
}

/// In the words of servers and programs: ENOSPC is 28 everywhere on Linux.
fn is_full(words: &str) -> bool {
    ["No space left", "Errcode: 28", "error 28", "out of disk space", "is full"]
        .iter()
        .any(|w| words.contains(w))
}

impl Error {
    /// A file's error.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// The process's exit code; the numbers are those of whet where both have the cause.
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
            Self::Command { .. } | Self::ServerStart { .. } | Self::Database { .. } | Self::Load { .. } => 13,
            Self::Inconsistent { .. } => 14,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Self::Missing { get, .. } => get.clone(),
            Self::Whet { next, .. } => next.clone(),
            Self::PortInUse { .. } => {
                "choose another with --port, or leave it out: a unix socket is used then".to_owned()
            }
            Self::Denied { .. } => {
                "mend the name in --dsn; the password is taken from it or from WHET_LAB_PASSWORD".to_owned()
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
                "its whole log lies in the run's folder, under servers".to_owned()
            }
            _ => "commands.log in the run's folder has every command and what it printed".to_owned(),
        }
    }
}
