//! Files with symbols from debuginfod servers (<https://sourceware.org/elfutils/Debuginfod.html>).
//!
//! Nothing is fetched unless the environment of the command names servers in `DEBUGINFOD_URLS`; the daemon
//! shows nothing and fetches nothing. The program `debuginfod-find` of elfutils fetches and caches, by the
//! user's settings. A command waits for all its files together no longer than a limit: a client may wait for
//! a server without end.

use image::FileParts;
use profile::BuildId;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The variable that names the servers.
const SERVERS: &str = "DEBUGINFOD_URLS";
/// The variable with the seconds after which elfutils' client gives up a transfer (debuginfod-client-config(7)).
/// By default the client never gives up. Here it limits all transfers of a command together.
const LIMIT: &str = "DEBUGINFOD_MAXTIME";
/// The limit without that variable.
const DEFAULT_LIMIT: Duration = Duration::from_secs(120);
/// The client of elfutils.
const CLIENT: &str = "debuginfod-find";
/// The most modules for which one command fetches files.
const MOST_MODULES: usize = 16;
/// The longest path, with its end of line, that the client may print. Bytes; Linux's `PATH_MAX`.
const LONGEST: usize = 4096;

/// The files that one command fetches. A file is fetched once.
#[derive(Debug, Default)]
pub struct Debuginfod {
    /// How long clients may still run; `None` if the environment names no servers.
    left: Option<Duration>,
    files: FxHashMap<BuildId, Option<OnDisk>>,
    trouble: Option<Trouble>,
}

/// Why files are missing that a server may have.
#[derive(Debug)]
enum Trouble {
    NoClient(std::io::Error),
    Slow,
}

impl Debuginfod {
    /// Takes the settings from the environment of the command.
    #[must_use]
    pub fn from_environment() -> Self {
        let is_on = std::env::var_os(SERVERS).is_some_and(|v| !v.is_empty());
        let limit = std::env::var(LIMIT).ok().and_then(|v| v.parse().ok()).filter(|&seconds| seconds > 0);
        let limit = limit.map_or(DEFAULT_LIMIT, Duration::from_secs);
        Self { left: is_on.then_some(limit), ..Self::default() }
    }

    /// Returns what the user should know about files that are missing.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let without = "functions without a symbol keep their addresses as names";
        Some(match self.trouble.as_ref()? {
            Trouble::NoClient(e) => format!(
                "{SERVERS} is set, but {CLIENT} cannot be run ({e}): {without}. Install elfutils' client (Debian's \
                 package debuginfod), or unset {SERVERS}."
            ),
            Trouble::Slow => format!(
                "{CLIENT} took too long and was ended: {without}. To wait longer, set {LIMIT} to a number of seconds."
            ),
        })
    }

    pub(super) fn is_on(&self) -> bool {
        self.left.is_some()
    }

    /// Returns the file with the symbols of a build, if a server has it.
    pub(super) fn file(&mut self, id: BuildId) -> Option<OnDisk> {
        if let Some(known) = self.files.get(&id) {
            return known.clone();
        }
        let is_room = self.files.len() < MOST_MODULES;
        let left = self.left.as_mut().filter(|left| is_room && !left.is_zero())?;
        let begin = Instant::now();
        let found = fetch(&id, *left);
        *left = left.saturating_sub(begin.elapsed());
        let file = found.unwrap_or_else(|trouble| {
            *left = Duration::ZERO;
            self.trouble = Some(trouble);
            None
        });
        self.files.entry(id).or_insert(file).clone()
    }
}

fn fetch(id: &BuildId, limit: Duration) -> Result<Option<OnDisk>, Trouble> {
    // It stays in the process group of the command, so that Ctrl-C at a terminal ends both.
    let mut child = Command::new(CLIENT)
        .args(["debuginfo", &id.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Trouble::NoClient)?;
    let Some(status) = ended(&mut child, limit) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(Trouble::Slow);
    };
    Ok(printed_path(&mut child).filter(|_| status.success()).and_then(|path| OnDisk::open(&path)))
}

/// Waits for a client to end. Returns `None` if it has not ended within the limit.
fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Returns the path that a client has printed. It is in the pipe: a client that prints more than a pipe holds
/// does not end.
fn printed_path(child: &mut Child) -> Option<PathBuf> {
    let mut stdout = child.stdout.take()?;
    // A process that the client left behind may keep the pipe open.
    rustix::io::ioctl_fionbio(&stdout, true).ok()?;
    let mut bytes = [0; LONGEST];
    let len = stdout.read(&mut bytes).ok()?;
    Some(PathBuf::from(std::str::from_utf8(bytes.get(..len)?).ok()?.trim()))
}

/// A fetched file.
#[derive(Clone, Debug)]
pub(super) struct OnDisk {
    file: Arc<File>,
    size: u64,
}

impl OnDisk {
    fn open(path: &Path) -> Option<Self> {
        // Opening a pipe would wait for its other end.
        if !std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
            return None;
        }
        let file = File::open(path).ok()?;
        let size = file.metadata().ok()?.len();
        Some(Self { file: Arc::new(file), size })
    }
}

impl FileParts for OnDisk {
    fn part(&self, from: u64, len: u64) -> Option<Vec<u8>> {
        from.checked_add(len).filter(|end| *end <= self.size)?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut bytes, from).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_limit_is_a_limit() {
        let mut child = Command::new("true").spawn().unwrap();
        assert!(ended(&mut child, Duration::from_secs(u64::MAX)).unwrap().success());
    }
}
