//! The daemon's log: it goes to the system journal, to standard error, or to a file of limited size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The size in bytes at which the log file is rotated. One old file is kept.
const MOST: u64 = 4 << 20;

/// The destination of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogTo {
    /// Standard error, or the system journal if standard error leads there. For a daemon in the foreground.
    Starter,
    /// The system journal, or this file if there is no journal. For a daemon in the background.
    File(PathBuf),
}

/// Starts logging. Only the first call in a process has an effect.
///
/// # Errors
/// The system's error, for a file that cannot be opened.
pub fn begin(to: &LogTo) -> io::Result<()> {
    let journal = || tracing_journald::layer().map(|l| l.with_syslog_identifier("whet".to_owned()));
    let registry = tracing_subscriber::registry().with(LevelFilter::INFO);
    let journal = match to {
        LogTo::Starter if std::env::var_os("JOURNAL_STREAM").is_none() => None,
        _ => journal().ok(),
    };
    // A second log would be a defect of the program; the first log then goes on.
    let _ = match (journal, to) {
        (Some(journal), _) => registry.with(journal).try_init(),
        (None, LogTo::Starter) => {
            registry.with(fmt::layer().with_ansi(false).with_target(false).with_writer(io::stderr)).try_init()
        }
        (None, LogTo::File(path)) => {
            let file = Mutex::new(Bounded::open(path)?);
            registry.with(fmt::layer().with_ansi(false).with_target(false).with_writer(file)).try_init()
        }
    };
    Ok(())
}

/// A log file with a limited size, and its path.
struct Bounded {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Bounded {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len })
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.len >= MOST {
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            fs::rename(&self.path, before)?;
            *self = Self::open(&self.path)?;
        }
        let n = self.file.write(bytes)?;
        self.len += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_file_has_a_limited_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Bounded::open(&path).unwrap();
        for _ in 0..5 {
            log.write_all(&vec![b'x'; usize::try_from(MOST).unwrap()]).unwrap();
        }
        log.write_all(b"last").unwrap();
        let files: Vec<u64> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
        assert!(files.len() == 2 && files.contains(&4) && files.contains(&MOST), "{files:?}");
    }
}
