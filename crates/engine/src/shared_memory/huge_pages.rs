//! `huge-pages`: moves the large shared memory of a process into huge pages.

use super::asking::{Asking, denied, reason};
use super::choose::{self, LEAST, Unit};
use super::moving::Outcome;
use super::quiet;
use super::report::{HugePagesReport, Moving, NotMoved, SharedMapping};
use super::room::{self, Watch};
use crate::base::kernel;
use crate::{Error, Interrupt};
use image::Mapping;
use splice::HUGE;
use std::io;
use std::time::Instant;
use tracee::{MemoryFile, Pid, Process, SharedMemory};

/// The first version of Linux that moves memory for all processes that share it: `retract_page_tables()` leaves out no
/// process.
const LINUX: (u32, u32) = (6, 6);
/// After so many units, room and a quiet process are looked for again: 8 GiB.
const SLICE: usize = 4096;

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
    // The better reason, such as that of a kernel thread.
    let process = Process::open(pid).map_err(|e| tracee::preflight(pid).err().unwrap_or(e))?;
    let exe = process.exe()?.to_string_lossy().into_owned();
    let maps = image::maps::parse(&process.maps_text()?)?;
    let mut job = Job { process: &process, dry_run, interrupt, show };
    let mut mappings: Vec<SharedMapping> = Vec::new();
    for mapping in choose::large(&maps).take_while(|_| !interrupt.is_wanted()) {
        match job.mapping(mapping) {
            // What was moved before is reported.
            Err(e) if mappings.iter().any(|m| m.huge > 0) => {
                let left = Some(NotMoved::lasting(e.code(), &e.to_string()));
                mappings.push(SharedMapping { left, ..SharedMapping::new(mapping) });
            }
            found => mappings.extend(found?),
        }
    }
    let is_left = |m: &SharedMapping| m.huge == 0 && m.left.is_some();
    if !process.is_alive() && !mappings.is_empty() && mappings.iter().all(is_left) {
        return Err(tracee::Error::Gone(pid).into());
    }
    let interrupted = interrupt.is_wanted();
    let movable: Vec<&SharedMapping> = mappings.iter().filter(|m| !m.reserved).collect();
    match movable.first().and_then(|m| m.left.as_ref()) {
        _ if interrupted => {}
        Some(NotMoved { code, why, passes }) if movable.iter().all(|m| is_left(m)) => {
            return Err(Error::NotMoved { pid, code, why: why.clone(), passes: *passes });
        }
        None if mappings.is_empty() => return Err(Error::NoSharedMemory { pid, least: LEAST }),
        _ => {}
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(HugePagesReport { pid: pid.0, exe, dry_run, interrupted, seconds, mappings })
}

/// The work on one process.
struct Job<'a> {
    process: &'a Process,
    dry_run: bool,
    interrupt: &'a Interrupt,
    show: &'a mut dyn FnMut(Moving),
}

impl Job<'_> {
    /// Works on one mapping; `None` if it is no shared memory.
    fn mapping(&mut self, mapping: &Mapping) -> Result<Option<SharedMapping>, Error> {
        match self.process.shared_memory(mapping.range, mapping.dev)? {
            SharedMemory::Tmpfs(file) => self.in_memory(mapping, file).map(Some),
            SharedMemory::Hugetlb => {
                Ok(Some(SharedMapping { reserved: true, ..SharedMapping::new(mapping) }))
            }
            SharedMemory::Other => Ok(None),
        }
    }

    fn in_memory(&mut self, mapping: &Mapping, file: MemoryFile) -> Result<SharedMapping, Error> {
        let mut found = SharedMapping::new(mapping);
        if kernel::running() < LINUX {
            let why = "only Linux 6.6 or later moves memory for all processes that share it";
            return Ok(SharedMapping { left: Some(NotMoved::lasting("old_kernel", why)), ..found });
        }
        let failed = |e: io::Error| denied(self.process.pid(), "inspect the memory of", "", e);
        let looked = choose::look(mapping, file.size(), |from, len| {
            self.interrupt.check()?;
            file.in_use(from, len).map_err(failed)
        })?;
        let system_left = file.free();
        // An open file would keep the memory of a server that ends meanwhile.
        drop(file);
        found.in_use = looked.in_use;
        found.dense = looked.dense.len() as u64 * HUGE;
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
        let watch = Watch::new(pid);
        let mut moved = 0;
        for slice in units.chunks(SLICE) {
            if let Err((code, why)) = room::check(pid, slice, system_left) {
                found.left = Some(NotMoved::passing(code, &why));
                break;
            }
            let Some(by) = quiet::with_mapping(pid, mapping)? else {
                let why = "no process that has mapped its shared memory is at rest, and the kernel moves it through one of \
                    them, which may have to wait meanwhile";
                found.left = Some(NotMoved::passing("no_quiet_process", why));
                break;
            };
            let asking = Asking { by: &by, mapping, watch: &watch };
            let show = |n| (self.show)(Moving { moved: moved + n, of: units.len() });
            let Outcome { huge, end, ends } = asking.moves(slice, self.interrupt, show)?;
            let holes: u64 = huge.iter().map(|unit| unit.holes).sum();
            moved += huge.len();
            found.huge += huge.len() as u64 * HUGE;
            found.added += holes;
            system_left = system_left.map(|left| left.saturating_sub(holes));
            if !huge.is_empty() && !found.through.contains(&by.pid().0) {
                found.through.push(by.pid().0);
            }
            if let Some(why) = end.and_then(|end| reason(&end)) {
                found.left = Some(why);
            }
            if ends {
                break;
            }
        }
        Ok(())
    }
}

/// Returns why a mapping begins where it does. The kernel places the mapping by what its file system is set to
/// (`shmem_get_unmapped_area()`).
fn unaligned(mapping: &Mapping) -> String {
    let of_kernel = ["/dev/zero", "/SYSV", "/memfd:"];
    let name = mapping.file().unwrap_or_default();
    let setting = match of_kernel.iter().any(|start| name.starts_with(start)) {
        true => "/sys/kernel/mm/transparent_hugepage/shmem_enabled is `advise`",
        false => "the file system of its file is mounted with `huge=advise`",
    };
    format!(
        "its shared memory does not begin at a multiple of 2 MiB: the program must be started when {setting}"
    )
}
