//! `huge-pages`: moves the large shared memory of a process into huge pages.

use super::choose::{self, LEAST, Unit};
use super::moving::{End, Outcome, move_units};
use super::{quiet, room};
use crate::base::kernel;
use crate::{Error, Interrupt};
use addr::{Addr, ReadMemory};
use image::Mapping;
use serde::Serialize;
use splice::HUGE;
use std::time::Instant;
use std::{fmt, io};
use tracee::{MemoryFile, Pid, Process, SharedMemory};

/// The first version of Linux that moves memory for all processes that share it: `retract_page_tables()` leaves out no
/// process.
const LINUX: (u32, u32) = (6, 6);
/// After so many units, room and a quiet process are looked for again: 8 GiB.
const SLICE: usize = 4096;
/// One table of the second level maps so much.
const GIB: u64 = 1 << 30;

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

/// A mapping of shared memory. All sizes are in bytes; of memory in reserved huge pages, all are that of the mapping.
#[derive(Clone, Debug, Serialize)]
pub struct SharedMapping {
    /// Where it begins: a process address.
    pub at: String,
    /// The kernel's name of it.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// How much of it has pages, in memory or in swap space.
    pub in_use: u64,
    /// How much lies in 2 MiB that nearly all have pages, and can be in huge pages.
    pub dense: u64,
    /// How much this command has moved, or found in huge pages.
    pub huge: u64,
    /// How much memory the huge pages take more than the small ones did.
    pub added: u64,
    /// The processes through which the kernel was asked.
    pub through: Vec<i32>,
    /// Why not all that is dense was moved.
    pub left: Option<NotMoved>,
}

/// Why memory was not moved.
#[derive(Clone, Debug, Serialize)]
pub struct NotMoved {
    /// A stable name of the reason.
    pub code: &'static str,
    /// The reason.
    pub why: String,
    /// Whether the same command may move it later.
    pub passes: bool,
}

impl NotMoved {
    fn lasting(code: &'static str, why: &str) -> Self {
        Self { code, why: why.to_owned(), passes: false }
    }

    fn passing(code: &'static str, why: &str) -> Self {
        Self { code, why: why.to_owned(), passes: true }
    }
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
/// [`Error::NoSharedMemory`]; [`Error::NotMoved`] if none of it is moved; errors of reading the process.
pub fn huge_pages(
    pid: Pid,
    dry_run: bool,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(Moving),
) -> Result<HugePagesReport, Error> {
    let began = Instant::now();
    let process = Process::open(pid)?;
    let exe = process.exe()?.to_string_lossy().into_owned();
    let maps = image::maps::parse(&process.maps_text()?)?;
    let mut job = Job { process: &process, dry_run, interrupt, show, interrupted: false };
    let mut mappings: Vec<SharedMapping> = Vec::new();
    for mapping in choose::large(&maps) {
        match job.mapping(mapping) {
            // What was moved before is reported.
            Err(e) if mappings.iter().any(|m| m.huge > 0) => {
                mappings.push(SharedMapping {
                    left: Some(NotMoved::lasting(e.code(), &e.to_string())),
                    ..of(mapping)
                });
            }
            found => mappings.extend(found?),
        }
    }
    let interrupted = job.interrupted;
    let is_left = |m: &SharedMapping| m.huge == 0 && m.left.is_some();
    match mappings.first() {
        None => return Err(Error::NoSharedMemory { pid, least: LEAST }),
        Some(SharedMapping { left: Some(NotMoved { code, why, passes }), .. })
            if !interrupted && mappings.iter().all(is_left) =>
        {
            return Err(Error::NotMoved { pid, code, why: why.clone(), passes: *passes });
        }
        _ => {}
    }
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
        through: Vec::new(),
        left: None,
    }
}

/// The work on one process.
struct Job<'a> {
    process: &'a Process,
    dry_run: bool,
    interrupt: &'a Interrupt,
    show: &'a mut dyn FnMut(Moving),
    interrupted: bool,
}

impl Job<'_> {
    /// Works on one mapping; `None` if it is no shared memory.
    fn mapping(&mut self, mapping: &Mapping) -> Result<Option<SharedMapping>, Error> {
        match self.process.shared_memory(mapping.range)? {
            SharedMemory::Tmpfs(file) => self.in_memory(mapping, file).map(Some),
            SharedMemory::Hugetlb => {
                let size = mapping.range.len();
                Ok(Some(SharedMapping { in_use: size, dense: size, huge: size, ..of(mapping) }))
            }
            SharedMemory::Other => Ok(None),
        }
    }

    fn in_memory(&mut self, mapping: &Mapping, file: MemoryFile) -> Result<SharedMapping, Error> {
        let found = of(mapping);
        if kernel::version(&kernel::release()) < LINUX {
            let why = "only Linux 6.6 or later moves memory for all processes that share it";
            return Ok(SharedMapping { left: Some(NotMoved::lasting("old_kernel", why)), ..found });
        }
        let looked = choose::look(mapping, |from, len| file.in_use(from, len));
        let looked = looked.map_err(|e| denied(self.process.pid(), "inspect the memory of", "", e))?;
        let system_left = file.free();
        // An open file would keep the memory of a server that ends meanwhile.
        drop(file);
        let dense = looked.dense.len() as u64 * HUGE;
        let mut found = SharedMapping { in_use: looked.in_use, dense, ..found };
        if !choose::is_aligned(mapping) {
            found.left = Some(NotMoved::lasting("unaligned", &unaligned(mapping)));
        } else if looked.dense.is_empty() {
            found.left = Some(NotMoved::passing("sparse", "its shared memory is hardly in use yet"));
        } else if !self.dry_run {
            self.moves(&mut found, mapping, &looked.dense, system_left)?;
        }
        Ok(found)
    }

    /// Moves the units of a mapping, slice by slice.
    fn moves(
        &mut self,
        found: &mut SharedMapping,
        mapping: &Mapping,
        units: &[Unit],
        mut system_left: Option<u64>,
    ) -> Result<(), Error> {
        let pid = self.process.pid();
        for slice in units.chunks(SLICE) {
            if let Err((code, why)) = room::check(pid, slice, system_left) {
                found.left = Some(NotMoved::lasting(code, &why));
                break;
            }
            let Some(by) = quiet::with_mapping(pid, mapping)? else {
                let why = "no process that has mapped its shared memory is at rest, and the kernel moves it through one of \
                    them, which may have to wait meanwhile";
                found.left = Some(NotMoved::passing("no_quiet_process", why));
                break;
            };
            if !found.through.contains(&by.pid().0) {
                found.through.push(by.pid().0);
            }
            let (before, of) = (units_in(found.huge), units.len());
            let Outcome { huge, end } = self.ask(&by, slice, before, of)?;
            found.huge += huge.len() as u64 * HUGE;
            found.added += huge.iter().map(|u| u.holes).sum::<u64>();
            system_left = system_left.map(|left| left.saturating_sub(huge.iter().map(|u| u.holes).sum()));
            match end {
                None => {}
                Some(End::Interrupted) => {
                    self.interrupted = true;
                    break;
                }
                Some(end) => {
                    found.left = Some(reason(&end));
                    if !is_of_a_unit(&end) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Asks the kernel through one process.
    fn ask(&mut self, by: &Process, units: &[Unit], before: usize, of: usize) -> Result<Outcome, Error> {
        match by.can_collapse() {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                return Err(denied(
                    by.pid(),
                    "move the memory of",
                    "; it takes the capability CAP_SYS_NICE",
                    e,
                ));
            }
            Err(e) => return Ok(Outcome { huge: Vec::new(), end: Some(End::Refused(e)) }),
            Ok(()) => {}
        }
        // Before Linux 6.18 the kernel moves memory and then says that it failed, if this process has no page table of
        // the second level there, because it has touched nothing within that GiB (`collapse_pte_mapped_thp()`).
        for part in units.chunk_by(|a, b| a.at.align_down(GIB) == b.at.align_down(GIB)) {
            let _ = part.first().map(|unit| by.read(unit.at, &mut [0]));
        }
        let collapse = |range| {
            let began = Instant::now();
            (by.collapse(range), began.elapsed())
        };
        let show = |moved| (self.show)(Moving { moved: before + moved, of });
        Ok(move_units(units, self.interrupt, collapse, show))
    }
}

fn denied(pid: Pid, what: &'static str, hint: &str, source: io::Error) -> Error {
    tracee::Error::NoPermission { pid, what, hint: hint.to_owned(), source }.into()
}

fn units_in(bytes: u64) -> usize {
    usize::try_from(bytes / HUGE).unwrap_or(usize::MAX)
}

/// Returns why a mapping begins where it does. The kernel places the mapping by what its file system is set to
/// (`shmem_get_unmapped_area()`).
fn unaligned(mapping: &Mapping) -> String {
    let of_kernel = ["/dev/zero", "/SYSV", "/memfd:"];
    let name = mapping.file().unwrap_or_default();
    let setting = match of_kernel.iter().any(|start| name.starts_with(start)) {
        true => "/sys/kernel/mm/transparent_hugepage/shmem_enabled is `advise`".to_owned(),
        false => format!("the file system of {name} is mounted with `huge=advise`"),
    };
    format!(
        "its shared memory does not begin at a multiple of 2 MiB: the program must be started when {setting}"
    )
}

/// Returns whether other units may be moved all the same.
fn is_of_a_unit(end: &End) -> bool {
    let End::Refused(e) = end else { return false };
    !matches!(e.raw_os_error(), Some(libc::ENOMEM | libc::EBUSY | libc::ESRCH | libc::ENOSYS))
}

fn reason(end: &End) -> NotMoved {
    let e = match end {
        End::Refused(e) => e,
        End::Slow(unit) => {
            let ms = unit.as_millis();
            return NotMoved::passing(
                "slow",
                &format!("each 2 MiB took {ms} ms, in which processes wait for them"),
            );
        }
        End::Interrupted => return NotMoved::passing("interrupted", "a signal ended the command"),
    };
    match e.raw_os_error() {
        Some(libc::ENOMEM) => NotMoved::passing("no_huge_page", "the host has no more free huge pages"),
        Some(libc::EBUSY) => {
            NotMoved::passing("memory_limit", "a limit of its control groups leaves no more room")
        }
        Some(libc::ESRCH) => {
            NotMoved::passing("member_ended", "the process through which it was moved has ended")
        }
        Some(libc::ENOSYS) => {
            NotMoved::lasting("old_kernel", "this kernel cannot move memory into huge pages")
        }
        _ => NotMoved::passing("not_moved", &format!("the kernel left some of it in small pages: {e}")),
    }
}
