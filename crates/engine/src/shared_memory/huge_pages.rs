//! `huge-pages`: moves the large shared memory of a process into huge pages.

use super::choose::{self, LEAST, Unit};
use super::moving::{Outcome, move_units};
use super::{quiet, room};
use crate::{Error, Interrupt};
use image::Mapping;
use serde::Serialize;
use splice::HUGE;
use std::time::Instant;
use std::{fmt, io};
use tracee::{MemoryFile, Pid, Process, SharedMemory};

/// The answer of `huge-pages`.
#[derive(Clone, Debug, Serialize)]
pub struct HugePagesReport {
    /// The process that was named.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// True if nothing was moved, on request.
    pub dry_run: bool,
    /// True if a signal ended the command. What was moved stays.
    pub interrupted: bool,
    /// How long it took. Seconds.
    pub seconds: f64,
    /// Its large mappings of shared memory.
    pub mappings: Vec<SharedMapping>,
}

/// A mapping of shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct SharedMapping {
    /// Where it begins: a process address.
    pub at: String,
    /// The kernel's name of it.
    pub name: String,
    /// Its size. Bytes.
    pub size: u64,
    /// How much of it has pages. Bytes.
    pub in_use: u64,
    /// How much lies in 2 MiB that nearly all have pages, and can be in huge pages. Bytes.
    pub dense: u64,
    /// How much is in huge pages now. 0 in a dry run. Bytes.
    pub huge: u64,
    /// How much memory the huge pages take more than the small ones did. Bytes.
    pub added: u64,
    /// The process through which the kernel was asked.
    pub through: Option<i32>,
    /// Why not all of it was moved.
    pub left: Option<NotMoved>,
}

/// Why memory was not moved.
#[derive(Clone, Debug, Serialize)]
pub struct NotMoved {
    /// A stable name of the reason.
    pub code: &'static str,
    /// The reason.
    pub why: String,
}

/// How far the work is.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// Huge pages so far.
    moved: usize,
    /// Huge pages in all.
    of: usize,
}

impl fmt::Display for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "moving shared memory: {} of {} huge pages", self.moved, self.of)
    }
}

/// Moves the large shared memory of a process, and so of all processes that share it, into huge pages. With `dry_run`
/// it only finds out what there is to move.
///
/// # Errors
/// [`Error::NoSharedMemory`]; [`Error::Unsupported`], [`Error::MemoryLimit`] if none of it can be moved; errors of
/// reading the process.
pub fn huge_pages(
    pid: Pid,
    dry_run: bool,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(Moving),
) -> Result<HugePagesReport, Error> {
    let began = Instant::now();
    let process = Process::open(pid)?;
    let maps = image::maps::parse(&process.maps_text()?)?;
    let mut job = Job { process: &process, dry_run, interrupt, show, was_interrupted: false };
    let mut mappings = Vec::new();
    for mapping in choose::large(&maps) {
        match process.shared_memory(mapping.range)? {
            SharedMemory::Tmpfs(file) => mappings.push(job.mapping(mapping, &file)?),
            SharedMemory::Hugetlb => {
                let size = mapping.range.len();
                mappings.push(SharedMapping { in_use: size, dense: size, huge: size, ..of(mapping) });
            }
            SharedMemory::Other => {}
        }
    }
    let interrupted = job.was_interrupted;
    if !process.is_alive() {
        return Err(tracee::Error::Gone(pid).into());
    }
    let is_left = |m: &SharedMapping| m.huge == 0 && m.left.is_some();
    match mappings.first().and_then(|m| m.left.clone()) {
        None if mappings.is_empty() => return Err(Error::NoSharedMemory { pid, least: LEAST }),
        Some(NotMoved { code, why }) if !interrupted && mappings.iter().all(is_left) => {
            return Err(Error::Unsupported { pid, code, why });
        }
        _ => {}
    }
    let exe = process.exe()?.to_string_lossy().into_owned();
    let seconds = began.elapsed().as_secs_f64();
    Ok(HugePagesReport { pid: pid.0, exe, dry_run, interrupted, seconds, mappings })
}

/// Returns what is known of a mapping by itself.
fn of(mapping: &Mapping) -> SharedMapping {
    SharedMapping {
        at: mapping.range.start.to_string(),
        name: mapping.path.clone().unwrap_or_default(),
        size: mapping.range.len(),
        in_use: 0,
        dense: 0,
        huge: 0,
        added: 0,
        through: None,
        left: None,
    }
}

/// The work on one process.
struct Job<'a> {
    process: &'a Process,
    dry_run: bool,
    interrupt: &'a Interrupt,
    show: &'a mut dyn FnMut(Moving),
    was_interrupted: bool,
}

impl Job<'_> {
    fn mapping(&mut self, mapping: &Mapping, file: &MemoryFile) -> Result<SharedMapping, Error> {
        let failed = |source| tracee::Error::ProcFile {
            path: format!("{} of {}", of(mapping).name, self.process.pid()),
            source,
        };
        let pages = file.pages(mapping.offset..mapping.offset + mapping.range.len()).map_err(failed)?;
        let found = SharedMapping { in_use: pages.iter().map(|r| r.end - r.start).sum(), ..of(mapping) };
        let left = |code, why: &str| Some(NotMoved { code, why: why.to_owned() });
        if !choose::is_aligned(mapping) {
            let why = "its shared memory does not begin at a multiple of 2 MiB: the program must be started when \
                /sys/kernel/mm/transparent_hugepage/shmem_enabled is `advise`";
            return Ok(SharedMapping { left: left("unaligned", why), ..found });
        }
        let units = choose::dense(mapping, &pages);
        let found = SharedMapping { dense: units.len() as u64 * HUGE, ..found };
        if units.is_empty() {
            return Ok(SharedMapping {
                left: left("sparse", "its shared memory is hardly in use yet"),
                ..found
            });
        }
        if self.dry_run {
            return Ok(found);
        }
        self.moved(found, mapping, &units)
    }

    fn moved(
        &mut self,
        found: SharedMapping,
        mapping: &Mapping,
        units: &[Unit],
    ) -> Result<SharedMapping, Error> {
        let pid = self.process.pid();
        room::check(pid, units)?;
        let Some(by) = quiet::with_mapping(pid, mapping)? else {
            let why = "each process that has mapped its shared memory is busy; the kernel moves it through one of them, \
                which may have to wait meanwhile";
            return Ok(SharedMapping {
                left: Some(NotMoved { code: "no_quiet_process", why: why.to_owned() }),
                ..found
            });
        };
        let found = SharedMapping { through: Some(by.pid().0), ..found };
        if let Err(e) = by.can_collapse() {
            return match e.raw_os_error() {
                Some(libc::EINVAL | libc::ENOSYS) => {
                    let why =
                        "this kernel cannot move memory into huge pages; Linux 6.1 or later can".to_owned();
                    Ok(SharedMapping { left: Some(NotMoved { code: "no_collapse", why }), ..found })
                }
                _ => Err(denied(&by, e)),
            };
        }
        let of = units.len();
        let outcome = move_units(
            units,
            self.interrupt,
            |range| by.collapse(range),
            || Ok(by.huge_pages(mapping.range)?),
            |moved| (self.show)(Moving { moved, of }),
        )?;
        self.was_interrupted = self.was_interrupted || outcome.was_interrupted;
        Ok(SharedMapping {
            huge: outcome.huge.len() as u64 * HUGE,
            added: outcome.huge.iter().map(|u| u.holes).sum(),
            left: reason(&outcome),
            ..found
        })
    }
}

fn denied(by: &Process, source: io::Error) -> Error {
    let hint = "; it takes the capability CAP_SYS_NICE".to_owned();
    by.cause(tracee::Error::NoPermission { pid: by.pid(), what: "move the memory of", hint, source }).into()
}

fn reason(outcome: &Outcome) -> Option<NotMoved> {
    let e = outcome.refused.as_ref()?;
    let (code, why) = match e.raw_os_error() {
        Some(libc::ENOMEM) => {
            ("no_huge_page", "the host has no free huge page; its memory is in use or fragmented".to_owned())
        }
        Some(libc::ESRCH) => {
            ("member_ended", "the process through which the kernel was asked has ended".to_owned())
        }
        _ => ("not_moved", format!("the kernel left some of its shared memory in small pages: {e}")),
    };
    Some(NotMoved { code, why })
}
