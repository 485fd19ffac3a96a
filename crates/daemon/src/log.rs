//! Where the daemon's log goes: the journal where there is one, else standard error, or a file that does not grow for ever.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Bytes after which a log file becomes the one before, in the place of the one before that.
const MOST: u64 = 4 << 20;

/// Who reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogTo {
    /// Whoever started it, on standard error; the journal, where standard error leads there.
    Starter,
    /// Nobody is there any more: the journal, or this file.
    File(PathBuf),
}

/// Begins to log. Only once in a process.
///
/// # Errors
/// The system's, for a file that cannot be opened.
pub fn begin(to: &LogTo) -> io::Result<()> {
    let journal = || tracing_journald::layer().map(|l| l.with_syslog_identifier("whet".to_owned()));
    let registry = tracing_subscriber::registry().with(LevelFilter::INFO);
    let journal = match to {
        LogTo::Starter if std::env::var_os("JOURNAL_STREAM").is_none() => None,
        _ => journal().ok(),
    };
    // A second log would be a fault of the program; the first one goes on then.
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

/// A file, and the one before it.
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
    fn a_log_does_not_grow_for_ever() {
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
