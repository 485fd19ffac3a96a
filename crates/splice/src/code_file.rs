//! Code caches that are mapped from files.
//!
//! Unmodified profilers read the file behind a mapping. So the cache lies in an ELF file, which is read-only
//! for good once whet has written it (`tracee::SealedFile`). The file has clones and tables before it is
//! mapped. The journal, records and notes belong to the process alone. They are written to the process's
//! private copies of pages, as into anonymous memory.
//!
//! If the process cannot take a file, the cache goes to anonymous memory.

use crate::mapping::{map_from, nr, prot};
use crate::{BLOB_OFFSET, CachePlan, Error, Plan, Policy, ToggleReport, fault, huge_wanted, toggle};
use addr::{Addr, Avma, AvmaRange, ReadMemory};
use std::path::PathBuf;
use std::sync::Arc;
use tracee::{Content, Process, SealedFile, Stopped};

/// The file of a code cache.
#[derive(Clone, Debug)]
pub enum CodeFile {
    /// A file of the process's own, still to be written.
    New {
        /// Its absolute path, which `/proc/PID/maps` shows. It lies in a file system of its own.
        path: PathBuf,
        /// The bytes behind both mappings.
        tail: Vec<u8>,
    },
    /// The file from which another process has mapped the same cache at the same addresses.
    Shared(Arc<SealedFile>),
}

/// The parts of a code cache's file, each with its offset in it.
pub type FileParts<'a> = [(u64, &'a [u8]); 3];

impl CachePlan {
    /// Returns the parts of a new file, by offset, and its size. `tail` is the file's.
    #[must_use]
    pub fn file_parts<'a>(&'a self, tail: &'a [u8]) -> (FileParts<'a>, u64) {
        let data = self.text_range().len();
        let end = data + self.data_len();
        let parts = [(0, &self.text[..]), (data + BLOB_OFFSET, &self.blob[..]), (end, tail)];
        (parts, end + tail.len() as u64)
    }
}

/// Maps all caches of a plan from files, in one stop. Returns false if they are to be in anonymous memory.
///
/// # Errors
/// [`Error`]; no cache is mapped then.
pub(crate) fn map(
    process: &Process,
    plan: &Plan,
    policy: &Policy,
    report: &mut ToggleReport,
) -> Result<bool, Error> {
    let Some(files) = plan.caches.iter().map(|c| file(c, plan.huge)).collect::<Option<Vec<_>>>() else {
        return Ok(false);
    };
    let files = files.into_iter().collect::<Result<Vec<_>, _>>()?;
    fault::point();
    tracee::prepare_syscalls(process)?;
    let mut stopped = toggle::stop(process, policy, report)?;
    // The page must not take the place of a cache.
    let hint = plan.caches.last().map_or(Avma(0), |c| c.data_range().end);
    let outcome = stopped.with_files(&files, hint, |stopped, fds| map_each(stopped, &plan.caches, fds));
    let released = stopped.release()?;
    report.stops.push(released.stopped);
    report.cured += released.cured;
    outcome.map(|()| true)
}

fn file(cache: &CachePlan, huge: bool) -> Option<Result<Arc<SealedFile>, Error>> {
    let (path, tail) = match cache.file.as_ref()? {
        CodeFile::New { path, tail } => (path, tail),
        CodeFile::Shared(file) => return Some(Ok(Arc::clone(file))),
    };
    let (parts, len) = cache.file_parts(tail);
    let content = Content { parts: &parts, len, huge: huge && huge_wanted(cache.text.len() as u64) };
    Some(SealedFile::create(path, content).map(Arc::new).map_err(Error::CodeFile))
}

fn map_each(stopped: &mut Stopped<'_>, caches: &[CachePlan], fds: &[u64]) -> Result<(), Error> {
    let mut made: Vec<AvmaRange> = Vec::new();
    for (cache, fd) in caches.iter().zip(fds) {
        let (text, data) = (cache.text_range(), cache.data_range());
        for (range, protection, offset) in [(text, prot::READ_EXEC, 0), (data, prot::READ, text.len())] {
            fault::point();
            let mut call = |nr, args| stopped.syscall(nr, args);
            if let Err(e) = map_from(&mut call, range.start, range.len(), protection, (*fd, offset, 0)) {
                for range in made {
                    stopped.syscall(nr::MUNMAP, [range.start.0, range.len(), 0, 0, 0, 0])?;
                }
                return Err(e);
            }
            made.push(range);
        }
    }
    Ok(())
}

/// Returns whether an error means that files are not possible in this process or on this host. Causes are a
/// security module, limits, an old kernel, missing capabilities.
pub(crate) fn is_refusal(e: &Error) -> bool {
    use tracee::Error as T;
    matches!(
        e,
        Error::CodeFile(_)
            | Error::MapDenied { .. }
            | Error::Tracee(T::NotGiven { .. } | T::NoThread(_) | T::SyscallDispatch(_))
    )
}

/// Checks that the mappings show the plan's clones and tables.
pub(crate) fn check(process: &Process, plan: &Plan) -> Result<(), Error> {
    for cache in &plan.caches {
        for (at, bytes) in [(cache.text_at, &cache.text), (cache.data_at.add(BLOB_OFFSET), &cache.blob)] {
            let range = AvmaRange::with_len(at, bytes.len() as u64);
            if process.bytes(range)? != *bytes {
                return Err(Error::WriteLost { range });
            }
        }
    }
    Ok(())
}
