//! `perf`: writes the facts about clones for the profiler perf, as a map, and optionally a jitdump with their
//! code.
//!
//! `perf inject --jit` finds a jitdump by the record that the process has mapped it. So one thread of the
//! target is stopped for a moment and maps the file's first page; nothing reads or executes the page. Only
//! the mapping and the file remain.

use crate::debuggers::clone_symbols;
use crate::debuggers::perf_map::{self, PerfMap};
use crate::debuggers::perf_place::Place;
use crate::session::lock::TargetLock;
use crate::{Error, Target};
use addr::{Avma, AvmaRange, ReadMemory};
use serde::Serialize;
use splice::Installed;
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use symbols::{Loaded, Part};
use tracee::{Pid, Process, Remote};

/// The answer of `perf`.
#[derive(Clone, Debug, Serialize)]
pub struct PerfReport {
    /// The target.
    pub pid: i32,
    /// Its program.
    pub exe: String,
    /// The perf map.
    pub perf_map: PerfMap,
    /// The jitdump's path in the target's view; absent if none was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitdump: Option<String>,
}

/// Rewrites the perf map of a target, and with `dump` its jitdump.
///
/// # Errors
/// Returns [`Error::NotInstalled`]. With `dump`, also returns [`Error::File`] if the dump cannot be written
/// or the target cannot map it, and the errors of stopping a thread.
pub fn perf(pid: Pid, dump: bool) -> Result<PerfReport, Error> {
    let (_, _lock) = TargetLock::open(pid)?;
    let target = Target::open(pid)?;
    let installed = target.installed.as_ref().ok_or(Error::NotInstalled { pid })?;
    let perf_map = perf_map::of(&target.process, installed);
    let jitdump = match dump {
        true => Some(write(&target, installed).map_err(|e| target.cause(e))?),
        false => None,
    };
    Ok(PerfReport { pid: pid.0, exe: target.exe(), perf_map, jitdump })
}

fn write(target: &Target, installed: &Installed) -> Result<String, Error> {
    let process = &target.process;
    let io = |path: &str, source| Error::File { path: PathBuf::from(path), source };
    let mut fragments = clone_symbols::fragments(process, installed)?;
    // The record that identifies the dump's process comes first.
    fragments.sort_by_key(|f| f.part != Part::Routine);
    let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let behind = u64::try_from(real).unwrap_or(u64::MAX).saturating_sub(perf::monotonic_ns());
    let since = |at: Avma| {
        let cache = installed.caches.iter().map(|c| &c.header).find(|h| h.text.contains(at));
        let first = installed.caches.iter().map(|c| c.header.since_ns).min();
        cache.map(|h| h.since_ns).or(first).unwrap_or(0).saturating_sub(behind).max(1)
    };
    let mut loaded = Vec::with_capacity(fragments.len());
    for fragment in &fragments {
        let code = process.bytes(fragment.range).map_err(splice::Error::from)?;
        loaded.push(Loaded { fragment, code, since_ns: since(fragment.range.start) });
    }
    let place = Place::open(process).map_err(|e| io("/tmp", e))?;
    let name = format!("jit-{}.dump", place.pid);
    let path = format!("/tmp/{name}");
    let own: Vec<Vec<u8>> = loaded.iter().filter(|l| l.fragment.part == Part::Routine).map(own).collect();
    place.put(&name, &symbols::jitdump(place.pid, &loaded), &own).map_err(|e| io(&path, e))?;
    let stale: Vec<AvmaRange> =
        target.maps.iter().filter(|m| is_of(m.path.as_deref(), &path)).map(|m| m.range).collect();
    map_in_target(process, &path, &stale)?.map_err(|e| io(&path, e))?;
    Ok(path)
}

/// Returns bytes that only dumps of one process contain: the address of whet's routine, and its name.
fn own(l: &Loaded<'_>) -> Vec<u8> {
    let at = l.fragment.range.start.0.to_le_bytes();
    [&at[..], &at].concat()
}

/// Returns whether a mapping is of an earlier dump, whose name a later dump may have taken.
fn is_of(mapped: Option<&str>, path: &str) -> bool {
    mapped.is_some_and(|m| m == path || m.strip_suffix(" (deleted)") == Some(path))
}

/// Makes the target map the first page of a file; the inner error is the error of its kernel.
fn map_in_target(process: &Process, path: &str, stale: &[AvmaRange]) -> Result<io::Result<()>, Error> {
    const PAGE: u64 = 4096;
    let text = [path.as_bytes(), b"\0"].concat();
    let answer = tracee::with_one_stopped(process, |remote| {
        for old in stale {
            remote.munmap(old.start, old.len())?;
        }
        let words = remote.mmap(None, PAGE, libc::PROT_READ, 0)?;
        let done = process.write(words, &text).and_then(|()| open_and_map(remote, words));
        remote.munmap(words, PAGE)?;
        match done {
            Err(tracee::Error::Remote { errno, .. }) => Ok(Err(io::Error::from_raw_os_error(errno))),
            done => done.map(Ok),
        }
    });
    Ok(answer?)
}

fn open_and_map(remote: &mut Remote<'_>, path: Avma) -> Result<(), tracee::Error> {
    let arg = |n: libc::c_int| i64::from(n).cast_unsigned();
    let how = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let fd = remote.syscall(libc::SYS_openat, [arg(libc::AT_FDCWD), path.0, arg(how), 0, 0, 0])?;
    let prot = arg(libc::PROT_READ | libc::PROT_EXEC);
    let fd = fd.cast_unsigned();
    let mapped = remote.syscall(libc::SYS_mmap, [0, 4096, prot, arg(libc::MAP_PRIVATE), fd, 0]);
    remote.syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    mapped.map(|_| ())
}
