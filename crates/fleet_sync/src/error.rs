//! Errors of `whet-fleet`, and its exit codes.

use fleet::Refused;
use std::path::PathBuf;

/// The exit codes. They are stable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Everything was done.
    Ok = 0,
    /// The command line, the configuration or a given file is wrong.
    Usage = 2,
    /// The store cannot be reached, or is too slow. Nothing was lost; the next run does the rest.
    Unreachable = 3,
    /// The store refuses: credentials are missing or have expired, or rights are missing.
    Denied = 4,
    /// Something in the store was refused: unsigned, wrongly signed, damaged, or of a later version.
    Refused = 5,
    /// A file on this host cannot be read or written.
    File = 6,
    /// The store is full or read-only, or its address is wrong.
    Store = 7,
}

/// The kind of trouble with the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// No answer in time, or no connection.
    Unreachable,
    /// Credentials or rights.
    Denied,
    /// There is no room.
    Full,
    /// It cannot be written.
    ReadOnly,
    /// There is no such store, or it lacks an operation that is needed.
    Wrong,
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error("cannot {what} in the store: {}: {why}; {}", kind.words(), kind.advice())]
    Store {
        /// The action.
        what: String,
        /// The kind of trouble.
        kind: Trouble,
        /// The store's own message.
        why: String,
    },
    /// An object is refused.
    #[error("{object} is refused: {why}")]
    Refused {
        /// The object.
        object: String,
        /// The reason.
        why: Refused,
    },
    /// A file cannot be used.
    #[error("cannot use {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The configuration or the command line is wrong.
    #[error("{0}")]
    Usage(String),
}

impl Trouble {
    fn words(self) -> &'static str {
        match self {
            Self::Unreachable => "it cannot be reached",
            Self::Denied => "it denies access",
            Self::Full => "it is full",
            Self::ReadOnly => "it is read-only",
            Self::Wrong => "it does not fit",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Unreachable => "hosts go on with what they have, and the next run does the rest",
            Self::Denied => "renew the credentials, or grant the rights listed in docs/fleet.md",
            Self::Full => "make room, or let the store expire old contributions",
            Self::ReadOnly => "make it writable for this user",
            Self::Wrong => "check the address in the configuration",
        }
    }
}

impl Error {
    /// Returns the exit code.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Store { kind: Trouble::Unreachable, .. } => Exit::Unreachable,
            Self::Store { kind: Trouble::Denied, .. } => Exit::Denied,
            Self::Store { .. } => Exit::Store,
            Self::Refused { .. } => Exit::Refused,
            Self::File { .. } => Exit::File,
            Self::Usage(_) => Exit::Usage,
        }
    }

    /// Returns whether further requests are pointless now.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Self::Store { kind: Trouble::Unreachable | Trouble::Denied | Trouble::Wrong, .. })
    }
}
