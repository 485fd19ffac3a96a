//! The files that code caches are mapped from, and copies of them for tools that open files by path.
//!
//! A process maps its caches from files that have no name outside (`tracee::SealedFile`). Profilers reach
//! them through `/proc/PID/map_files`. Other tools (perf, elfutils, gdb on a core) read a path in
//! `/proc/PID/maps` or in a core, and open it. So the file has, in its own file system, the path of a copy
//! that whet writes there. Nobody maps the copy, so its loss harms nothing. The members of a family map the
//! files of their parent, so they have no copies of their own.

use crate::analyse::program::Program;
use crate::base::{private, whole_file};
use crate::build::caches::Built;
use crate::{Error, Target};
use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};
use splice::{CachePlan, CodeFile};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use symbols::{Fragment, Part};

/// The files of a generation's clones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeFiles {
    /// True if the clones are mapped from files.
    pub mapped: bool,
    /// The paths of the files' copies.
    pub copies: Vec<String>,
    /// Why clones are in anonymous memory, or why copies were not written; absent if neither is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// The ending of files' names.
const ENDING: &str = "whet";

/// The number of ended processes whose copies are kept, the latest ones: their cores may still be read, and
/// members of their families may live on.
const ENDED_KEPT: usize = 4;

/// Returns the names of all clones.
pub(crate) fn names(program: &Program<'_>, built: &Built) -> Vec<Fragment> {
    let named = |(f, fragments): &(_, emit::Fragments)| {
        let name = program.name(*f);
        let part = |i| if i == 0 { Part::Hot } else { Part::Warm };
        let each = fragments.ranges().enumerate();
        each.map(|(i, range)| Fragment { range, part: part(i), name: name.clone() }).collect::<Vec<_>>()
    };
    built.cloned.iter().flat_map(named).collect()
}

/// Completes caches, so that they can be mapped from files.
///
/// # Errors
/// Returns the errors of [`tracee::Process::start_time`].
pub(crate) fn prepare(
    caches: &mut [CachePlan],
    target: &Target,
    names: &[Fragment],
    generation: u32,
) -> Result<(), Error> {
    let exe = target.exe();
    let exe = Path::new(&exe).file_name().map_or("", |n| n.to_str().unwrap_or(""));
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+".contains(c);
    let exe: String = exe.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    let (pid, start) = (target.process.pid(), target.process.start_time()?);
    // The path is the same if there is no folder for a copy.
    let folder = private::folder().unwrap_or_else(|_| "/run/whet".into());
    for (i, cache) in caches.iter_mut().enumerate() {
        let name = format!("{exe}.{pid}-{start}.{generation}-{i}.{ENDING}");
        let (head, tail) = symbols::file_ends(&symbols::CodeFile {
            text: cache.text_range(),
            data: cache.data_range(),
            eh_frame: cache.eh_frame,
            eh_frame_hdr: cache.index(),
            fragments: names,
            build_id: build_id(cache, &name),
        });
        if let Some(place) = cache.text.get_mut(..head.len()) {
            place.copy_from_slice(&head);
        }
        cache.file = Some(CodeFile::New { path: folder.join(name), tail });
    }
    Ok(())
}

/// Returns an identity that another cache has only by chance: 160 bits of its place, its name and its bytes.
fn build_id(cache: &CachePlan, name: &str) -> [u8; 20] {
    let mut id = [0; 20];
    for (i, word) in id.chunks_mut(8).enumerate() {
        let mut hasher = FxHasher::default();
        hasher.write_usize(i);
        hasher.write(name.as_bytes());
        hasher.write_u64(cache.text_at.0);
        hasher.write(&cache.text);
        hasher.write(&cache.blob);
        word.copy_from_slice(&hasher.finish().to_le_bytes()[..word.len()]);
    }
    id
}

/// Writes the copies of files that a target maps, and removes those of processes that ended long ago.
/// `refused` is the reason if the target maps none.
pub(crate) fn publish(caches: &[CachePlan], refused: Option<&str>) -> CodeFiles {
    if let Some(why) = refused {
        return CodeFiles { left_out: Some(why.to_owned()), ..CodeFiles::default() };
    }
    let mut answer = CodeFiles { mapped: true, ..CodeFiles::default() };
    for cache in caches {
        let Some(CodeFile::New { path, tail }) = &cache.file else { continue };
        let (parts, len) = cache.file_parts(tail);
        match copy(path, &parts, len) {
            Ok(()) => answer.copies.push(path.display().to_string()),
            Err(e) => answer.left_out = Some(format!("{}: {e}", path.display())),
        }
        sweep(path);
    }
    answer
}

fn copy(path: &Path, parts: &[(u64, &[u8])], len: u64) -> io::Result<()> {
    whole_file::replace(path, &path.with_extension("unfinished"), 0o600, |file| {
        file.set_len(len)?;
        parts.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))
    })
}

/// Removes the copies beside `path` that belong to processes which have ended, but for the latest processes. A
/// copy's time of modification is when its process was last seen alive.
fn sweep(path: &Path) {
    let mut ended: BTreeMap<(u32, u64), (SystemTime, Vec<PathBuf>)> = BTreeMap::new();
    for entry in path.parent().and_then(|f| fs::read_dir(f).ok()).into_iter().flatten().flatten() {
        let Some(owner) = entry.file_name().to_str().and_then(owner) else { continue };
        if lives(owner) {
            let _ = fs::File::open(entry.path()).and_then(|copy| copy.set_modified(SystemTime::now()));
        } else if let Ok(seen) = entry.metadata().and_then(|m| m.modified()) {
            let (latest, copies) = ended.entry(owner).or_insert((seen, Vec::new()));
            *latest = seen.max(*latest);
            copies.push(entry.path());
        }
    }
    let mut ended: Vec<_> = ended.into_values().collect();
    ended.sort_by_key(|(latest, _)| Reverse(*latest));
    for copy in ended.iter().skip(ENDED_KEPT).flat_map(|(_, copies)| copies) {
        let _ = fs::remove_file(copy);
    }
}

/// Returns the id and the start time of the process that a copy belongs to, by the file's name.
fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.rsplit('.');
    let (ending, number) = (parts.next()?, parts.next()?);
    let (pid, start) = parts.next()?.split_once('-')?;
    let ours = ending == ENDING && number.contains('-') && parts.next().is_some();
    ours.then_some((pid.parse().ok()?, start.parse().ok()?))
}

fn lives((pid, start): (u32, u64)) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    tracee::stat_field(&stat, 22) == Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_state_their_process() {
        assert_eq!(owner("mariadbd.77-1234.2-0.whet"), Some((77, 1234)));
        for foreign in ["mariadbd.77-1234.2-0.debug", "77-1234.2-0.whet", "whet-77-1.sign", "a.b.c.whet", "x"]
        {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn copies_of_long_ended_processes_are_removed() {
        let folder = std::env::temp_dir().join(format!("whet-copies-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let pid = std::process::id();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let start = tracee::stat_field(&stat, 22).unwrap();
        let name = |start, cache| folder.join(format!("a.{pid}-{start}.1-{cache}.whet"));
        let write = |path: &Path, age: u64| {
            copy(path, &[(3, b"ab")], 7).unwrap();
            let then = SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        };
        write(&name(start, 0), 100);
        write(&folder.join("other"), 100);
        // The first of the ended processes has an old copy and a new one.
        for (ended, age) in [(1, 90), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)] {
            write(&name(start + ended, age), age);
        }
        sweep(&name(start, 0));
        assert_eq!(fs::read(name(start, 0)).unwrap(), b"\0\0\0ab\0\0");
        assert!(folder.join("other").exists());
        let kept = [(1, 90), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)];
        let kept: Vec<_> = kept.map(|(ended, age)| name(start + ended, age).exists()).into();
        assert_eq!(kept, [true, true, true, true, true, false, false]);
        fs::remove_dir_all(folder).unwrap();
    }
}
