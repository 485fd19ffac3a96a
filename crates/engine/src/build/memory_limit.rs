//! Checks that the limits of a process's control groups leave memory for clones.
//!
//! Memory that whet writes in a process is charged to the process's control groups: pages of clones and
//! tables, and patched pages of code. At a group's limit, the kernel kills a process of the group, which
//! would be the target. So room must exist before anything is written.

use crate::Error;
use addr::Addr;
use rustc_hash::FxHashSet;
use splice::CachePlan;
use std::ffi::OsStr;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tracee::Pid;

/// Bytes that remain for the process itself; whet uses none of them.
const SPARE: u64 = 8 << 20;
/// From this value on, a limit of the first version means no limit.
const NONE: u64 = 1 << 60;

/// The versions of control groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Returns the files with limits, each with the file of the limited usage. `memory.high` kills no
    /// process, but stalls all.
    fn limits(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::One => [
                ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
            ],
            Self::Two => [("memory.max", "memory.current"), ("memory.high", "memory.current")],
        }
    }

    /// Returns words of `memory.stat`: cached files that were not used recently, and cached files that were.
    fn cached(self) -> [&'static str; 2] {
        match self {
            Self::One => ["total_inactive_file", "total_active_file"],
            Self::Two => ["inactive_file", "active_file"],
        }
    }
}

/// Returns an error if the groups of a process have no room for so many bytes. A limit that cannot be seen
/// counts as none.
///
/// # Errors
/// [`Error::MemoryLimit`]
pub(crate) fn check(pid: Pid, need: u64) -> Result<(), Error> {
    let need = need.saturating_add(SPARE);
    match least(pid) {
        Some((free, group)) if free < need => Err(Error::MemoryLimit { pid, group, free, need }),
        _ => Ok(()),
    }
}

/// Returns the least bytes that a group of a process may still use; `None` if no limit can be seen.
pub(crate) fn left(pid: Pid) -> Option<u64> {
    least(pid).map(|(free, _)| free)
}

/// Returns the group with the least room, and its room.
fn least(pid: Pid) -> Option<(u64, PathBuf)> {
    // Names of groups and of mount points are bytes.
    let read = |path: String| fs::read(path).unwrap_or_default();
    let groups = groups(&read(format!("/proc/{pid}/cgroup")), &read("/proc/self/mountinfo".to_owned()));
    groups.into_iter().filter_map(|(folder, version)| Some((free(&folder, version)?, folder))).min()
}

/// Returns the most bytes that can be charged to the target for caches, and for counters of so many threads.
pub(crate) fn need(caches: &[CachePlan], counters: Option<&Range<u32>>, threads: u32) -> u64 {
    let mapped: u64 = caches.iter().map(|c| c.text_range().len() + c.data_len()).sum();
    let patched: FxHashSet<u64> =
        caches.iter().flat_map(|c| &c.records).map(|r| r.at.align_down(4096).0).collect();
    let pages =
        |offsets: &Range<u32>| u64::from(offsets.end).div_ceil(4096) - u64::from(offsets.start / 4096);
    let counted = counters.map_or(0, pages).saturating_mul(4096).saturating_mul(threads.into());
    mapped.saturating_add(patched.len() as u64 * 4096).saturating_add(counted)
}

/// Returns the folders of all visible memory groups of a process, by `/proc/PID/cgroup` and whet's own
/// mounts.
fn groups(memberships: &[u8], mounts: &[u8]) -> Vec<(PathBuf, Version)> {
    let mut found = Vec::new();
    for line in memberships.split(|b| *b == b'\n') {
        let mut fields = line.splitn(3, |b| *b == b':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version = match (id, controllers) {
            (b"0", b"") => Version::Two,
            (_, c) if has_memory(c) => Version::One,
            _ => continue,
        };
        // The path is relative to a mounted root; a group outside of all of them cannot be seen.
        let within = mounts.split(|b| *b == b'\n').filter_map(|line| {
            let (root, point) = mount(line, version)?;
            let below = self::path(path).strip_prefix(self::path(root)).ok()?;
            let is_inside = !below.components().any(|c| c == std::path::Component::ParentDir);
            is_inside.then_some((below, self::path(point)))
        });
        // The one that shows most of its parents.
        let Some((below, point)) = within.max_by_key(|(below, _)| below.components().count()) else {
            continue;
        };
        found.extend(below.ancestors().map(|b| (point.join(b), version)));
    }
    found
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Returns whether a list of controllers, or of a mount's options, has that of memory.
fn has_memory(list: &[u8]) -> bool {
    list.split(|b| *b == b',').any(|word| word == b"memory")
}

/// Parses a line of `mountinfo` about memory groups: returns the mounted root and the mount point.
fn mount(line: &[u8], version: Version) -> Option<(&[u8], &[u8])> {
    let separator = line.windows(3).position(|w| w == b" - ")?;
    let (place, kind) = (line.get(..separator)?, line.get(separator + 3..)?);
    let mut place = place.split(|b| *b == b' ').skip(3);
    let (root, point) = (place.next()?, place.next()?);
    let mut kind = kind.split(|b| *b == b' ');
    let is = match (version, kind.next()?) {
        (Version::One, b"cgroup") => has_memory(kind.nth(1)?),
        (Version::Two, b"cgroup2") => true,
        _ => false,
    };
    is.then_some((root, point))
}

/// Returns the bytes that may still be charged to a group; `None` without a limit. Half of the files in use
/// count as taken: dropping all of them would slow the process down.
fn free(folder: &Path, version: Version) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let stat = read("memory.stat").unwrap_or_default();
    let [idle, used] = version.cached().map(|word| {
        let value = stat.lines().find_map(|l| l.strip_prefix(word)?.trim().parse::<u64>().ok());
        value.unwrap_or(0)
    });
    let left = version.limits().into_iter().filter_map(|(limit, usage)| {
        let limit = number(limit).filter(|&l| l < NONE)?;
        let taken = number(usage)?.saturating_sub(idle.saturating_add(used / 2));
        Some(limit.saturating_sub(taken))
    });
    left.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:5 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

    fn paths(memberships: &str) -> Vec<String> {
        groups(memberships.as_bytes(), MOUNTS.as_bytes())
            .iter()
            .map(|(p, v)| format!("{} {v:?}", p.display()))
            .collect()
    }

    #[test]
    fn all_parent_groups_are_found() {
        assert_eq!(
            paths("4:memory:/docker/7/a\n1:cpu,cpuacct:/x\n0::/b/c\n"),
            [
                "/sys/fs/cgroup/memory/a One",
                "/sys/fs/cgroup/memory/ One",
                "/sys/fs/cgroup/unified/b/c Two",
                "/sys/fs/cgroup/unified/b Two",
                "/sys/fs/cgroup/unified/ Two",
            ]
        );
    }

    #[test]
    fn invisible_groups_are_skipped() {
        assert_eq!(paths("4:memory:/docker/8\n0::/../b\nx\n::\n4:memory\n"), [] as [&str; 0]);
        assert!(groups(b"0::/b", b"").is_empty());
        assert!(groups(b"0::/b", b"a - \n - cgroup2\n1 2 3 - cgroup2 x").is_empty());
    }

    #[test]
    fn names_are_bytes_and_a_root_may_be_mounted_several_times() {
        let mounts = b"29 1 0:9 / /tmp/caf\xe9 rw - tmpfs x rw
33 30 0:29 /other /x rw - cgroup cgroup rw,memory
34 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let of_caf = groups(b"4:memory:/caf\xe9\n", mounts);
        let expected = [path(b"/sys/fs/cgroup/memory/caf\xe9"), path(b"/sys/fs/cgroup/memory/")];
        assert_eq!(of_caf.iter().map(|(p, _)| p.as_path()).collect::<Vec<_>>(), expected);
        assert_eq!(groups(b"4:memory:/other/b", mounts)[0].0, path(b"/sys/fs/cgroup/memory/other/b"));
    }

    /// Returns the free bytes of a group whose folder has these files.
    fn free_in(version: Version, files: &[(&str, &str)]) -> Option<u64> {
        let folder = std::env::temp_dir().join(format!(
            "whet-memory-limit-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::create_dir(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let free = free(&folder, version);
        fs::remove_dir_all(&folder).unwrap();
        free
    }

    #[test]
    fn free_memory_of_groups() {
        let stat = ("memory.stat", "anon 700\nfile 300\ninactive_file 100\nactive_file 200\n");
        let current = ("memory.current", "1000\n");
        let two = |files: &[(&str, &str)]| free_in(Version::Two, files);
        assert_eq!(two(&[("memory.max", "1000\n"), current, stat]), Some(200), "cached files make way");
        assert_eq!(two(&[("memory.max", "1000\n"), ("memory.high", "900"), current, stat]), Some(100));
        assert_eq!(two(&[("memory.max", "max\n"), ("memory.high", "max\n"), current, stat]), None);
        assert_eq!(two(&[("memory.max", "500"), current, stat]), Some(0));
        assert_eq!(two(&[current, stat]), None);
        let one = |limit: &str, both: &str| {
            free_in(
                Version::One,
                &[
                    ("memory.limit_in_bytes", limit),
                    ("memory.usage_in_bytes", "1000\n"),
                    ("memory.memsw.limit_in_bytes", both),
                    ("memory.memsw.usage_in_bytes", "1500"),
                    ("memory.stat", "inactive_file 900\ntotal_inactive_file 10\ntotal_active_file 20\n"),
                ],
            )
        };
        assert_eq!(one("2000", "9223372036854771712"), Some(1020));
        assert_eq!(one("2000", "2000"), Some(520));
        assert_eq!(one("9223372036854771712", "9223372036854771712"), None);
    }
}
