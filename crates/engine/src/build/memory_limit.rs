//! Checks that the limits of a process's control groups leave memory for clones.
//!
//! Memory that whet writes in a process is charged to the process's control groups: pages of clones and
//! tables, and patched pages of code. At a group's limit, the kernel kills a process of the group, which
//! would be the target. So room must exist before anything is written.

use crate::Error;
use addr::Addr;
use rustc_hash::FxHashSet;
use splice::CachePlan;
use std::fs;
use std::ops::Range;
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
    check_each(pid, |_, _| need)
}

/// As [`check`], if so many bytes of shared memory are charged anew. Others may have been charged for them so far: the
/// first to touch a page is.
///
/// # Errors
/// [`Error::MemoryLimit`]
pub(crate) fn check_shared(pid: Pid, need: u64, moved: u64) -> Result<(), Error> {
    check_each(pid, |group, version| need.saturating_add(moved.saturating_sub(shared(group, version))))
}

fn check_each(pid: Pid, need: impl Fn(&Path, Version) -> u64) -> Result<(), Error> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let groups = groups(&read(format!("/proc/{pid}/cgroup")), &read("/proc/self/mountinfo".to_owned()));
    for (group, version) in groups {
        let (free, need) = (free(&group, version), need(&group, version).saturating_add(SPARE));
        if let Some(free) = free.filter(|free| *free < need) {
            return Err(Error::MemoryLimit { pid, group, free, need });
        }
    }
    Ok(())
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
fn groups(memberships: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut found = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version = match (id, controllers) {
            ("0", "") => Version::Two,
            (_, c) if c.split(',').any(|c| c == "memory") => Version::One,
            _ => continue,
        };
        let Some((root, point)) = mounts.lines().find_map(|l| mount(l, version)) else { continue };
        // The path is relative to the mounted root; a group outside the root cannot be seen.
        let Ok(below) = Path::new(path).strip_prefix(root) else { continue };
        if below.components().any(|c| c == std::path::Component::ParentDir) {
            continue;
        }
        let above = below.ancestors().map(|b| (Path::new(point).join(b), version));
        found.extend(above);
    }
    found
}

/// Parses a line of `mountinfo` about memory groups: returns the mounted root and the mount point.
fn mount(line: &str, version: Version) -> Option<(&str, &str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let is = match (version, kind.next()?) {
        (Version::One, "cgroup") => kind.nth(1)?.split(',').any(|o| o == "memory"),
        (Version::Two, "cgroup2") => true,
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
    let [idle, used] = version.cached().map(|word| value(&stat, word));
    let left = version.limits().into_iter().filter_map(|(limit, usage)| {
        let limit = number(limit).filter(|&l| l < NONE)?;
        let taken = number(usage)?.saturating_sub(idle.saturating_add(used / 2));
        Some(limit.saturating_sub(taken))
    });
    left.min()
}

/// Returns the bytes of shared memory that are charged to a group.
fn shared(folder: &Path, version: Version) -> u64 {
    let word = match version {
        Version::One => "total_shmem ",
        Version::Two => "shmem ",
    };
    value(&fs::read_to_string(folder.join("memory.stat")).unwrap_or_default(), word)
}

/// Returns a value of `memory.stat`; 0 if it is not there.
fn value(stat: &str, word: &str) -> u64 {
    stat.lines().find_map(|l| l.strip_prefix(word)?.trim().parse().ok()).unwrap_or(0)
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
        groups(memberships, MOUNTS).iter().map(|(p, v)| format!("{} {v:?}", p.display())).collect()
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
        assert!(groups("0::/b", "").is_empty());
        assert!(groups("0::/b", "a - \n - cgroup2\n1 2 3 - cgroup2 x").is_empty());
    }

    /// Returns the free bytes of a group whose folder has these files.
    fn free_in(version: Version, files: &[(&str, &str)]) -> Option<u64> {
        in_group(files, |folder| free(folder, version))
    }

    /// Runs `f` on a group whose folder has these files.
    fn in_group<R>(files: &[(&str, &str)], f: impl FnOnce(&Path) -> R) -> R {
        let folder = std::env::temp_dir().join(format!(
            "whet-memory-limit-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::create_dir(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let result = f(&folder);
        fs::remove_dir_all(&folder).unwrap();
        result
    }

    #[test]
    fn shared_memory_of_groups() {
        let stat = [("memory.stat", "anon 700\nshmem 300\nshmem_thp 5\ntotal_shmem 400\n")];
        assert_eq!(in_group(&stat, |folder| shared(folder, Version::Two)), 300);
        assert_eq!(in_group(&stat, |folder| shared(folder, Version::One)), 400);
        assert_eq!(in_group(&[], |folder| shared(folder, Version::Two)), 0);
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
