//! Lists all processes, or only the processes that began since the last list.
//!
//! A list of all of `/proc` takes the kernel some microseconds per process. Every few seconds this is too
//! much on a host with thousands of processes. The kernel assigns ids in rising order, starts again after the
//! highest, and reports the last assigned id. So a process that began after a list has an id behind the last
//! id of that time. The folder can be read from there.

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, SeekFrom, fstatfs, open, seek};
use std::fs;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A lister of the processes of a `/proc`.
#[derive(Debug)]
pub struct Roster {
    proc: PathBuf,
    /// The last assigned id at the list before the last list, and at the last list.
    marks: Option<[i32; 2]>,
    /// A process's position in the folder is its id plus this; `None` if the folder has no such order.
    bias: Option<u64>,
}

impl Roster {
    /// Creates a lister for one folder.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), marks: None, bias: None }
    }

    /// Returns whether [`Roster::new_ones`] can list new processes.
    #[must_use]
    pub fn can_list_new(&self) -> bool {
        self.marks.is_some() && self.bias.is_some()
    }

    /// Lists all processes.
    pub fn all(&mut self) -> Vec<i32> {
        let last = self.last_given_out();
        let (pids, bias) = self.folder().map(|f| listed(&f, i32::MAX)).unwrap_or_default();
        self.bias = bias;
        self.marks = last.map(|last| [self.marks.map_or(last, |m| m[1]), last]);
        pids
    }

    /// Lists the processes that began since the list before the last list. Returns `None` if only all
    /// processes can be listed. A process may get its id a moment before it appears in the folder, so it can
    /// appear in either of two lists.
    pub fn new_ones(&mut self) -> Option<Vec<i32>> {
        let ([older, newer], bias) = (self.marks?, self.bias?);
        let last = self.last_given_out()?;
        let folder = self.folder()?;
        let mut pids = Vec::new();
        for ids in since(older, last) {
            let place = bias.checked_add(u64::try_from(*ids.start()).ok()?)?;
            seek(&folder, SeekFrom::Start(place)).ok()?;
            pids.extend(listed(&folder, *ids.end()).0);
        }
        self.marks = Some([newer, last]);
        Some(pids)
    }

    fn folder(&self) -> Option<OwnedFd> {
        open(&self.proc, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Reads the last assigned id: the last field of `loadavg`, proc_loadavg(5).
    fn last_given_out(&self) -> Option<i32> {
        let text = fs::read_to_string(self.proc.join("loadavg")).ok()?;
        text.split_ascii_whitespace().next_back()?.parse().ok()
    }
}

/// Returns the ranges of ids that were assigned after `from`, up to `to`.
fn since(from: i32, to: i32) -> Vec<RangeInclusive<i32>> {
    let next = from.saturating_add(1);
    if to >= from { vec![next..=to] } else { vec![next..=i32::MAX, 1..=to] }
}

/// Lists the processes from the folder's current position up to the id `up_to`. Also returns the number that
/// added to an id gives the process's position in the folder; `None` if the folder has no such order.
fn listed(folder: &OwnedFd, up_to: i32) -> (Vec<i32>, Option<u64>) {
    let is_proc = fstatfs(folder).is_ok_and(|f| f.f_type == PROC_SUPER_MAGIC);
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(folder, &mut buffer);
    let (mut pids, mut bias, mut is_ordered) = (Vec::new(), None, is_proc);
    // The position behind the previous process.
    let mut place: Option<u64> = None;
    while let Some(Ok(entry)) = entries.next() {
        let is_folder = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        let pid = entry.file_name().to_str().ok().and_then(|n| n.parse::<i32>().ok());
        let Some(pid) = pid.filter(|_| is_folder) else { continue };
        if pid > up_to {
            break;
        }
        if let Some(place) = place {
            // The position behind an entry is the position of the next entry.
            let of_this = u64::try_from(pid).ok().and_then(|p| place.checked_sub(p));
            is_ordered &= of_this.is_some() && bias.is_none_or(|b| Some(b) == of_this);
            bias = of_this;
        }
        place = Some(entry.next_entry_cookie());
        pids.push(pid);
    }
    (pids, bias.filter(|_| is_ordered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn new_processes_are_listed_in_two_lists_only() {
        let mut roster = Roster::new(Path::new("/proc"));
        assert!(!roster.can_list_new() && roster.new_ones().is_none());
        let all = roster.all();
        assert!(all.contains(&1) && all.contains(&i32::try_from(std::process::id()).unwrap()));
        assert!(roster.can_list_new(), "{roster:?}");
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // The process is listed twice, and then no more.
        assert!(roster.new_ones().unwrap().contains(&pid));
        let again = roster.new_ones().unwrap();
        assert!(again.contains(&pid) && !again.contains(&1), "{again:?}");
        assert!(!roster.new_ones().unwrap().contains(&pid));
        assert!(roster.all().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn process_ids_wrap_around() {
        assert_eq!(since(7, 9), [8..=9]);
        assert!(since(7, 7)[0].is_empty());
        assert_eq!(since(32_000, 400), [32_001..=i32::MAX, 1..=400]);
    }

    /// A folder that stands in for `/proc` may have any order. It is listed whole.
    #[test]
    fn a_folder_other_than_proc_is_listed_whole() {
        let folder = tempfile::tempdir().unwrap();
        for pid in [3, 4, 70] {
            fs::create_dir(folder.path().join(pid.to_string())).unwrap();
        }
        fs::write(folder.path().join("loadavg"), "0.1 0.1 0.1 1/2 70\n").unwrap();
        let mut roster = Roster::new(folder.path());
        let mut all = roster.all();
        all.sort_unstable();
        assert_eq!(all, [3, 4, 70]);
        assert!(roster.new_ones().is_none());
    }
}
