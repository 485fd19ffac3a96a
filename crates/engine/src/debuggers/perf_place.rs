//! Where profilers look for files about a process, and how files are put there.
//!
//! What `perf` (6.1, `util/map.c`, `util/symbol.c`, `util/dso.c`, `util/jitdump.c`) does: if the process has
//! another mount namespace, perf looks in the process's `/tmp`. The file's name there has the id in the
//! process's own pid namespace. Otherwise perf looks in its own `/tmp` for a file with the plain id. It
//! accepts only files of root or of its own user, so the files belong to the user that runs whet.
//!
//! Any user may write in `/tmp`, and inside a container every path may lead elsewhere. So the folder is
//! opened once, as a folder and not as a link. A new file is created in it and takes its name by a rename,
//! which follows no links. A file that another program keeps there for the process (a runtime with its own
//! compiler) is left alone.

use crate::base::private;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tracee::Process;

/// Larger than any file of whet in this folder.
const MAX_FILE: u64 = 256 << 20;

/// An opened folder.
pub(crate) struct Place {
    folder: File,
    /// The process's id as its profilers see it.
    pub(crate) pid: i32,
    /// When the process was started, in seconds of the Unix epoch.
    started: i64,
    /// The process's group.
    group: u32,
}

impl Place {
    /// Opens the folder where profilers look.
    ///
    /// # Errors
    /// Returns the system's errors; also an error if the folder is a link in a file system that others
    /// control.
    pub(crate) fn open(process: &Process) -> io::Result<Self> {
        let other = |e: tracee::Error| io::Error::other(e.to_string());
        let (pid, path, flags) = if process.shares_mounts() {
            (process.pid().0, PathBuf::from("/tmp"), libc::O_DIRECTORY)
        } else {
            let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
            (inner_pid(process).map_err(other)?, process.root().join("tmp"), flags)
        };
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let started = started(process.start_time().map_err(other)?)?;
        let group = process.status().map_err(other)?.gid[3];
        Ok(Self { folder, pid, started, group })
    }

    /// Puts a complete file there, readable by its owner and the process's group. `own` are contents that
    /// only whet's files of this process have.
    ///
    /// # Errors
    /// Returns the system's errors; [`io::ErrorKind::AlreadyExists`] if there is a file that is not whet's.
    pub(crate) fn put(&self, name: &str, bytes: &[u8], own: &[Vec<u8>]) -> io::Result<()> {
        // Use the open folder, wherever its name may lead by now.
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd())).join(name);
        if !is_free(&path, own, self.started)? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is one that is not whet's"));
        }
        private::replace(&path, bytes, Some(self.group))
    }
}

/// Returns the id of a process in its own pid namespace.
fn inner_pid(process: &Process) -> Result<i32, tracee::Error> {
    Ok(process.status()?.ns_pid.last().copied().unwrap_or(process.pid().0))
}

/// Returns whether a file may be put at `path`. Either there is none, or the present file contains something
/// of `own`, or it belongs to an earlier process with the same id.
fn is_free(path: &Path, own: &[Vec<u8>], started: i64) -> io::Result<bool> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
        meta => meta?,
    };
    // Times are in whole seconds, and the host's clock may have been adjusted a little since.
    const SLACK: i64 = 2;
    if meta.mtime() < started - SLACK {
        return Ok(true);
    }
    if !meta.is_file() || meta.len() > MAX_FILE {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    private::open_file(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(own.iter().any(|o| bytes.windows(o.len().max(1)).any(|w| w == o)))
}

/// Returns when a process was started, in seconds of the Unix epoch. `ticks`, from `/proc/PID/stat`, counts
/// from the host's start.
fn started(ticks: u64) -> io::Result<i64> {
    /// `USER_HZ` of x86.
    const TICKS: u64 = 100;
    let text = fs::read_to_string("/proc/stat")?;
    let boot = text.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<i64>().ok());
    let boot = boot.ok_or_else(|| io::Error::other("/proc/stat does not show when the host was started"))?;
    Ok(boot.saturating_add_unsigned(ticks / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_files_of_whet_or_of_ended_processes_are_replaced() {
        let folder = std::env::temp_dir().join(format!("whet-perf-place-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("perf-7.map");
        let own = [b"7f0000000000 40 whet_find_object\n".to_vec()];
        let long_ago = 0;
        assert!(is_free(&path, &own, long_ago).unwrap());
        fs::write(&path, "7f0000001000 40 compiled by somebody\n").unwrap();
        assert!(!is_free(&path, &own, long_ago).unwrap());
        assert!(is_free(&path, &own, i64::MAX).unwrap(), "of a process that was before");
        fs::write(&path, "10 10 a.whet\n7f0000000000 40 whet_find_object\n").unwrap();
        assert!(is_free(&path, &own, long_ago).unwrap());
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        assert!(!is_free(&path, &own, long_ago).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_start_of_this_process_is_recent() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let ticks = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let age = i64::try_from(now).unwrap() - started(ticks).unwrap();
        assert!((-2..3600).contains(&age), "{age}");
    }
}
