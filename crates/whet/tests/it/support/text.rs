//! Changes of a process's code, and its tracers, found without whet.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Returns the executable mappings of files in a process whose bytes differ from the file's.
pub fn changed_text(pid: i32) -> Vec<String> {
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut changed = Vec::new();
    for line in executable(pid) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !words.get(5).is_some_and(|p| p.starts_with('/')) {
            continue;
        }
        let (start, end) = range(words[0]);
        let offset = u64::from_str_radix(words[2], 16).unwrap();
        // A file of clones has no path outside its own file system.
        let file = fs::read(format!("/proc/{pid}/map_files/{start:x}-{end:x}")).unwrap();
        // In the last page, the bytes behind the end of the file are zero.
        let wanted = file.into_iter().skip(usize::try_from(offset).unwrap()).chain(std::iter::repeat(0));
        let mut live = vec![0; usize::try_from(end - start).unwrap()];
        memory.read_exact_at(&mut live, start).unwrap();
        let wanted: Vec<u8> = wanted.take(live.len()).collect();
        if let Some(at) = live.iter().zip(&wanted).position(|(a, b)| a != b) {
            let some = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 16)]);
            changed.push(format!("{line}: at {at:#x} {} for {}", some(&live), some(&wanted)));
        }
    }
    changed
}

/// Returns executable mappings without a name: clones are in such mappings. A language runtime may have some
/// of its own.
pub fn stray_code(pid: i32) -> Vec<String> {
    executable(pid).into_iter().filter(|line| line.split_whitespace().count() < 6).collect()
}

fn executable(pid: i32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let is = |line: &&str| line.split(' ').nth(1).is_some_and(|p| p.as_bytes()[2] == b'x');
    maps.lines().filter(is).map(str::to_owned).collect()
}

fn range(text: &str) -> (u64, u64) {
    let (start, end) = text.split_once('-').unwrap();
    (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
}

/// Returns the tracers of a process's threads.
pub fn tracers(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut tracers = Vec::new();
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:")).map_or("0", str::trim);
        tracers.extend(tracer.parse::<i32>().ok().filter(|t| *t != 0));
    }
    tracers
}
