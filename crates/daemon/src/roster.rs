//! Lists processes: all of them, or those that began since the last list.
//!
//! A list of all of `/proc` takes the kernel some microseconds a process, too much for every few seconds on a host with thousands.
//! The kernel gives ids out in rising order and starts again at the end, and says which id was the last. So what has begun since
//! a list has an id behind the last one of that time, and the folder can be read from there.

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, SeekFrom, fstatfs, open, seek};
use std::fs;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Lists the processes of a `/proc`.
#[derive(Debug)]
pub struct Roster {
    proc: PathBuf,
    /// The last id given out at the list before the last one, and at the last one.
    marks: Option<[i32; 2]>,
    /// A process's place in the folder is its id and this; `None` where the folder has no such order.
    bias: Option<u64>,
}

impl Roster {
    /// For one folder.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_owned(), marks: None, bias: None }
    }

    /// Whether [`Roster::new_ones`] can be had.
    #[must_use]
    pub fn can_list_new(&self) -> bool {
        self.marks.is_some() && self.bias.is_some()
    }

    /// All processes.
    pub fn all(&mut self) -> Vec<i32> {
        let last = self.last_given_out();
        let (pids, bias) = self.folder().map(|f| listed(&f, i32::MAX)).unwrap_or_default();
        self.bias = bias;
        self.marks = last.map(|last| [self.marks.map_or(last, |m| m[1]), last]);
        pids
    }

    /// The processes that have begun since the list before the last one; `None` where only all can be listed. A process may get
    /// its id a moment before it can be seen: so it has two lists to be seen in.
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

    /// The last field of `loadavg`, proc_loadavg(5).
    fn last_given_out(&self) -> Option<i32> {
        let text = fs::read_to_string(self.proc.join("loadavg")).ok()?;
        text.split_ascii_whitespace().next_back()?.parse().ok()
    }
}

/// The ids that were given out after `from`, up to `to`.
fn since(from: i32, to: i32) -> Vec<RangeInclusive<i32>> {
    let next = from.saturating_add(1);
    if to >= from { vec![next..=to] } else { vec![next..=i32::MAX, 1..=to] }
}

/// The processes from where the folder is read next up to an id, and where a process's place is in this folder.
fn listed(folder: &OwnedFd, up_to: i32) -> (Vec<i32>, Option<u64>) {
    let is_proc = fstatfs(folder).is_ok_and(|f| f.f_type == PROC_SUPER_MAGIC);
    let mut buffer = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(folder, &mut buffer);
    let (mut pids, mut bias, mut is_ordered) = (Vec::new(), None, is_proc);
    // The place behind the process before.
    let mut place: Option<u64> = None;
    while let Some(Ok(entry)) = entries.next() {
        let is_folder = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        let pid = entry.file_name().to_str().ok().and_then(|n| n.parse::<i32>().ok());
        let Some(pid) = pid.filter(|_| is_folder) else { continue };
        if pid > up_to {
            break;
        }
        if let Some(place) = place {
            // What is told behind an entry is the place of the next one.
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
    fn what_has_begun_is_listed_and_little_else() {
        let mut roster = Roster::new(Path::new("/proc"));
        assert!(!roster.can_list_new() && roster.new_ones().is_none());
        let all = roster.all();
        assert!(all.contains(&1) && all.contains(&i32::try_from(std::process::id()).unwrap()));
        assert!(roster.can_list_new(), "{roster:?}");
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Twice, and then no more.
        assert!(roster.new_ones().unwrap().contains(&pid));
        let again = roster.new_ones().unwrap();
        assert!(again.contains(&pid) && !again.contains(&1), "{again:?}");
        assert!(!roster.new_ones().unwrap().contains(&pid));
        assert!(roster.all().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn ids_start_again_at_the_end() {
        assert_eq!(since(7, 9), [8..=9]);
        assert!(since(7, 7)[0].is_empty());
        assert_eq!(since(32_000, 400), [32_001..=i32::MAX, 1..=400]);
    }

    /// What stands in for `/proc`, and may have any order, is listed whole.
    #[test]
    fn another_folder_has_no_order() {
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
