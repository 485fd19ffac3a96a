//! Files that outlive the daemon: profiles by build-id, and records of targets for a later daemon.
//!
//! Every file is written whole beside its place and then renamed. So a reader, or a daemon after a crash,
//! sees the old file or the new file. All files can be deleted at any time. If a file cannot be written, the
//! daemon goes on with its work.

use crate::states::Memory;
use crate::watch::Identity;
use fleet::Slot;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tracing::warn;

const VERSION: u32 = 1;
/// The largest file that is read back, in bytes.
const MOST: u64 = 16 << 20;
/// How much of a profile is read to find the names of its programs, in bytes.
const HEAD: u64 = 4 << 10;

/// Whether the last writes of some files failed.
#[derive(Debug, Default)]
pub(crate) struct WriteErrors {
    fails: bool,
}

impl WriteErrors {
    /// Logs a failure after a success; nothing else depends on such a file. Returns whether the write failed.
    pub(crate) fn note(&mut self, written: Result<(), String>) -> bool {
        match written {
            Ok(()) => self.fails = false,
            Err(why) => {
                if !std::mem::replace(&mut self.fails, true) {
                    warn!("{why}; the work goes on without");
                }
            }
        }
        self.fails
    }
}

/// The folder of these files.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Targets {
    version: u32,
    /// Process ids and start times are valid in one boot only.
    boot: String,
    /// Another version may refuse other processes.
    program: String,
    targets: Vec<Kept>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    pid: i32,
    start: u64,
    #[serde(flatten)]
    memory: Memory,
}

impl Store {
    /// Opens the store in a folder, and creates the folder if possible.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let store = Self { folder: folder.to_owned() };
        // A folder that cannot be created is reported when a file is to be written there.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(store.profiles());
        store
    }

    fn profiles(&self) -> PathBuf {
        self.folder.join("profiles")
    }

    /// Returns the path of a build's profile, whether or not the profile exists.
    #[must_use]
    pub fn profile(&self, build_id: &str) -> PathBuf {
        self.profiles().join(format!("{build_id}.profile"))
    }

    /// Returns the path of the aggregate that was taken from the fleet for a build, whether or not it exists.
    #[must_use]
    pub fn aggregate(&self, build_id: &str, slot: Slot) -> PathBuf {
        let ending = match slot {
            Slot::Own => "fleet",
            Slot::Former => "former",
        };
        self.profiles().join(format!("{build_id}.{ending}"))
    }

    /// Returns the latest profile of any build of a program, by the program's path.
    #[must_use]
    pub fn profile_of_program(&self, exe: &str) -> Option<PathBuf> {
        let files = fs::read_dir(self.profiles()).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        let profiles = files.filter(|path| path.extension().is_some_and(|e| e == "profile"));
        let of_program = profiles.filter(|path| is_of_program(path, exe).unwrap_or(false));
        of_program.max_by_key(|path| fs::metadata(path).and_then(|m| m.modified()).ok())
    }

    /// Writes the records of targets.
    ///
    /// # Errors
    /// The system's error: no room, no permission. The earlier records are still there.
    pub fn keep(&self, targets: impl Iterator<Item = (Identity, Memory)>) -> io::Result<()> {
        let targets = targets.map(|(id, memory)| Kept { pid: id.pid, start: id.start, memory }).collect();
        let all = Targets {
            version: VERSION,
            boot: boot(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            targets,
        };
        write_whole(&self.folder.join("targets.json"), &serde_json::to_vec(&all)?)
    }

    /// Returns the records of targets from this boot. Refusals by another version are left out.
    #[must_use]
    pub fn known(&self) -> HashMap<Identity, Memory> {
        let path = self.folder.join("targets.json");
        let small = fs::metadata(&path).is_ok_and(|m| m.len() <= MOST);
        let bytes = if small { fs::read(&path).unwrap_or_default() } else { Vec::new() };
        let all: Option<Targets> = serde_json::from_slice(&bytes).ok();
        let all = all.filter(|a| a.version == VERSION && a.boot == boot());
        let same = all.as_ref().is_some_and(|a| a.program == env!("CARGO_PKG_VERSION"));
        let kept = all.into_iter().flat_map(|a| a.targets).filter(|k| same || !k.memory.refused);
        kept.map(|k| (Identity { pid: k.pid, start: k.start }, k.memory)).collect()
    }
}

/// Returns whether a profile names a program in its head.
fn is_of_program(path: &Path, exe: &str) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let names = |line: &str| line.strip_prefix("exe ").is_some_and(|name| name == exe);
    Ok(head.lines().take_while(|line| !line.starts_with("module ")).any(names))
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Writes a file whole, or leaves the earlier file.
///
/// # Errors
/// The system's error; no partly written file is left.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, bytes, File::sync_data)
}

/// Writes like [`write_whole`], but does not wait for the disk. For files that are soon written again.
///
/// # Errors
/// Same as [`write_whole`].
pub fn write_lightly(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_beside(path, bytes, |_| Ok(()))
}

fn write_beside(path: &Path, bytes: &[u8], prepare: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    engine::whole_file::replace(path, Path::new(&beside), 0o666, |file| {
        file.write_all(bytes)?;
        prepare(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::By;

    #[test]
    fn records_of_targets_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(&folder.path().join("state"));
        assert!(store.known().is_empty());
        let id = Identity { pid: 7, start: 1234 };
        let memory = Memory { undone_by: Some(By::Harm), reason: "slower".to_owned(), ..Memory::default() };
        store.keep([(id, memory.clone())].into_iter()).unwrap();
        assert_eq!(store.known(), HashMap::from([(id, memory)]));
        let file = folder.path().join("state/targets.json");
        let text = fs::read_to_string(&file).unwrap();
        // Another boot, another version, no JSON: there are no records, and nothing fails.
        for other in [
            text.replace(&boot(), "other"),
            text.replace("\"version\":1", "\"version\":9"),
            text[..20].to_owned(),
        ] {
            fs::write(&file, other).unwrap();
            assert!(store.known().is_empty());
        }
        // Only the expected files exist.
        assert_eq!(fs::read_dir(folder.path().join("state")).unwrap().count(), 2);
    }

    #[test]
    fn another_build_is_found_by_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        assert_eq!(store.profile_of_program("/usr/sbin/a"), None);
        let head = |exe: &str| format!("whet-profile 3\n# comment\nexe {exe}\nruns 1\nmodule aa {exe}\n");
        let write = |build: &str, text: &str, age: u64| {
            fs::write(store.profile(build), text).unwrap();
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            File::options().write(true).open(store.profile(build)).unwrap().set_modified(then).unwrap();
        };
        write("01", &head("/usr/sbin/a"), 100);
        write("02", &head("/usr/sbin/a"), 50);
        write("03", &head("/usr/sbin/ab"), 10);
        // A module's name is not a program's.
        write("04", "whet-profile 3\nmodule aa x\nexe /usr/sbin/a\n", 10);
        for slot in Slot::ALL {
            fs::write(store.aggregate("05", slot), head("/usr/sbin/a")).unwrap();
        }
        assert_eq!(store.profile_of_program("/usr/sbin/a"), Some(store.profile("02")));
        assert_eq!(store.profile_of_program("/usr/sbin/ab"), Some(store.profile("03")));
        assert_eq!(store.profile_of_program("/usr/sbin"), None);
    }

    #[test]
    fn writes_do_not_follow_links() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("x"), folder.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(format!("x.{}", std::process::id()))).unwrap();
        write_lightly(&path, b"new").unwrap();
        assert_eq!(
            (fs::read(&victim).unwrap(), fs::read(&path).unwrap()),
            (b"precious".into(), b"new".into())
        );
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        write_whole(&path, b"old").unwrap();
        // A folder has the name of the new file. The write fails, as it would without room.
        fs::create_dir(folder.path().join(format!("x.{}", std::process::id()))).unwrap();
        assert!(write_whole(&path, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(write_whole(Path::new("/dev/full/x"), b"new").is_err());
    }
}
