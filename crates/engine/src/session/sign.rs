//! Files that name the whet at work on a target. A file excludes nothing but a second file of the same name.

use crate::Error;
use crate::base::progress::Progress;
use crate::session::state::TargetState;
use rustc_hash::FxHashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use tracee::{Pid, Process};

/// A file that is locked as long as its creator lives. It is removed with the creator, except after SIGKILL.
#[derive(Debug)]
pub(crate) struct Sign {
    file: File,
    path: PathBuf,
    /// The state that it names now.
    shown: Option<TargetState>,
}

impl Sign {
    /// Creates a file.
    ///
    /// # Errors
    /// Returns [`Error::Locked`] if another process holds the same file, [`Error::LockFile`] if no file can
    /// be created.
    pub(crate) fn put(process: &Process, kind: &str) -> Result<Self, Error> {
        let name = file_name(process, kind)?;
        let mut failed = None;
        for folder in folders() {
            match Self::open(process, folder.join(&name)) {
                Err(Error::LockFile { path, source }) => failed = Some(Error::LockFile { path, source }),
                other => return other,
            }
        }
        Err(failed.unwrap_or(Error::Locked { pid: process.pid() }))
    }

    fn open(process: &Process, path: PathBuf) -> Result<Self, Error> {
        let io = |source| Error::LockFile { path: path.clone(), source };
        loop {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io)?;
            match file.try_lock() {
                // No other process sees a file that its last holder removed after this process opened it.
                Ok(()) if file.metadata().map_err(io)?.nlink() == 0 => {}
                Ok(()) => {
                    let sign = Self { file, path, shown: None };
                    // Remove what a killed creator had written.
                    if sign.is_private() {
                        let _ = sign.file.set_len(0);
                    }
                    return Ok(sign);
                }
                Err(TryLockError::WouldBlock) => return Err(Error::Locked { pid: process.pid() }),
                Err(TryLockError::Error(e)) => return Err(io(e)),
            }
        }
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the current work. Only in a private folder; if writing fails, `status` shows nothing.
    pub(crate) fn show(&mut self, progress: &Progress) {
        let state = match progress {
            Progress::Reading | Progress::Sampling { .. } => TargetState::Profiling,
            Progress::Counting { .. } => TargetState::Counting,
            Progress::Analysing
            | Progress::Shuffling { .. }
            | Progress::LayingOut
            | Progress::Building
            | Progress::Installing => TargetState::Optimizing,
        };
        self.show_state(state);
    }

    /// Writes the state of the target that others should see. Same limits as [`Sign::show`].
    pub(crate) fn show_state(&mut self, state: TargetState) {
        if self.is_private() && self.shown != Some(state) {
            self.shown = Some(state);
            let _ = self.file.write_all_at(format!("{:<WORD$}\n", state.word()).as_bytes(), 0);
        }
    }

    fn is_private(&self) -> bool {
        private_folders().any(|f| self.path.starts_with(f))
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        // The file is still locked. If removal fails, the file remains. If it was removed before, another
        // file may have its path.
        if self.file.metadata().is_ok_and(|m| m.nlink() > 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Root's own folder.
const OWN: &str = "/run/whet";
/// Bytes of the word in such a file.
const WORD: usize = 12;

/// Returns the name of a target's file. The start time makes it unique: no other process had this id at that
/// time.
///
/// # Errors
/// Returns the errors of [`Process::start_time`].
pub(crate) fn file_name(process: &Process, kind: &str) -> Result<String, Error> {
    Ok(format!("whet-{}-{}.{kind}", process.pid().0, process.start_time()?))
}

/// Returns the folders for such files, best first.
///
/// World-writable folders are not safe for root: a process that holds a file's lock prevents others from
/// locking it. So root's files lie in a folder of their own.
pub(crate) fn folders() -> Vec<PathBuf> {
    let own = Path::new(OWN);
    let made = DirBuilder::new().mode(0o700).create(own);
    let usable = made.is_ok() || fs::metadata(own).is_ok_and(|m| m.is_dir());
    let private = private_folders().filter(|f| usable || f != own);
    private.chain([std::env::temp_dir()]).collect()
}

/// Returns the folders where no other user may write.
fn private_folders() -> impl Iterator<Item = PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|f| f.is_absolute());
    std::iter::once(PathBuf::from(OWN)).chain(runtime)
}

/// The current work of a whet on a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    /// When the target started, in clock ticks since boot. With the process id it identifies the target.
    pub(crate) start_time: u64,
    /// The process id of the whet.
    pub(crate) by: i32,
    /// When the work began: seconds of the Unix epoch.
    pub(crate) since: u64,
    /// The state in the file; for a comparison, the state that it restores. Undo and redo, which take
    /// milliseconds, write none.
    pub(crate) state: Option<TargetState>,
}

impl Work {
    /// Joins two works: a comparison also holds the lock while it switches.
    fn and(self, other: &Self) -> Self {
        Self { state: self.state.or(other.state), since: self.since.min(other.since), ..self }
    }
}

/// Returns the targets with work in progress, by these files and the kernel's list of locks. Blocks no other
/// process.
pub(crate) fn work() -> FxHashMap<Pid, Work> {
    let entries = private_folders().filter_map(|f| fs::read_dir(f).ok()).flatten().flatten();
    let files: Vec<(PathBuf, Pid, u64)> = entries
        .filter_map(|e| {
            let (pid, start_time) = target_of(e.file_name().to_str()?)?;
            Some((e.path(), pid, start_time))
        })
        .collect();
    if files.is_empty() {
        return FxHashMap::default();
    }
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let holders: FxHashMap<u64, Pid> = tracee::lock_holders(&locks).collect();
    let mut all: FxHashMap<Pid, Work> = FxHashMap::default();
    for (path, pid, start_time) in files {
        let Some(work) = work_in(&path, &holders, start_time) else { continue };
        let work = match all.remove(&pid) {
            Some(other) => work.and(&other),
            None => work,
        };
        all.insert(pid, work);
    }
    all
}

/// Reads one of the files, if its creator is alive.
fn work_in(path: &Path, holders: &FxHashMap<u64, Pid>, start_time: u64) -> Option<Work> {
    let mut file = File::open(path).ok()?;
    let about = file.metadata().ok()?;
    let by = holders.get(&about.ino())?.0;
    let mut word = [0; WORD];
    let state = file.read_exact(&mut word).ok().and_then(|()| state_of(&word));
    let since = u64::try_from(about.ctime()).unwrap_or(0);
    Some(Work { start_time, by, since, state })
}

/// Returns the target that a file's name denotes.
fn target_of(name: &str) -> Option<(Pid, u64)> {
    let rest = name.strip_prefix("whet-")?;
    let rest = rest.strip_suffix(".lock").or_else(|| rest.strip_suffix(".claim"))?;
    let (pid, start_time) = rest.split_once('-')?;
    Some((Pid(pid.parse().ok()?), start_time.parse().ok()?))
}

/// The states that such a file may contain.
const SAID: [TargetState; 5] = [
    TargetState::Profiling,
    TargetState::Counting,
    TargetState::Optimizing,
    TargetState::Optimized,
    TargetState::Undone,
];

fn state_of(word: &[u8]) -> Option<TargetState> {
    let word = std::str::from_utf8(word).ok()?.trim_end();
    SAID.into_iter().find(|s| s.word() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_names_are_parsed() {
        assert_eq!(target_of("whet-12-3456.lock"), Some((Pid(12), 3456)));
        assert_eq!(target_of("whet-12-3456.claim"), Some((Pid(12), 3456)));
        for name in ["whet-12.lock", "whet-x-1.lock", "whet-1-2", "1-2.lock", ""] {
            assert_eq!(target_of(name), None, "{name}");
        }
    }

    #[test]
    fn states_in_the_file_are_parsed() {
        for state in SAID {
            let text = format!("{:<WORD$}\n", state.word());
            assert_eq!(state_of(&text.as_bytes()[..WORD]), Some(state));
        }
        assert_eq!((state_of(b"interrupted "), state_of(&[0xff; WORD])), (None, None));
    }
}
