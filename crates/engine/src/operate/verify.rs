//! `verify`: compares the process's code with its files. Differences must be exactly the redirects in the
//! journal.

use crate::build::file_text::FileText;
use crate::session::lock;
use crate::session::state::{TargetState, state_of};
use crate::{Error, Target};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use image::ModuleKind;
use serde::{Deserialize, Serialize};
use splice::{Installed, Record, RedirectKind};
use std::collections::BTreeMap;
use tracee::{Pid, Process};

/// How often the comparison is repeated while libraries are loaded or unloaded.
const ATTEMPTS: u32 = 5;

/// A range of bytes that differs from the file and is in no journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unexpected {
    /// The module.
    pub module: String,
    /// Process address.
    pub at: String,
    /// How many bytes.
    pub len: u64,
    /// Explanation of the difference.
    pub what: String,
}

/// The answer of `verify`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerifyReport {
    /// The target.
    pub pid: i32,
    /// True if the original text equals the file outside live redirects.
    pub identical: bool,
    /// The differences.
    pub unexpected: Vec<Unexpected>,
    /// Its state.
    pub state: Option<TargetState>,
    /// Live redirects found.
    pub live_redirects: usize,
    /// Live redirects that undo keeps, because unwinders may still meet frames of clones: words by which they
    /// call `dl_iterate_phdr`.
    pub kept_redirects: usize,
    /// Bytes compared.
    pub compared_bytes: u64,
    /// Modules without a file to compare with.
    pub uncompared: Vec<String>,
}

/// Compares all executable bytes of all modules. While another whet works on the target, its code and its
/// journal may contradict each other. So differences are looked for again once the other whet is done.
///
/// # Errors
/// Returns [`Error`] if the target cannot be read, and [`Error::Locked`] if there are differences and another
/// whet keeps the target's lock.
pub fn verify(pid: Pid) -> Result<VerifyReport, Error> {
    let first = verify_now(pid);
    if first.as_ref().is_ok_and(|r| r.identical) {
        return first;
    }
    let process = match Process::open(pid) {
        Ok(process) => process,
        // It ended meanwhile, so its memory could not be read.
        Err(ended) if first.is_err() => return Err(ended.into()),
        Err(_) => return first,
    };
    match lock::keep_others_out(&process) {
        Ok(_lock) => verify_now(pid),
        Err(e @ Error::Locked { .. }) => Err(e),
        Err(_) => first,
    }
}

/// Compares once, or a few times while libraries are loaded and unloaded.
fn verify_now(pid: Pid) -> Result<VerifyReport, Error> {
    for _ in 1..ATTEMPTS {
        let target = Target::open(pid)?;
        let outcome = compare(&target);
        if outcome.as_ref().is_ok_and(|r| r.identical) || !target.has_other_code() {
            return outcome.map_err(|e| target.cause(e));
        }
    }
    let target = Target::open(pid)?;
    compare(&target).map_err(|e| target.cause(e))
}

fn compare(target: &Target) -> Result<VerifyReport, Error> {
    let image = target.image()?;
    let mut report = VerifyReport {
        pid: target.process.pid().0,
        identical: true,
        unexpected: Vec::new(),
        state: target.installed.as_ref().map(state_of),
        live_redirects: 0,
        kept_redirects: 0,
        compared_bytes: 0,
        uncompared: Vec::new(),
    };
    let sites = sites(target);
    for module in image.modules().iter().filter(|m| m.kind != ModuleKind::Vdso) {
        let name = module.path.clone().unwrap_or_default();
        let Some(file) = FileText::load(&target.process, &image, module) else {
            report.uncompared.push(name);
            continue;
        };
        for (range, wanted) in file.pieces() {
            let Some(wanted) = wanted else {
                report.uncompared.push(name.clone());
                continue;
            };
            let mut live = match target.process.bytes(range) {
                Ok(live) => live,
                Err(_) if !module.nodelete && target.has_other_code() => {
                    report.uncompared.push(name.clone());
                    continue;
                }
                Err(e) => return Err(tracee::Error::from(e).into()),
            };
            report.compared_bytes += range.len();
            report.live_redirects += take_out(&sites, range, &mut live, &wanted);
            let differences = differences(&live, &wanted);
            if !differences.is_empty() && !module.nodelete && target.has_other_code() {
                // Another library was mapped here meanwhile.
                report.uncompared.push(name.clone());
                continue;
            }
            for (at, len) in differences {
                report.unexpected.push(Unexpected {
                    module: name.clone(),
                    at: range.start.add(at as u64).to_string(),
                    len: len as u64,
                    what: "differs from the file and is in no journal".to_owned(),
                });
            }
        }
    }
    words(target, &sites, &mut report);
    let module_list = target.installed.as_ref().map_or(&[][..], |i| i.anchor.module_list_redirects());
    let in_force = |r: &&Record| target.process.bytes(r.range()).is_ok_and(|b| b == r.new_bytes());
    report.kept_redirects = module_list.iter().filter(in_force).count();
    let in_code = module_list.iter().filter(in_force).filter(|r| !is_word(r)).count();
    report.live_redirects = report.live_redirects.saturating_sub(in_code);
    report.identical = report.unexpected.is_empty();
    Ok(report)
}

/// Checks redirects that are words of data, not code: each holds its old value, or a value of the journal.
fn words(target: &Target, sites: &BTreeMap<(Avma, u8), Vec<Record>>, report: &mut VerifyReport) {
    // A redirected slot may also hold its value from before it was bound.
    let module_list = target.installed.as_ref().map_or(&[][..], |i| i.anchor.module_list_redirects());
    let of_caches = |rs: &&Vec<Record>| rs.iter().all(|r| is_word(r) && !module_list.contains(r));
    let places: Vec<&Vec<Record>> = sites.values().filter(of_caches).collect();
    let ranges: Vec<AvmaRange> = places.iter().filter_map(|rs| rs.first()).map(Record::range).collect();
    let found = target.process.read_each(&ranges);
    for ((records, range), now) in places.into_iter().zip(ranges).zip(found) {
        // The library has been unloaded, and its words with it.
        let Some(now) = now else { continue };
        if records.iter().any(|r| now == r.new_bytes()) {
            report.live_redirects += 1;
        } else if !records.iter().any(|r| now == r.old_bytes()) {
            report.unexpected.push(Unexpected {
                module: String::new(),
                at: range.start.to_string(),
                len: range.len(),
                what: "a redirected word of data that holds neither of the journal's values".to_owned(),
            });
        }
    }
}

fn is_word(r: &Record) -> bool {
    matches!(r.kind, RedirectKind::Vtable | RedirectKind::Slot)
}

/// Returns the redirects that the journals list for each place.
fn sites(target: &Target) -> BTreeMap<(Avma, u8), Vec<Record>> {
    let mut sites: BTreeMap<(Avma, u8), Vec<Record>> = BTreeMap::new();
    for r in target.installed.iter().flat_map(Installed::records) {
        sites.entry((r.at, r.len)).or_default().push(r);
    }
    sites
}

/// Puts the file's bytes where a live redirect matches the journal byte for byte. Returns how many there
/// were.
fn take_out(
    sites: &BTreeMap<(Avma, u8), Vec<Record>>,
    range: AvmaRange,
    live: &mut [u8],
    wanted: &[u8],
) -> usize {
    let mut found = 0;
    for ((at, len), records) in sites.range((range.start, 0)..(range.end, 0)) {
        let Some(o) = at.since(range.start).and_then(|o| usize::try_from(o).ok()) else { continue };
        let span = o..o + usize::from(*len);
        let (Some(now), Some(was)) = (live.get_mut(span.clone()), wanted.get(span)) else { continue };
        if records.iter().any(|r| now == r.new_bytes() && was == r.old_bytes()) {
            now.copy_from_slice(was);
            // Words of data in an executable mapping are counted by `words`.
            found += usize::from(!records.iter().all(is_word));
        }
    }
    found
}

/// Returns ranges of differing bytes as (offset, length), at most a hundred.
fn differences(live: &[u8], wanted: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    if live == wanted {
        return runs;
    }
    for (i, _) in live.iter().zip(wanted).enumerate().filter(|(_, (a, b))| a != b) {
        let full = runs.len() == 100;
        match runs.last_mut() {
            Some((start, len)) if *start + *len == i => *len += 1,
            _ if full => break,
            _ => runs.push((i, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use splice::RedirectKind;

    #[test]
    fn only_journalled_bytes_are_excused() {
        let file = *b"aaaaaaaaaaaaaaaa";
        let record = Record {
            at: Avma(0x1004),
            kind: RedirectKind::Entry,
            len: 5,
            interior: 0,
            old: *b"aaaaa\0\0\0",
            new: *b"jjjjj\0\0\0",
            mark: None,
        };
        let sites = BTreeMap::from([((record.at, record.len), vec![record])]);
        let range = AvmaRange::with_len(Avma(0x1000), 16);
        let mut live = *b"aaaajjjjjaaaaaaa";
        assert_eq!(take_out(&sites, range, &mut live, &file), 1);
        assert_eq!(differences(&live, &file), vec![]);
        let mut torn = *b"aaaajjjaaaaaaaaa";
        assert_eq!(take_out(&sites, range, &mut torn, &file), 0);
        assert_eq!(differences(&torn, &file), vec![(4, 3)]);
    }
}
